"""The test embeddings that an opening of the test classes has stored; nothing is embedded and nothing opened."""

from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError

from levelfield.study.jobs.job import EMBEDDINGS_FILE, RESULT, Job, folds_of
from levelfield.study.record import StudyRecord
from levelfield.study.sealed_test.scores import EmbeddedTest
from levelfield.study.tested import read_tests

SHOWN_RUN, SHOWN_FOLD = 0, 0


def stored_embeddings(record: StudyRecord, job: Job, opening: int) -> EmbeddedTest | str:
    """A job's test embeddings, or why they cannot be used."""
    path = job.path / EMBEDDINGS_FILE
    if job not in record.state.results:
        return f"{job.path}/{RESULT}: missing, though its run was tested; resume the study to do the job again"
    origin = {"checkpoint": record.state.results[job]["checkpoint"], "opening": str(opening)}
    try:
        embedded = EmbeddedTest.load(record.folder / path, origin)
    except SafetensorError as error:
        return f"{path}: damaged ({error})"
    if embedded is None:
        there = (record.folder / path).exists()
        return f"{path}: {'made from another checkpoint or in another opening' if there else 'missing'}"
    return embedded


def one_model_each(
    record: StudyRecord, tests: Mapping[tuple[str, int], dict[str, Any]] | None = None
) -> dict[str, EmbeddedTest]:
    """Row of the table to what its model of the first run and fold made of the test samples.

    Rows that were not tested or whose embeddings are not here are left out, and so is one of other samples than the
    first's.

    Args:
        tests: Test scores by method and run; None reads the stored ones, which the ledger must hold.

    Raises:
        UserError: a file is damaged, or the ledger does not hold its opening as it was.
    """
    tests = read_tests(record) if tests is None else tests
    found: dict[str, EmbeddedTest] = {}
    for method in record.spec.rows:
        tested = tests.get((method, SHOWN_RUN))
        if tested is None:
            continue
        job = folds_of(record.spec, method, SHOWN_RUN)[SHOWN_FOLD]
        embedded = stored_embeddings(record, job, tested["opening"])
        if isinstance(embedded, EmbeddedTest) and embedded.data == next(iter(found.values()), embedded).data:
            found[method] = embedded
    return found
