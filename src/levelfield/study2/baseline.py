"""The untrained rows: features of a trunk, projected by what the fold's training classes say."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.data.index import SampleIndex
from levelfield.data.subset import ClassSubset
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.pca import PCA
from levelfield.metrics.table import SELECTED_BY
from levelfield.storage.atomic import write_atomically
from levelfield.storage.provenance import provenance
from levelfield.study2 import spec
from levelfield.study2.jobs import Task, write_result
from levelfield.study2.training_job import check_sources, fixed_threads, memory_errors
from levelfield.training.build import TrainingCLI, build
from levelfield.training.embed import embed
from levelfield.training.features import TrunkExtractor

ONE = "one_"  # before the names of the tensors of the projection for all folds together


class Projection(NamedTuple):
    """A centred linear map of features, in float64; without components the features stay as they are."""

    mean_F: Float[Tensor, " features"] | None = None
    components_FC: Float[Tensor, "features components"] | None = None

    def __call__(self, features_NF: Float[Tensor, "samples features"]) -> Float[Tensor, "samples components"]:
        """Project and L2-normalise, in float32."""
        if self.mean_F is None or self.components_FC is None:
            return normalize(features_NF)
        return normalize(((features_NF.double() - self.mean_F) @ self.components_FC).float())

    def save(self, path: Path, one: "Projection | None" = None) -> None:
        """Write it, with that for all folds together if there is one."""
        tensors = {"mean": self.mean_F, "components": self.components_FC}
        if one is not None:
            tensors |= {f"{ONE}mean": one.mean_F, f"{ONE}components": one.components_FC}
        known = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        write_atomically(path, safetensors.torch.save(known))

    @classmethod
    def load(cls, path: Path) -> "tuple[Projection, Projection | None]":
        """The projection of a finished job, and that for all folds together if the job kept one."""
        tensors = safetensors.torch.load(path.read_bytes())
        one = cls(tensors[f"{ONE}mean"], tensors[f"{ONE}components"]) if f"{ONE}mean" in tensors else None
        return cls(tensors.get("mean"), tensors.get("components")), one


def run_untrained(tasks: Sequence[Task], earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Do the jobs of one trunk and data: fit each fold's projection, score its validation classes.

    All folds and references share the features. The first fold's job fits the PCA of the concatenated embedding too, on
    the whole training half. Where all classes train there is nothing to score.

    Args:
        earlier: What ended earlier attempts.
    """
    features = _Features()
    with fixed_threads(tasks[0].threads), memory_errors():
        return [_fit(task, features, earlier) for task in tasks]


def _fit(task: Task, features: "_Features", earlier: Sequence[str]) -> dict[str, Any]:
    started = time.monotonic()
    check_sources(task)
    training = build(task.config, task.empty_folder(), progress=False)
    training.write_config()
    module, size = training.datamodule, training.model.embedding_size
    module.setup("fit")
    train_NF, val_NF = features.of(training)
    train_labels, val_labels = (torch.from_numpy(part.labels) for part in (module.train_subset, module.val_subset))
    one, folds = None, task.config["data"].get("num_folds", 1)
    project = fit_projection(task.projection, train_NF, train_labels, size)
    if task.projection == spec.PCA and folds > 1 and task.job.fold == 0:
        whole, labels = torch.cat([train_NF, val_NF]), torch.cat([train_labels, val_labels])
        one = fit_projection(task.projection, whole, labels, folds * size)
    project.save(task.checkpoint, one)
    scores = retrieval_metrics(project(val_NF), val_labels, metrics=(SELECTED_BY,)) if len(val_labels) else {}
    found = {
        "validation": {key: value for key, value in scores.items() if key == SELECTED_BY},
        "seconds": time.monotonic() - started,
        "data": module.identity(),
        "provenance": provenance(training.trainer, training.model),
    }
    return write_result(task, found, earlier)


class _Features:
    """Features of a trunk's training half, made once, in an order that no fold changes.

    float32 features differ with the composition of a batch, and a resumed study must get the same ones.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], int] = {}
        self._features: Float[Tensor, "samples features"] = torch.empty(0, 0)

    def of(self, training: TrainingCLI) -> tuple[Float[Tensor, "n features"], Float[Tensor, "m features"]]:
        """Those of the training and of the validation samples of a fold."""
        data, device = training.datamodule, training.trainer.strategy.root_device
        if data.features is not None:
            data.use_features(TrunkExtractor(training.model.trunk, device))
            return data.evaluated(data.train_subset), data.evaluated(data.val_subset)
        indices = [subset.index for subset in (data.train_subset, data.val_subset)]
        samples = [[(int(c), key) for c, key in zip(i.labels, i.keys, strict=True)] for i in indices]
        ordered = sorted({each for part in samples for each in part})
        if list(self._rows) != ordered:
            labels = np.array([c for c, _ in ordered], dtype=np.int64)
            index = SampleIndex(tuple(key for _, key in ordered), labels, indices[0].class_names)
            subset = ClassSubset(data.train_subset.dataset, index, data.transform())
            self._features = embed(training.model.trunk, data.eval_dataloader(subset), device=device).embeddings
            self._rows = {each: row for row, each in enumerate(ordered)}
        train, val = ([self._rows[each] for each in part] for part in samples)
        return self._features[train], self._features[val]


def fit_projection(
    kind: str,
    features: Float[Tensor, "samples features"],
    labels: Int[Tensor, " samples"],
    embedding_size: int,
) -> Projection:
    """Fit a fold's projection on its training samples.

    Args:
        kind: `pca` to the methods' size, `features`, `lda` or `pca512`.
    """
    if kind == spec.FEATURES:
        return Projection()
    if kind == spec.LDA:
        return linear_discriminants(features, labels, embedding_size)
    match = re.fullmatch(spec.PCA_TO, kind)
    size = embedding_size if match is None else int(match[1])
    pca = PCA(min(size, *features.shape)).fit(features)
    return Projection(pca.mean_D, pca.components_DC)


def linear_discriminants(
    features: Float[Tensor, "samples features"], labels: Int[Tensor, " samples"], most: int
) -> Projection:
    """The directions that separate the classes best, by scikit-learn; at most `most`, and one fewer than classes.

    Each class's covariance is shrunk as Ledoit and Wolf (2004) say. Deterministic: in float64, each direction signed so
    that its largest entry is positive.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # takes a second

    exact_NF = features.double().numpy()
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact_NF, labels.numpy())
    components_FC = found.scalings_[:, : min(most, exact_NF.shape[1], len(found.classes_) - 1)]
    largest_C = np.abs(components_FC).argmax(axis=0)
    components_FC = components_FC * np.sign(components_FC[largest_C, np.arange(components_FC.shape[1])])
    return Projection(torch.from_numpy(exact_NF.mean(axis=0)), torch.from_numpy(components_FC))
