"""Whether a study's files and numbers are unchanged, and `levelfield study verify`: compute its numbers again.

Nothing is written.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, summarise, to_csv
from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.core.ledger import EVALUATED, FINISHED, LEDGER, read_lines
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.folder import StudyFolder, scores_hash
from levelfield.study.jobs import EMBEDDINGS_FILE, LOGS, METRICS_FILE, RESULT, failed, folds_of, job_seed
from levelfield.study.replicates import replicates_of
from levelfield.study.same_study import changed_sources, differing_origins

# Archives do not have the curves of the trainings.
NOT_ARCHIVED = "is in no archive"
SHOWN_LINES = 5  # differing lines of a table that are printed; the others are counted

Tests = dict[tuple[str, int], dict[str, Any]]


def changed_files(study: StudyFolder) -> dict[Path, str]:
    """Path in the folder to the problem, for each job's `config.yaml` or `metrics.csv` that changed or is missing."""
    found = {}
    for job, result in study.state.results.items():
        for name in LOGS:
            path = study.folder / job.path / name
            recorded = result.get("files", {}).get(name)
            # A short training without validation logs nothing.
            may_lack = name == METRICS_FILE and (not study.spec.trains(job.method) or not result.get("validation"))
            if not path.is_file():
                if recorded or not (failed(result) or may_lack):
                    found[job.path / name] = NOT_ARCHIVED if job.method in study.archived else "is missing"
            elif path.stat().st_size == 0:
                found[job.path / name] = "is empty"
            elif recorded and file_hash(path) != recorded:
                found[job.path / name] = "has changed since its job finished"
    return found


def validation_scores(metrics: Path, metric: str = SELECTED_BY) -> dict[int, float]:
    """Epoch, from 0, to the validation score in a job's `metrics.csv`.

    Args:
        metrics: The file.
        metric: MAP@R by default.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(metrics, newline="", encoding="utf-8") as file:
            column = f"val/{metric}"
            return {int(row["epoch"]): float(row[column]) for row in csv.DictReader(file) if row.get(column)}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UserError(
            f"{metrics} cannot be read ({error}); restore it from a copy, or delete its job's {RESULT} and resume"
        ) from None


def verify_study(study: StudyFolder) -> list[str]:
    """Compute the test scores and both tables again from the stored embeddings, and compare them with the stored ones.

    It checks each run's seed and setting (the one that the search chose), each checkpoint against its job's result and
    the ledger, the data and the sources of each row if they are here, each run's test scores against its embeddings and
    the ledger, and `results.csv` and `summary.csv` byte by byte. Another processor may change the last bits: a line
    prints both values. An archive has no embeddings and no checkpoints to compare.

    Returns:
        One line per problem; empty if everything matches.

    Raises:
        UserError: a result or the ledger is damaged, or the ledger misses an evaluation that has scores.
    """
    if study.spec.replicates > 1:
        found = [
            f"{part.folder.relative_to(study.folder)}: {each}"
            for part in replicates_of(study)
            for each in verify_study(part)
        ]
        return [*found, *_differing_tables(study, collect_rows(study))]
    stored, changed = study.tests(), changed_files(study)
    problems = [*_settings_and_curves(study, changed), *_evaluations(study, stored)]
    problems += [f"{path}: {what}" for path, what in changed.items() if what != NOT_ARCHIVED]
    problems += _changed_data(study, stored)
    problems += [
        f"{row}: {', '.join(files)} has changed since it was computed" for row, files in changed_sources(study)
    ]
    rows = collect_rows(study, {**stored, **_recomputed(study, stored, problems)})
    return [*problems, *_differing_tables(study, rows)]


def _differing_tables(study: StudyFolder, rows: Sequence[ResultRow]) -> Iterator[str]:
    """The first lines of the tables that differ."""
    tables = {study.results_file: to_csv(rows, ResultRow), study.summary_file: to_csv(summarise(rows), SummaryRow)}
    for path, recomputed in tables.items():
        if not path.exists():
            yield f"{path.name}: missing; `levelfield study report` writes it"
            continue
        before, now = (each.decode(errors="replace").split("\n") for each in (path.read_bytes(), recomputed))
        lines = enumerate(zip_longest(before, now, fillvalue="no line"), 1)
        differing = [(number, there, here) for number, (there, here) in lines if there != here]
        for number, there, here in differing[:SHOWN_LINES]:
            yield f"{path.name} line {number}: {there!r} is stored, {here!r} recomputed"
        if len(differing) > SHOWN_LINES:
            yield f"{path.name}: {len(differing) - SHOWN_LINES} more lines differ"


def remarks(study: StudyFolder) -> list[str]:
    """Notes that are not problems: different or edited versions, and what was not compared."""
    from levelfield.analysis.stored_embeddings import data_here

    lines = ["not compared: the data set, which is not here"] if data_here(study) is None else []
    if study.archived:
        unpacked = "not compared, because an archive does not have them: the weights, embeddings and logs of "
        lines.append(unpacked + ", ".join(sorted(study.archived)))
    codes = [(result.get("provenance") or {}).get("code") or {} for result in study.state.results.values()]
    edited = sum(bool(code.get("modified")) for code in codes)
    changed = [f"{edited} of {len(codes)} jobs ran in a checkout with uncommitted changes"] if edited else []
    return [*lines, *differing_origins(study), *changed]


def _settings_and_curves(study: StudyFolder, changed: Mapping[Path, str]) -> Iterator[str]:
    """Runs with another seed or other arguments than the study gives them, and scores that are not the curve's best."""
    spec, metric = study.spec, study.spec.selected_by
    for job, result in study.state.results.items():
        if result["seed"] != (seed := job_seed(spec, job)):
            yield f"{job.path}: seed {result['seed']} is stored, {seed} follows from the study"
        best = study.state.chosen(job.method)
        parameters = {} if best is None else best.parameters
        if job.stage == "run" and result["parameters"] != parameters:
            source = "no search" if best is None else f"trial {best.number}, the best"
            yield f"{job.path}: parameters {result['parameters']} are stored, {parameters} follow from {source}"
        curve = job.path / METRICS_FILE
        if curve not in changed and spec.trains(job.method) and not failed(result) and result["validation"]:
            scores = validation_scores(study.folder / curve, metric)
            stored, highest = result["validation"][metric], max(scores.values(), default=None)
            if highest != stored or scores.get(result["best_epoch"]) != stored:
                yield f"{job.path}: validation {metric} {stored} is stored, {highest} is the best in its {METRICS_FILE}"


def _evaluations(study: StudyFolder, stored: Tests) -> Iterator[str]:
    """Checkpoints, results and scores that differ from their jobs' records or the ledger's last line."""
    lines = read_lines(study.ledger_file)
    last: Mapping[str, Any] = next((line for line in reversed(lines) if line["event"] == EVALUATED), {})
    is_whole = stored.keys() >= {*study.state.tested_runs()}  # else a method or run waits for its evaluation
    if last and is_whole and last["configuration"] != study.spec.configuration_hash():
        yield f"{LEDGER}: the last evaluation was of another configuration of the study"
    if not last and (found := sorted(study.folder.glob(f"jobs/*/run*/fold*/{EMBEDDINGS_FILE}"))):
        yield f"{LEDGER} has no evaluation, although there are embeddings of the test classes: {found[0]}"
    for job, result in study.state.results.items():
        if job.stage != "run" or failed(result):
            continue
        path = study.checkpoint(job)
        found_hash = result["checkpoint"] if job.method in study.archived else file_hash(path)
        if found_hash != result["checkpoint"]:
            name = path.relative_to(study.folder)
            yield f"{name}: SHA-256 {found_hash} is found, {result['checkpoint']} is in its {RESULT}"
        there = last["checkpoints"].get(str(job.path)) if (job.method, job.number) in stored else result["checkpoint"]
        if there != result["checkpoint"]:
            yield f"{job.path}: checkpoint {result['checkpoint']} is in {RESULT}, {there} in {LEDGER}"
    now = study.result_hashes() if last else {}
    for row, there in last.get("results", {}).items():
        if now.get(row) != there:
            yield f"{row}: a {RESULT} of its jobs has changed since the last evaluation in {LEDGER}"
    ended = next((line for line in lines if (line["event"], line["id"]) == (FINISHED, last.get("id"))), None)
    for each, test in stored.items() if ended is not None else ():
        file = study.test_file(*each).relative_to(study.folder)
        if ended is not None and ended["scores"].get(str(file)) != scores_hash(test):
            yield f"{file}: the scores are not those that {LEDGER} holds"


def _changed_data(study: StudyFolder, stored: Tests) -> Iterator[str]:
    """Data on this machine that differ from the data of the results; it reads every file again."""
    from levelfield.analysis.stored_embeddings import data_here

    if study.archived >= {*study.spec.rows}:
        return
    results = [result for result in study.state.results.values() if result.get("data")]
    samples: dict[Literal["training", "test"], Any] = {"training": results, "test": stored.values()}
    halves = study.spec.halves
    for row in {half: row for row, half in halves.items()}.values():
        if (here := data_here(study, row)) is None:
            continue
        for which, found in samples.items():
            prints = {each["data"]["fingerprint"] for each in found if halves[each["method"]] == halves[row]}
            if prints and prints != {now := here.dataset.fingerprint(here.half(which), again=True)}:
                yield f"the {which} samples here have the fingerprint {now}, the results {', '.join(sorted(prints))}"


def _recomputed(study: StudyFolder, stored: Tests, problems: list[str]) -> Tests:
    """Test scores of every run with usable embeddings; the others are added to `problems`."""
    import torch  # which `study status` and the page do not need

    from levelfield.analysis.stored_embeddings import stored_embeddings
    from levelfield.study.test_scores import score_folds
    from levelfield.study.training_job import fixed_threads

    found = {}
    for (method, run), tested in stored.items():
        if method in study.archived:
            continue
        folds = [stored_embeddings(study, job, tested["evaluation"]) for job in folds_of(study.spec, method, run)]
        usable = [each for each in folds if not isinstance(each, str)]
        problems += [each for each in folds if isinstance(each, str)]
        if len(usable) == len(folds):
            scored_on = str((tested["provenance"] or {}).get("device"))  # a GPU has other last bits
            device = "cuda" if scored_on.startswith("cuda") and torch.cuda.is_available() else "cpu"
            with fixed_threads(study.spec.threads):
                found[method, run] = score_folds(usable, study.distance_of(method), study.spec.metrics, device)
    return found
