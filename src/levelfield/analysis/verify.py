"""`levelfield study verify`: does everything a study says follow from what it stored? Nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, summarise, to_csv
from levelfield.analysis.stored_embeddings import stored_embeddings
from levelfield.storage.file_hash import file_hash
from levelfield.storage.ledger import LEDGER
from levelfield.study.environment import mixed_lines
from levelfield.study.execution.worker import fixed_threads
from levelfield.study.integrity import NOT_ARCHIVED, changed_files, changed_scores, result_hashes
from levelfield.study.jobs.job import RESULT, failed, folds_of, job_seed
from levelfield.study.jobs.state import StudyState
from levelfield.study.record import StudyRecord
from levelfield.study.same_study import changed_code
from levelfield.study.sealed_test.scores import score_run
from levelfield.study.tested import ONE_PCA_KEY, check_ledger, distance_of, read_tests, tested_path

# Differing lines of a table that are shown; the others are counted.
SHOWN_LINES = 5

Tests = dict[tuple[str, int], dict[str, Any]]


def verify_study(record: StudyRecord) -> list[str]:
    """Compute the test scores and both tables again from the stored embeddings, and compare all that is stored.

    Checked are each run's seed and setting (the one that its method's search selected), each checkpoint against its
    job's result and the ledger, each run's test scores against those of its embeddings, and `results.csv` and
    `summary.csv` byte by byte. Another processor may give other last bits; a difference is shown with both values.

    Returns:
        One line a problem; none where everything matches.

    Raises:
        UserError: a result is damaged, or the ledger damaged, edited or missing.
    """
    check_ledger(record)
    spec, state, openings = record.spec, record.state, record.ledger.openings
    problems = [*_settings(state), *_checkpoints(record, openings)]
    problems += [f"{path}: {what}" for path, what in changed_files(record).items() if what != NOT_ARCHIVED]
    problems += [*changed_scores(record), *_changed_results(state, openings)]
    problems += [f"{line} Nobody has allowed it." for line in mixed_lines(record, allowed=False)]
    problems += [
        f"{change.file}: {change.method} was computed with another one ({change})"
        for change in changed_code(spec, spec.with_own_code())
        if None not in (change.before, change.now)
    ]
    stored = read_tests(record)
    with fixed_threads(spec.threads):
        recomputed = _recomputed(record, stored, problems)
    for (method, run), tested in recomputed.items():
        problems += _differing_scores(tested_path(method, run), stored[method, run], tested)
    rows = collect_rows(record, {**stored, **recomputed})
    problems += _differing_lines(record.results_file, to_csv(rows, ResultRow))
    problems += _differing_lines(record.summary_file, to_csv(summarise(rows), SummaryRow))
    return problems


def remarks(record: StudyRecord) -> list[str]:
    """What a reader should know though it is no mistake: versions that may mix, and what cannot be compared."""
    changes = changed_code(record.spec, record.spec.with_own_code())
    unpacked = "not compared, for an archive has none: the weights, embeddings and logs of "
    return [
        *([unpacked + ", ".join(sorted(record.archived))] if record.archived else []),
        *mixed_lines(record, allowed=True),
        *(f"not compared: {c.file}, which {c.method} uses ({c})" for c in changes if None in (c.before, c.now)),
    ]


def _settings(state: StudyState) -> Iterator[str]:
    """Runs whose seed or arguments are not those that follow from the study."""
    for job, result in state.results.items():
        if result["seed"] != (seed := job_seed(state.spec.seed, job)):
            yield f"{job.path}: seed {result['seed']} is stored, {seed} follows from the study"
        if job.stage != "run":
            continue
        best = state.chosen(job.method)
        parameters = {} if best is None else best.parameters
        if result["parameters"] != parameters:
            source = "no search" if best is None else f"trial {best.number}, the best"
            yield f"{job.path}: parameters {result['parameters']} are stored, {parameters} follow from {source}"


def _checkpoints(record: StudyRecord, openings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Checkpoints that are not what the job wrote, or not what the last opening of the test classes tested."""
    tested = openings[-1]["checkpoints"] if openings else {}
    if openings and openings[-1]["configuration"] != record.spec.configuration_hash():
        yield f"{LEDGER}: opening {openings[-1]['opening']} was of another configuration of the study"
    for job, result in record.state.results.items():
        if job.stage != "run" or failed(result):
            continue
        archived = job.method in record.archived
        found = result["checkpoint"] if archived else file_hash(record.folder / job.checkpoint)
        if found != result["checkpoint"]:
            yield f"{job.checkpoint}: SHA-256 {found} is found, {result['checkpoint']} is in its result.json"
        if openings and (there := tested.get(str(job.path))) != result["checkpoint"]:
            yield f"{job.path}: checkpoint {result['checkpoint']} is in result.json, {there} in {LEDGER}"


def _changed_results(state: StudyState, openings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Methods whose jobs' results are not those that the ledger holds of the last opening."""
    if openings:
        now = result_hashes(state)
        for method, there in openings[-1].get("results", {}).items():
            if now.get(method) != there:
                yield f"jobs/{method}: a {RESULT} has changed since opening {openings[-1]['opening']} in {LEDGER}"


def _recomputed(record: StudyRecord, stored: Tests, problems: list[str]) -> Tests:
    """Test scores of every run whose embeddings can be used; `problems` grows by those that cannot."""
    found = {}
    for (method, run), tested in stored.items():
        if method in record.archived:
            continue
        folds = []
        for job in folds_of(record.spec, method, run):
            embedded = stored_embeddings(record, job, tested["opening"])
            if isinstance(embedded, str):
                problems.append(embedded)
            else:
                folds.append(embedded)
        if len(folds) == record.spec.folds:
            found[method, run] = score_run(folds, distance_of(record, method), record.spec.metrics)
    return found


def _differing_scores(path: Path, stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> Iterator[str]:
    folds: Any = zip_longest(stored["separated"], recomputed["separated"], fillvalue={})
    for fold, (before, now) in enumerate(folds):
        yield from _differing(f"{path}: fold {fold}", before, now)
    yield from _differing(f"{path}: concatenated", stored["concatenated"], recomputed["concatenated"])
    yield from _differing(f"{path}: {ONE_PCA_KEY}", stored.get(ONE_PCA_KEY, {}), recomputed.get(ONE_PCA_KEY, {}))


def _differing(place: str, stored: Mapping[str, float], recomputed: Mapping[str, float]) -> Iterator[str]:
    for metric, value in recomputed.items():
        if stored.get(metric) != value:
            yield f"{place} {metric}: {stored.get(metric)} is stored, {value} recomputed"


def _differing_lines(path: Path, recomputed: bytes) -> Iterator[str]:
    """The first lines of a table that are not what they should be."""
    if not path.exists():
        yield f"{path.name}: missing; `levelfield study report` writes it"
        return
    stored = path.read_bytes()
    if stored == recomputed:
        return
    before, now = stored.decode(errors="replace").split("\n"), recomputed.decode().split("\n")
    length = max(len(before), len(now))
    before, now = (lines + ["no line"] * (length - len(lines)) for lines in (before, now))
    differing = [number for number in range(length) if before[number] != now[number]]
    for number in differing[:SHOWN_LINES]:
        yield f"{path.name} line {number + 1}: {before[number]!r} is stored, {now[number]!r} recomputed"
    if len(differing) > SHOWN_LINES:
        yield f"{path.name}: {len(differing) - SHOWN_LINES} more lines differ"
