"""Test embeddings stored by an evaluation; reads no sample and runs no model."""

from collections.abc import Mapping
from typing import Any

from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import EMBEDDINGS_FILE, RESULT, Job, folds_of
from levelfield.study.test_scores import EmbeddedTest

SHOWN_RUN, SHOWN_FOLD = 0, 0


def stored_embeddings(study: StudyFolder, job: Job, evaluation: str) -> EmbeddedTest | str:
    """A job's embeddings of the test classes in an evaluation, or why they are unusable."""
    path = job.path / EMBEDDINGS_FILE
    if job not in study.state.results:
        return f"{job.path}/{RESULT}: missing, though its run was tested; resume the study to repeat the job"
    origin = {"checkpoint": study.state.results[job]["checkpoint"], "evaluation": evaluation}
    embedded = EmbeddedTest.load(study.folder / path, origin)
    if embedded is not None:
        return embedded
    there = (study.folder / path).exists()
    return f"{path}: {'damaged, or of another checkpoint or evaluation' if there else 'missing'}"


def one_model_each(
    study: StudyFolder, tests: Mapping[tuple[str, int], dict[str, Any]] | None = None
) -> dict[str, EmbeddedTest]:
    """Row of the table to the test embeddings of its first run and fold.

    It leaves out rows without test scores or embeddings, and rows with other samples than the first row.

    Args:
        tests: Test scores by method and run; None reads the stored ones.

    Raises:
        UserError: a file is damaged, or its evaluation is not in the ledger.
    """
    tests = study.tests() if tests is None else tests
    found: dict[str, EmbeddedTest] = {}
    for method in study.spec.rows:
        tested = tests.get((method, SHOWN_RUN))
        if tested is None:
            continue
        job = folds_of(study.spec, method, SHOWN_RUN)[SHOWN_FOLD]
        embedded = stored_embeddings(study, job, tested["evaluation"])
        if isinstance(embedded, EmbeddedTest) and embedded.data == next(iter(found.values()), embedded).data:
            found[method] = embedded
    return found
