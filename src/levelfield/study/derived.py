"""Rows derived from the models of a trained row without training: an average with the initial weights, or a PCA.

Wortsman et al. (2022, WiSE-FT): `alpha * trained + (1 - alpha) * start` keeps what the trunk has learned before.
"""

import copy
import time
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.study.jobs import CHECKPOINT, JOB_SHAPE, RESULT, Task, failed, read_result, source_of, write_result
from levelfield.study.spec import ALPHA, OF, VALIDATED
from levelfield.study.training_job import check_sources, fixed_threads, memory_errors, result_of
from levelfield.training.build import Training, build
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.trust import user_packages
from levelfield.training.weight_averaging import between

CANDIDATES = (1.0, 0.75, 0.5, 0.25)  # of equal scores the first is selected: the trained weights


def run_derived(task: Task, earlier: tuple[str, ...] = ()) -> dict[str, Any]:
    """Derive a job's model from that of its source, and validate and keep it as a fit without a step does.

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
    if made.get(ALPHA) == VALIDATED and task.spec.whole_half:
        raise UserError("derived: 'alpha: validated' needs a validation fold; give a number")
    with fixed_threads(task.spec.threads), memory_errors():
        training = build(task.config, task.empty_folder(), progress=False, trunks=task.folder / TRUNKS)
        training.write_config()
        trained, found = _trained(folder, training), dict[str, Any]()
        if ALPHA in made:
            start = copy.deepcopy(training.model.trunk.state_dict())
            found[ALPHA] = float(made[ALPHA]) if made[ALPHA] != VALIDATED else _best_alpha(start, trained, training)
            training.model.trunk.load_state_dict(between(start, trained, found[ALPHA]))
        else:
            training.model.trunk.load_state_dict(trained)
            training.model.embedder_init = "pca"
        training.trainer.fit(training.model, datamodule=training.datamodule)
        found |= {**result_of(training), "best_epoch": source.get("best_epoch")}
    return write_result(task, {**found, "seconds": time.monotonic() - started}, earlier)


def _trained(source: Path, training: Training) -> dict[str, Any]:
    learner = MetricLearner.load_from_checkpoint(source / CHECKPOINT, trust=user_packages(training.config_dump))
    if any(True for _ in learner.embedder.parameters()):
        raise UserError(
            f"{source / CHECKPOINT}: a derived row needs a trunk without a head; set for its method "
            "model.embedder: levelfield.models.IdentityEmbedder"
        )
    return learner.trunk.state_dict()


def _best_alpha(start: dict[str, Any], trained: dict[str, Any], training: Training) -> float:
    """The alpha with the best validation score."""
    scores = {}
    for alpha in CANDIDATES:
        training.model.trunk.load_state_dict(between(start, trained, alpha))
        (found,) = training.trainer.validate(training.model, datamodule=training.datamodule, verbose=False)
        scores[alpha] = found[f"val/{training.selected_by}"]
    return max(scores, key=scores.__getitem__)  # if equal, the trained weights
