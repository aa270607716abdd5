"""The untrained rows: trunk features, projected by a map that is fitted on the training classes of a fold.

The projection is a PCA, a discriminant analysis, a whitening, or none. The baseline's job on the first fold also fits a
PCA of the whole training half to folds x size. The Reality Check compares concatenated embeddings with it.
"""

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

from levelfield.core.files import write_atomically
from levelfield.core.versions import provenance
from levelfield.data.dataset import SampleIndex
from levelfield.data.loaders import ClassSubset
from levelfield.metrics import pca
from levelfield.metrics.whitening import whitened_components, within_class_whitening
from levelfield.study.jobs import Task, write_result
from levelfield.study.spec import FEATURES, LDA, PCA, TO_SIZE, UNTRAINED, WHITENING
from levelfield.study.test_scores import score_validation
from levelfield.study.training_job import check_sources, fixed_threads, memory_errors
from levelfield.training.build import Training, build
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.frozen_trunk import TRUNKS

ONE = "one_"  # prefix of the tensors of the projection for all folds together


def run_untrained(tasks: Sequence[Task], earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run the jobs of one trunk and data set: fit the projection of each fold and score its validation classes.

    All folds and references share the features. The job of the first fold also fits the PCA of the concatenated
    embedding on the whole training half. Without validation classes, nothing is scored. A LightningModule has no
    projection: its job validates it and keeps its initial weights.

    Args:
        earlier: Why earlier attempts ended.
    """
    features = _Features()
    with fixed_threads(tasks[0].threads), memory_errors():
        return [_run(task, features, earlier) for task in tasks]


def _run(task: Task, features: "_Features", earlier: Sequence[str]) -> dict[str, Any]:
    started = time.monotonic()
    check_sources(task)
    training = build(task.config, task.empty_folder(), progress=False, trunks=task.folder / TRUNKS)
    training.write_config()
    training.datamodule.setup("fit")
    scored = _keep_module(task, training) if task.projection == UNTRAINED else _fit(task, training, features)
    found = {
        **scored,
        "seconds": time.monotonic() - started,
        "data": training.datamodule.identity(),
        "provenance": provenance(training.trainer, training.model),
    }
    return write_result(task, found, earlier)


def _fit(task: Task, training: Training, features: "_Features") -> dict[str, Any]:
    """Write the projection of a fold; returns its validation score and that of each class, if there are any."""
    module, size, kind = training.datamodule, training.model.embedding_size, task.projection
    train_NF, val_NF = features.of(training)
    train_labels, val_labels = (torch.from_numpy(part.labels) for part in (module.train_subset, module.val_subset))
    one = None
    project = fit_projection(kind, train_NF, train_labels, size)
    if kind == PCA and task.folds > 1 and task.job.fold == 0:
        whole, labels = torch.cat([train_NF, val_NF]), torch.cat([train_labels, val_labels])
        one = fit_projection(PCA, whole, labels, task.folds * size)
    project.save(task.checkpoint, one)
    if not len(val_labels):
        return {"validation": {}}
    score, device = training.selected_by, training.trainer.strategy.root_device
    groups = module.val_subset.groups
    value, classes = score_validation(project(val_NF), val_labels, score, device=device, groups=groups)
    return {"validation": {score: value}, "classes": classes}


def _keep_module(task: Task, training: Training) -> dict[str, Any]:
    """Write the initial weights of a LightningModule; returns its validation score."""
    module, trainer, found = training.datamodule, training.trainer, dict[str, float]()
    trainer.strategy.connect(training.model)  # for `save_checkpoint`
    if len(module.val_subset):
        trainer.validate(training.model, module.val_dataloader(), verbose=False)
        found = {training.selected_by: float(trainer.callback_metrics[f"val/{training.selected_by}"])}
    trainer.save_checkpoint(task.checkpoint, weights_only=True)
    return {"validation": found}


class _Features:
    """Features of a trunk's training half, computed once, in an order that is the same for all folds.

    A resumed study must get the same features, but the other samples of a batch affect the rounding of a feature.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, int], int] = {}
        self._features: Float[Tensor, "samples features"] = torch.empty(0, 0)

    def of(self, training: Training) -> tuple[Float[Tensor, "n features"], Float[Tensor, "m features"]]:
        """Features of the training and of the validation samples of a fold."""
        data, device = training.datamodule, training.trainer.strategy.root_device
        if data.features:
            data.use_features(TrunkExtractor(training.model.trunk, device))
            return data.evaluated(data.train_subset), data.evaluated(data.val_subset)
        indices = [subset.index for subset in (data.train_subset, data.val_subset)]
        samples = [list(zip(i.labels.tolist(), i.keys, i.positions.tolist(), strict=True)) for i in indices]
        ordered = sorted({each for part in samples for each in part})
        if list(self._rows) != ordered:
            labels, keys, positions = zip(*ordered, strict=True)
            names, there = indices[0].class_names, np.array(positions)
            index = SampleIndex(keys, np.array(labels, dtype=np.int64), names, positions=there)
            subset = ClassSubset(data.dataset, index, data.transform(), cache=lambda: data.train_subset.images)
            self._features = embed(training.model.trunk, data.eval_dataloader(subset), device=device).embeddings
            self._rows = {each: row for row, each in enumerate(ordered)}
        train, val = ([self._rows[each] for each in part] for part in samples)
        return self._features[train], self._features[val]


class Projection(NamedTuple):
    """A centred linear map of features in float64; without components the features are unchanged.

    Shapes: F features, C components.
    """

    mean_F: Float[Tensor, " features"] | None = None
    components_FC: Float[Tensor, "features components"] | None = None

    def __call__(self, features_NF: Float[Tensor, "samples features"]) -> Float[Tensor, "samples components"]:
        """Project and L2-normalize, in float32."""
        if self.mean_F is None or self.components_FC is None:
            return normalize(features_NF)
        return normalize(((features_NF.double() - self.mean_F) @ self.components_FC).float())

    def save(self, path: Path, one: "Projection | None" = None) -> None:
        """Write the projection, and the one for all folds together if it is given."""
        tensors = {"mean": self.mean_F, "components": self.components_FC}
        if one is not None:
            tensors |= {f"{ONE}mean": one.mean_F, f"{ONE}components": one.components_FC}
        whole = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        write_atomically(path, safetensors.torch.save(whole))

    @classmethod
    def load(cls, path: Path) -> "tuple[Projection, Projection | None]":
        """The projection of a finished job, and the one for all folds together if there is one."""
        tensors = safetensors.torch.load(path.read_bytes())
        one = cls(tensors[f"{ONE}mean"], tensors[f"{ONE}components"]) if f"{ONE}mean" in tensors else None
        return cls(tensors.get("mean"), tensors.get("components")), one


def fit_projection(
    kind: str,
    features: Float[Tensor, "samples features"],
    labels: Int[Tensor, " samples"],
    embedding_size: int,
) -> Projection:
    """Fit a fold's projection on the features and labels of its training samples.

    Args:
        kind: `pca` (to the embedding size of the methods), `features`, `lda`, `whitening` (all dimensions) or `pca512`.
        embedding_size: D of the methods.
    """
    if kind == FEATURES:
        return Projection()
    if kind == LDA:
        return linear_discriminants(features, labels, embedding_size)
    if kind == WHITENING:
        return Projection(features.double().mean(0), within_class_whitening(features, labels))
    match = re.fullmatch(TO_SIZE, kind)
    size = min(embedding_size if match is None else int(match[2]), *features.shape)
    if match is not None and match[1] == WHITENING:
        return Projection(features.double().mean(0), whitened_components(features, labels, size))
    found = pca.PCA(size).fit(features)
    return Projection(found.mean_D, found.components_DC)


def linear_discriminants(
    features: Float[Tensor, "samples features"], labels: Int[Tensor, " samples"], most: int
) -> Projection:
    """The directions that separate the classes best, by scikit-learn: at most `most`, and fewer than classes.

    The covariance of each class is shrunk (Ledoit and Wolf 2004), because a class has fewer samples than the trunk has
    features. The result is deterministic: float64, with the largest entry of each direction positive.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # takes a second

    exact_NF, classes_N = features.double().numpy(), labels.numpy()
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact_NF, classes_N)
    count = min(most, exact_NF.shape[1], len(found.classes_) - 1)
    components_FC = found.scalings_[:, :count]
    largest_C = np.abs(components_FC).argmax(axis=0)
    components_FC = components_FC * np.sign(components_FC[largest_C, np.arange(count)])
    return Projection(torch.from_numpy(exact_NF.mean(axis=0)), torch.from_numpy(components_FC))
