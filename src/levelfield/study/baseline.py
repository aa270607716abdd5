"""The untrained rows: trunk features, projected by a map that is fitted on the training classes of a fold."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.versions import provenance
from levelfield.data.dataset import SampleIndex
from levelfield.data.loaders import ClassSubset
from levelfield.study.jobs import Task, write_result
from levelfield.study.projection import fit_projection
from levelfield.study.spec import PCA, UNTRAINED
from levelfield.study.test_scores import score_samples
from levelfield.study.training_job import check_sources, fixed_threads, memory_errors
from levelfield.training.build import Training, build
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.frozen_trunk import TRUNKS


def run_untrained(tasks: Sequence[Task], earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run the jobs of one trunk and data set: fit the projection of each fold and score its validation classes.

    All folds and references share the features. The job of the first fold also fits the PCA of the concatenated
    embedding on the whole training half. Without validation classes, nothing is scored.

    Args:
        earlier: Why earlier attempts ended.
    """
    features = _Features()
    with fixed_threads(tasks[0].threads), memory_errors():
        if tasks[0].projection == UNTRAINED:
            return [_keep_untrained(task, earlier) for task in tasks]
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
    one, folds = None, task.folds
    kind = task.projection
    project = fit_projection(kind, train_NF, train_labels, size)
    if kind == PCA and folds > 1 and task.job.fold == 0:
        whole, labels = torch.cat([train_NF, val_NF]), torch.cat([train_labels, val_labels])
        one = fit_projection(PCA, whole, labels, folds * size)
    project.save(task.checkpoint, one)
    score, scores = training.selected_by, dict[str, Any]()
    if len(val_labels):
        device = training.trainer.strategy.root_device
        groups = module.val_subset.groups
        scores = score_samples(project(val_NF), val_labels, None, metrics=(score,), device=device, groups=groups)
    found = {
        "validation": {key: value for key, value in scores.items() if key == score},
        "seconds": time.monotonic() - started,
        "data": module.identity(),
        "provenance": provenance(training.trainer, training.model),
    }
    return write_result(task, found, earlier)


def _keep_untrained(task: Task, earlier: Sequence[str]) -> dict[str, Any]:
    """The job of an untrained LightningModule: validate it and keep its weights."""
    started = time.monotonic()
    check_sources(task)
    training = build(task.config, task.empty_folder(), progress=False, trunks=task.folder / TRUNKS)
    training.write_config()
    module, trainer = training.datamodule, training.trainer
    module.setup("fit")
    score, scores = training.selected_by, dict[str, float]()
    trainer.strategy.connect(training.model)  # for `save_checkpoint`
    if len(module.val_subset):
        trainer.validate(training.model, module.val_dataloader(), verbose=False)
        scores = {score: float(trainer.callback_metrics[f"val/{score}"])}
    trainer.save_checkpoint(task.checkpoint, weights_only=True)
    found = {
        "validation": scores,
        "seconds": time.monotonic() - started,
        "data": module.identity(),
        "provenance": provenance(trainer, training.model),
    }
    return write_result(task, found, earlier)


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
