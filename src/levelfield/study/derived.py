"""Rows derived from the models of a trained row without training: an average with the initial weights, or a PCA.

Wortsman et al. (2022, WiSE-FT): `alpha * trained + (1 - alpha) * start` keeps what the trunk has learned before.
"""

import copy
import time
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.core.versions import provenance
from levelfield.models import LinearEmbedder
from levelfield.models.embedder_init import start_embedder
from levelfield.study.jobs import CHECKPOINT, JOB_SHAPE, RESULT, Task, failed, read_result, source_of, write_result
from levelfield.study.spec import ALPHA, OF, VALIDATED
from levelfield.study.test_scores import score_validation
from levelfield.study.training_job import check_sources, fixed_threads, memory_errors
from levelfield.training.build import Training, build
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.trust import user_packages
from levelfield.training.weight_averaging import between

CANDIDATES = (1.0, 0.75, 0.5, 0.25)  # of equal scores the first is selected: the trained weights


def run_derived(task: Task, earlier: tuple[str, ...] = ()) -> dict[str, Any]:
    """Derive a job's model from that of its source, score its validation classes, write the result.

    Args:
        earlier: Why earlier attempts ended.

    Raises:
        UserError: the embedder of the source has weights, whose average is not meaningful.
    """
    of, made = source_of(task.spec, task.job), task.spec.derived[task.job.method]
    assert of is not None
    folder = task.folder / of.path
    started = time.monotonic()
    check_sources(task)
    source = read_result(folder / RESULT, JOB_SHAPE)
    if source is None or failed(source):
        task.empty_folder()
        return write_result(task, {"failure": f"{made[OF]} has no model", "seconds": 0.0}, earlier)
    with fixed_threads(task.spec.threads), memory_errors():
        training = build(task.config, task.empty_folder(), progress=False, trunks=task.folder / TRUNKS)
        training.write_config()
        training.datamodule.setup("fit")
        trained = _trained(folder, training)
        learner, alpha = training.model, None
        if ALPHA in made:
            start = copy.deepcopy(learner.trunk.state_dict())
            alpha = _best_alpha(made[ALPHA], start, trained, training)
            learner.trunk.load_state_dict(between(start, trained, alpha))
        else:
            learner.trunk.load_state_dict(trained)
            _set_pca(learner, training)
        scored: dict[str, Any]
        if alpha == 1:
            scored = {key: source[key] for key in ("validation", "classes") if key in source}
        else:
            scored = _validate(training)
        # Lightning saves only a module that a Trainer has run; this embeds no sample.
        training.trainer.predict(learner, datamodule=training.datamodule, return_predictions=False)
        training.trainer.save_checkpoint(task.checkpoint, weights_only=True)
        found = {
            **scored,
            "best_epoch": source.get("best_epoch"),
            **({} if alpha is None else {ALPHA: alpha}),
            "seconds": time.monotonic() - started,
            "data": training.datamodule.identity(),
            "provenance": provenance(training.trainer, learner),
        }
    return write_result(task, found, earlier)


def _trained(source: Path, training: Training) -> dict[str, Any]:
    learner = MetricLearner.load_from_checkpoint(source / CHECKPOINT, trust=user_packages(training.config_dump))
    if any(True for _ in learner.embedder.parameters()):
        raise UserError(
            f"{source / CHECKPOINT}: a derived row needs a trunk without a head; set for its method "
            "model.embedder: levelfield.models.IdentityEmbedder"
        )
    return learner.trunk.state_dict()


def _best_alpha(given: Any, start: dict[str, Any], trained: dict[str, Any], training: Training) -> float:
    """The given alpha, or the one with the best validation score."""
    if given != VALIDATED:
        return float(given)
    scores = {}
    for alpha in CANDIDATES:
        training.model.trunk.load_state_dict(between(start, trained, alpha))
        if not (found := _validate(training)["validation"]):
            raise UserError("derived: 'alpha: validated' needs a validation fold; give a number")
        scores[alpha] = found[training.selected_by]
    return max(scores, key=scores.__getitem__)  # if equal, the trained weights


def _validate(training: Training) -> dict[str, Any]:
    """The validation score that selects epochs, and MAP@R by class; without validation classes, no score."""
    data, learner = training.datamodule, training.model
    if not len(data.val_subset):
        return {"validation": {}}
    score, device = training.selected_by, training.trainer.strategy.root_device
    found = embed(learner, data.eval_dataloader(data.val_subset), device=device)
    how = score, learner.distance, device, data.val_subset.groups
    value, classes = score_validation(found.embeddings, found.labels, *how)
    return {"validation": {score: value}, "classes": classes}


def _set_pca(learner: MetricLearner, training: Training) -> None:
    features = embed(learner.trunk, training.datamodule.train_samples(), device=training.trainer.strategy.root_device)
    assert isinstance(learner.embedder, LinearEmbedder)
    start_embedder(learner.embedder, "pca", features.embeddings, features.labels)
