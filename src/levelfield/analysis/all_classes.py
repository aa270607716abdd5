"""How long to train a row on all training classes, as its folds say."""

from pathlib import Path
from statistics import median_low

from levelfield.core.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, folds_of
from levelfield.study.spec import ALPHA, OF


def on_all_classes(study: StudyFolder, row: str, folder: Path) -> tuple[list[str], float | None]:
    """The `levelfield fit` command that trains a row on the whole training half, and the share of its weights.

    The steps (at least 1), and the share alpha of a derived average, are the lower medians over the folds of all runs:
    an outlier does not change them, and a mode would often be a tie. Alpha is None for a row that is no average. The
    command names the study's folder as `folder`.

    Raises:
        UserError: no training of the row was validated.
    """
    spec, results = study.spec, study.state.results
    source = spec.derived.get(row, {}).get(OF, row)
    trained, own = ([job for run in range(spec.runs) for job in folds_of(spec, each, run)] for each in (source, row))
    steps = [results[job]["ending"]["best_step"] for job in trained if results.get(job, {}).get("validation")]
    alphas = [results[job][ALPHA] for job in own if ALPHA in results.get(job, {})]
    if not steps:
        raise UserError(f"{row}: no run in {study.folder} was validated, so its training length is unknown")
    words = ["levelfield", "fit", "--config", str(folder / trained[0].path / CONFIG), "--data.fold", "none"]
    words += ["--name", folder.name, "--trainer.max_epochs", "-1"]
    words += ["--trainer.max_steps", str(max(1, median_low(steps)))]
    return words, median_low(alphas) if alphas else None
