"""Rows derived from the models of a trained row without training: an average with the initial weights, or a PCA.

Wortsman et al. (2022, WiSE-FT): `alpha * trained + (1 - alpha) * start` keeps what the trunk has learned before.
"""

import copy
from dataclasses import replace
from typing import Any

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.core.files import read_json
from levelfield.study.jobs import CHECKPOINT, RESULT, Task, failed
from levelfield.study.spec import ALPHA, OF, VALIDATED
from levelfield.training.build import Training
from levelfield.training.learner import MetricLearner
from levelfield.training.trust import user_packages
from levelfield.training.weight_averaging import between

CANDIDATES = (1.0, 0.75, 0.5, 0.25)  # of equal scores the first is selected: the trained weights


def derive(task: Task, training: Training) -> dict[str, Any]:
    """Give the learner of a derived row its weights. A fit without a step then validates and keeps it.

    Returns:
        `alpha`, if it is an average.

    Raises:
        TrainingFailed: the source has no model.
        UserError: the embedder of the source has weights, whose average is not meaningful.
    """
    made, trunk = task.spec.derived[task.job.method], training.model.trunk
    trained = _trained(task, training)
    if ALPHA not in made:
        trunk.load_state_dict(trained)
        training.model.embedder_init = "pca"
        return {}
    start = copy.deepcopy(trunk.state_dict())
    alpha = _best_alpha(start, trained, training) if made[ALPHA] == VALIDATED else float(made[ALPHA])
    trunk.load_state_dict(between(start, trained, alpha))
    return {ALPHA: alpha}


def _trained(task: Task, training: Training) -> dict[str, Any]:
    """The weights of the source's trunk."""
    of = task.spec.derived[task.job.method][OF]
    folder = task.folder / replace(task.job, method=of).path
    result = read_json(folder / RESULT)
    if result is None or failed(result):
        raise TrainingFailed(f"{of} has no model")
    learner = MetricLearner.load_from_checkpoint(folder / CHECKPOINT, trust=user_packages(training.config_dump))
    if any(True for _ in learner.embedder.parameters()):
        raise UserError(
            f"{folder / CHECKPOINT}: a derived row needs a trunk without a head; set for its method "
            "model.embedder: levelfield.models.IdentityEmbedder"
        )
    return learner.trunk.state_dict()


def _best_alpha(start: dict[str, Any], trained: dict[str, Any], training: Training) -> float:
    """The alpha with the best validation score."""
    scores = {}
    for alpha in CANDIDATES:
        training.model.trunk.load_state_dict(between(start, trained, alpha))
        found = training.trainer.validate(training.model, datamodule=training.datamodule, verbose=False)
        if not any(found):
            raise UserError("derived: 'alpha: validated' needs a validation fold; give a number")
        scores[alpha] = found[0][f"val/{training.selected_by}"]
    return max(scores, key=scores.__getitem__)  # if equal, the trained weights
