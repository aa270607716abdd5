"""How to train a method where nothing is validated, by what its trainings on the folds of a study chose."""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

from levelfield.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of

AVERAGE = "levelfield.training.callbacks.AverageWithStart"


class Training(NamedTuple):
    """A training on the whole training half.

    Attributes:
        steps: Its length, at least 1.
        alpha: Share of the trained weights for `AverageWithStart`; None where the study averages nothing.
    """

    steps: int
    alpha: float | None


def chosen_by_folds(study: StudyFolder, method: str) -> Training:
    """The lower median, over the folds of all runs, of the best step and of alpha.

    A median is a length, and an alpha, that a fold has validated, and one fold that is unlike the others does not move
    it. The most usual alpha of four folds would often be a tie.

    Raises:
        UserError: no training of the method has ended with a checkpoint that was validated.
    """
    results = study.state.results
    jobs = [job for run in range(study.spec.runs) for job in folds_of(study.spec, method, run)]
    endings = [results[job]["ending"] for job in jobs if results.get(job, {}).get("validation")]
    if not endings:
        raise UserError(f"{method}: no run of {study.folder} was validated, so that nothing says how long to train it")
    alphas = [ending["alpha"] for ending in endings if "alpha" in ending]
    return Training(
        max(1, median_low(ending["best_step"] for ending in endings)), median_low(alphas) if alphas else None
    )


def fixed(training: Training, callbacks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of `levelfield fit`, dotted key to value, that train so on the whole half.

    Args:
        callbacks: `trainer.callbacks` of a job's config.yaml.
    """
    options: dict[str, Any] = {"data.fold": "none", "trainer.max_epochs": -1, "trainer.max_steps": training.steps}
    if training.alpha is not None:
        alpha = {"class_path": AVERAGE, "init_args": {"alpha": training.alpha}}
        named = AVERAGE.rpartition(".")[2]
        options["trainer.callbacks"] = [
            alpha if each["class_path"].rpartition(".")[2] == named else dict(each) for each in callbacks
        ]
    return options
