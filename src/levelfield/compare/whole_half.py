"""The length of a training on all training classes, from the trainings on a study's folds."""

from pathlib import Path
from statistics import median_low

from levelfield.core.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, folds_of
from levelfield.study.spec import ALPHA, OF


def chosen_by_folds(study: StudyFolder, row: str) -> tuple[int, float | None]:
    """Steps, at least 1, of a training on the whole half, and the share alpha of its weights in a derived average.

    Each is the lower median over the folds of all runs, of the best step and of the validated alpha: an outlier does
    not change it, and a mode would often be a tie. Alpha is None for a row that is no average.

    Args:
        row: A trained row, or an average derived from one.

    Raises:
        UserError: no training of the row was validated.
    """
    steps, alphas = [], []
    for run in range(study.spec.runs):
        for job in folds_of(study.spec, _trained(study, row), run):
            result = study.state.results.get(job, {})
            if result.get("validation"):
                steps.append(result["ending"]["best_step"])
        results = [study.state.results.get(job, {}) for job in folds_of(study.spec, row, run)]
        alphas += [result[ALPHA] for result in results if ALPHA in result]
    if not steps:
        raise UserError(f"{row}: no run in {study.folder} was validated, so its training length is unknown")
    return max(1, median_low(steps)), median_low(alphas) if alphas else None


def whole_half_command(study: StudyFolder, row: str, folder: Path) -> list[str]:
    """The `levelfield fit` command that trains a row on the whole training half; it names the study's folder so."""
    config = folds_of(study.spec, _trained(study, row), 0)[0].path / CONFIG
    words = ["levelfield", "fit", "--config", str(folder / config), "--data.fold", "none", "--name", folder.name]
    return [*words, "--trainer.max_epochs", "-1", "--trainer.max_steps", str(chosen_by_folds(study, row)[0])]


def _trained(study: StudyFolder, row: str) -> str:
    return study.spec.derived[row][OF] if row in study.spec.derived else row
