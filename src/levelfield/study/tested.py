"""The test scores that a study has stored, each of an opening that the ledger holds."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.metrics.table import COLLAPSED_RANK
from levelfield.study.definition.configuration import Config
from levelfield.study.definition.spec import StudySpec, digest, is_baseline
from levelfield.study.definition.sweep import OF_THE_TEST
from levelfield.study.jobs.job import (
    EMBEDDINGS_FILE,
    RESULT,
    Job,
    check_whole,
    job_config,
    job_hash,
    method_runs,
    read_result,
)
from levelfield.study.record import StudyRecord

# In a baseline's test scores: those of its concatenated embedding by one PCA, beside the folds' PCAs side by side.
ONE_PCA_KEY = "one_pca"
# The effective rank of each fold's embeddings.
RANKS_KEY = "effective_rank"


def tested_path(method: str, run: int) -> Path:
    """Where the test scores of one run of a method are, relative to the study folder."""
    return Job(method, "run", run, 0).path.with_name("test") / RESULT


def tested_hash(spec: StudySpec, method: str, run: int) -> str:
    """What the test scores of one run depend on besides its checkpoints."""
    job = job_hash(spec, Job(method, "run", run, 0))
    return digest([job, spec.metrics]) if spec.metrics else job


def tested_config(record: StudyRecord, method: str) -> Config:
    """A row's configuration as its test has it: that of its runs, with what their search chose."""
    trained = record.spec.trained_as.get(method, method)
    is_searched = not is_baseline(trained) and record.spec.trials(trained) > 0
    chosen = record.state.chosen(trained) if is_searched else None
    found = {} if chosen is None else chosen.parameters
    if trained != method:  # which has its own of these
        found = {key: value for key, value in found.items() if key not in OF_THE_TEST}
    return job_config(record.spec, Job(method, "run", 0, 0), found)


def distance_of(record: StudyRecord, method: str) -> str:
    """By what a row's neighbours are ranked."""
    if is_baseline(method) and method not in record.spec.methods:
        return "cosine"
    return tested_config(record, method)["model"].get("distance", "cosine")


def read_test(record: StudyRecord, method: str, run: int) -> dict[str, Any] | None:
    """The test scores of one run of a method, None before they exist.

    Raises:
        UserError: the file is damaged or of another configuration.
    """
    path = record.folder / tested_path(method, run)
    result = read_result(path)
    if result is None:
        return None
    check_whole(path, result, ("opening", "ledger", "separated", "concatenated"))
    if result["configuration"] != tested_hash(record.spec, method, run):
        raise UserError(f"{path} is of another configuration; delete it and resume to test this run again")
    return result


def read_tests(record: StudyRecord) -> dict[tuple[str, int], dict[str, Any]]:
    """Test scores by method and run, those of the latest opening of the test classes.

    Raises:
        UserError: a file is damaged, or the ledger does not hold its opening as it was.
    """
    found = {(method, run): read_test(record, method, run) for method, run in method_runs(record.spec)}
    tests = {key: test for key, test in found.items() if test is not None}
    for (method, run), test in tests.items():
        record.ledger.check_scored(record.folder / tested_path(method, run), test["opening"], test["ledger"])
    latest = max((test["opening"] for test in tests.values()), default=0)
    return {key: test for key, test in tests.items() if test["opening"] == latest}


def collapsed(record: StudyRecord) -> dict[str, str]:
    """Of the rows whose test embeddings have collapsed: how many of them, in a sentence."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for (method, _), test in read_tests(record).items():
        ranks[method] += test.get(RANKS_KEY, [])
    found = {method: sum(rank < COLLAPSED_RANK for rank in each) for method, each in ranks.items()}
    return {
        method: f"COLLAPSED: {method}: nearly all test embeddings of {number} of {len(ranks[method])} models lie on "
        f"one line (effective rank below {COLLAPSED_RANK})."
        for method, number in found.items()
        if number
    }


def check_ledger(record: StudyRecord) -> None:
    """Refuse a study whose test classes were opened and whose ledger does not say so.

    Raises:
        UserError: the ledger is missing or was edited, or a file is damaged.
    """
    read_tests(record)
    if not record.ledger.openings:
        for path in sorted(record.folder.glob(f"jobs/*/run*/fold*/{EMBEDDINGS_FILE}")):
            record.ledger.check_scored(path, 1, None)
