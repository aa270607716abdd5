"""`levelfield study verify`: compute a study's numbers again from its stored files. Nothing is written."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import torch

from levelfield.analysis.data_here import data_here
from levelfield.analysis.integrity import NOT_ARCHIVED, changed_files, changed_scores
from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, summarise, to_csv
from levelfield.analysis.stored_embeddings import stored_embeddings
from levelfield.core.files import file_hash
from levelfield.core.ledger import EVALUATED, FINISHED, LEDGER, compare_copy, read_lines
from levelfield.study.folder import StudyFolder, scores_hash
from levelfield.study.jobs import EMBEDDINGS_FILE, RESULT, failed, folds_of, job_seed
from levelfield.study.same_study import changed_sources, differing_origins, kept_lines
from levelfield.study.state import StudyState
from levelfield.study.test_scores import ONE_PCA_KEY, score_folds
from levelfield.study.training_job import fixed_threads

# Differing lines of a table that are printed; the others are counted.
SHOWN_LINES = 5

Tests = dict[tuple[str, int], dict[str, Any]]


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
    spec, state, stored = study.spec, study.state, study.tests()
    problems = [*_settings(state), *_evaluations(study, stored), *compare_copy(study.folder)]
    problems += [f"{path}: {what}" for path, what in changed_files(study).items() if what != NOT_ARCHIVED]
    problems += [*changed_scores(study), *_changed_data(study, stored)]
    problems += [
        f"{row}: {', '.join(files)} has changed since it was computed" for row, files in changed_sources(study)
    ]
    with fixed_threads(spec.threads):
        recomputed = _recomputed(study, stored, problems)
    for each, tested in recomputed.items():
        problems += _differing_scores(study.test_file(*each).relative_to(study.folder), stored[each], tested)
    rows = collect_rows(study, {**stored, **recomputed})
    problems += _differing_lines(study.results_file, to_csv(rows, ResultRow))
    problems += _differing_lines(study.summary_file, to_csv(summarise(rows), SummaryRow))
    return problems


def remarks(study: StudyFolder) -> list[str]:
    """Notes that are not problems: kept rows, different or edited versions, and what was not compared."""
    no_data = ["not compared: the data set, which is not here"] if data_here(study) is None else []
    codes = [(result.get("provenance") or {}).get("code") or {} for result in study.state.results.values()]
    edited = sum(bool(code.get("modified")) for code in codes)
    unpacked = "not compared, because an archive does not have them: the weights, embeddings and logs of "
    return [
        *no_data,
        *([unpacked + ", ".join(sorted(study.archived))] if study.archived else []),
        *kept_lines(study),
        *differing_origins(study),
        *([f"{edited} of {len(codes)} jobs ran in a checkout with uncommitted changes"] if edited else []),
    ]


def _settings(state: StudyState) -> Iterator[str]:
    """Runs with another seed or other arguments than the study gives them."""
    for job, result in state.results.items():
        if result["seed"] != (seed := job_seed(state.spec, job)):
            yield f"{job.path}: seed {result['seed']} is stored, {seed} follows from the study"
        if job.stage != "run":
            continue
        best = state.chosen(job.method)
        parameters = {} if best is None else best.parameters
        if result["parameters"] != parameters:
            source = "no search" if best is None else f"trial {best.number}, the best"
            yield f"{job.path}: parameters {result['parameters']} are stored, {parameters} follow from {source}"


def _evaluations(study: StudyFolder, stored: Tests) -> Iterator[str]:
    """Checkpoints, results and scores that differ from their jobs' records or the ledger's last line."""
    lines = read_lines(study.ledger_file)
    last: Mapping[str, Any] = next((line for line in reversed(lines) if line["event"] == EVALUATED), {})
    if last and last["configuration"] != study.spec.configuration_hash():
        yield f"{LEDGER}: the last evaluation was of another configuration of the study"
    if not last and (found := sorted(study.folder.glob(f"jobs/*/run*/fold*/{EMBEDDINGS_FILE}"))):
        yield f"{LEDGER} has no evaluation, although there are embeddings of the test classes: {found[0]}"
    tested = set(study.state.tested_runs()) if last else set()
    for job, result in study.state.results.items():
        if job.stage != "run" or failed(result):
            continue
        path = study.checkpoint(job)
        found_hash = result["checkpoint"] if job.method in study.archived else file_hash(path)
        if found_hash != result["checkpoint"]:
            name = path.relative_to(study.folder)
            yield f"{name}: SHA-256 {found_hash} is found, {result['checkpoint']} is in its {RESULT}"
        there = last["checkpoints"].get(str(job.path)) if (job.method, job.number) in tested else result["checkpoint"]
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
    if study.archived >= {*study.spec.rows}:
        return
    results = [result for result in study.state.results.values() if result.get("data")]
    samples: dict[Literal["training", "test"], Any] = {"training": results, "test": stored.values()}
    halves = study.spec.halves
    for row in {half: row for row, half in halves.items()}.values():
        here = data_here(study, row)
        for which, found in samples.items() if here else ():
            prints = {each["data"]["fingerprint"] for each in found if halves[each["method"]] == halves[row]}
            if prints and prints != {now := here.dataset.fingerprint(here.half(which), again=True)}:
                yield f"the {which} samples here have the fingerprint {now}, the results {', '.join(sorted(prints))}"


def _recomputed(study: StudyFolder, stored: Tests, problems: list[str]) -> Tests:
    """Test scores of every run with usable embeddings; the others are added to `problems`."""
    found = {}
    for (method, run), tested in stored.items():
        if method in study.archived:
            continue
        folds = []
        for job in folds_of(study.spec, method, run):
            embedded = stored_embeddings(study, job, tested["evaluation"])
            if isinstance(embedded, str):
                problems.append(embedded)
            else:
                folds.append(embedded)
        if len(folds) == study.spec.folds:
            scored_on = str((tested["provenance"] or {}).get("device"))  # a GPU has other last bits
            device = "cuda" if scored_on.startswith("cuda") and torch.cuda.is_available() else "cpu"
            found[method, run] = score_folds(folds, study.distance_of(method), study.spec.metrics, device)
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
    """The first lines of a table that differ."""
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
