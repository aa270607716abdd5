"""Pretrained baselines: trunk features, projected by what the fold's training classes say: a PCA, or a reference."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.data.index import SampleIndex
from levelfield.data.subset import ClassSubset
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.table import SELECTED_BY
from levelfield.storage.provenance import provenance
from levelfield.study.definition.spec import baseline_of, reference_of
from levelfield.study.execution.references import fit_projection
from levelfield.study.jobs.job import Job, empty_folder, job_config
from levelfield.study.record import StudyRecord
from levelfield.training.build import TrainingCLI, build
from levelfield.training.embed import embed
from levelfield.training.features import TrunkExtractor


class TrunkFeatures:
    """Features of training and validation samples by one trunk, computed once for all folds.

    The samples are embedded in an order that no fold changes: float32 features differ with the composition of a batch,
    and a resumed study must get the same ones.
    """

    def __init__(self) -> None:
        self._known: tuple[str, tuple[tuple[int, str], ...]] = "", ()
        self._features: Float[Tensor, "samples features"] = torch.empty(0, 0)

    def of(
        self, method: str, training: TrainingCLI, progress: Callable[[int, int], Any]
    ) -> tuple[Float[Tensor, "training features"], Float[Tensor, "validation features"]]:
        """The features of the training and of the validation samples of `training`'s fold.

        Args:
            method: The baseline, which says the trunk.
        """
        data = training.datamodule
        parts = [subset.index for subset in (data.train_subset, data.val_subset)]
        keys = tuple(
            sorted({(int(c), key) for index in parts for c, key in zip(index.labels, index.keys, strict=True)})
        )
        if (method, keys) != self._known:
            labels = np.array([c for c, _ in keys], dtype=np.int64)
            index = SampleIndex(tuple(key for _, key in keys), labels, parts[0].class_names)
            subset = ClassSubset(data.train_subset.dataset, index, data.transform())
            device = training.trainer.strategy.root_device
            loader = data.eval_dataloader(subset)
            self._features = embed(training.model.trunk, loader, device=device, progress=progress).embeddings
            self._known = method, keys
        positions = {key: position for position, key in enumerate(keys)}
        rows = [[positions[int(c), key] for c, key in zip(i.labels, i.keys, strict=True)] for i in parts]
        return self._features[rows[0]], self._features[rows[1]]


def fit_baseline(
    record: StudyRecord, job: Job, features: TrunkFeatures, progress: Callable[[int, int], Any]
) -> dict[str, Any]:
    """Fit a projection on a fold's training classes and score its validation classes: the job's part of its result.

    The first fold's job fits the PCA of the baseline's concatenated embedding too, on the whole training half.
    Where all classes train there is nothing to score.
    """
    folder = record.folder / job.path
    empty_folder(folder)
    started = time.monotonic()
    training = build(job_config(record.spec, job, {}), folder, progress=False)
    training.write_config()
    data = training.datamodule
    data.setup("fit")
    if data.features:
        data.use_features(TrunkExtractor(training.model.trunk, training.trainer.strategy.root_device))
        train_NF, val_NF = data.evaluated(data.train_subset), data.evaluated(data.val_subset)
    else:
        train_NF, val_NF = features.of(baseline_of(job.method), training, progress)
    train_labels, val_labels = (torch.from_numpy(part.labels) for part in (data.train_subset, data.val_subset))
    reference, size, folds = reference_of(job.method), training.model.embedding_size, record.spec.folds
    project, one = fit_projection(reference, train_NF, train_labels, size), None
    if reference is None and folds > 1 and job.fold == 0:
        half_NF, half_labels = torch.cat([train_NF, val_NF]), torch.cat([train_labels, val_labels])
        one = fit_projection(None, half_NF, half_labels, folds * size)
    project.save(record.folder / job.checkpoint, one)
    validation = {}
    if len(val_labels):
        scores = retrieval_metrics(project(val_NF), val_labels, metrics=(SELECTED_BY,))
        validation = {SELECTED_BY: scores[SELECTED_BY]}
    return {
        "validation": validation,
        "seconds": time.monotonic() - started,
        "data": data.identity(),
        "provenance": provenance(training.trainer, training.model),
    }
