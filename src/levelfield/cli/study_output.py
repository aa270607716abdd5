"""What `levelfield study` does and prints once its words are read."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from levelfield.analysis.results import ResultRow, summarise, write_tables
from levelfield.analysis.selection import selected
from levelfield.analysis.statistics import SMALLEST_SAMPLE
from levelfield.report.page import write_report
from levelfield.report.table import comparison_table, footnotes, print_report
from levelfield.runtime.signals import Stopped
from levelfield.study.definition.conditions import differing_conditions
from levelfield.study.definition.spec import BASELINE, StudySpec
from levelfield.study.environment import mixed_lines
from levelfield.study.execution.executor import Executor
from levelfield.study.integrity import changed_files, gap_lines
from levelfield.study.jobs.job import study_jobs
from levelfield.study.record import StudyRecord


def verify(console: Console, record: StudyRecord) -> int:
    from levelfield.analysis.verify import remarks, verify_study

    problems = verify_study(record)
    follow = "results.csv and summary.csv follow from the stored embeddings and results, to the last bit"
    print_lines(console, [*(problems or [f"{record.folder}: {follow}"]), *remarks(record)])
    return 2 if problems else 0


def run(
    console: Console,
    record: StudyRecord,
    executor: Executor,
    arguments: argparse.Namespace,
) -> int:
    from levelfield.study.run import run_study  # torch is not needed to say that an option is misspelt

    spec = record.spec
    trials = f"{spec.search.trials} trial{'s' * (spec.search.trials != 1)} of each, " if spec.search.trials else ""
    print_lines(
        console,
        [
            f"{spec.name}: pretrained baseline and {', '.join(spec.methods)}; {trials}{spec.folds} folds, {spec.runs} "
            f"run{'s' * (spec.runs != 1)}, {len(study_jobs(spec))} jobs in {record.folder}",
            *_unsearched(spec),
        ],
    )
    try:
        ended = run_study(
            record,
            console,
            arguments.reopen_test,
            executor,
            arguments.mixed_versions,
            arguments.test_without_failed_runs,
        )
    except (KeyboardInterrupt, Stopped) as stop:
        state = record.read_again()
        words = ["levelfield", "study", "resume", str(record.folder)]
        words += ["--reopen-test", arguments.reopen_test] if arguments.reopen_test else []
        words += ["--test-without-failed-runs"] if arguments.test_without_failed_runs else []
        words += executor.words()
        print(
            f"stopped with {len(state.results)} of {len(state.jobs)} jobs done; go on with: {shlex.join(words)}",
            file=sys.stderr,
        )
        if isinstance(stop, Stopped):
            raise  # the command line says by which signal, and has SLURM requeue the job
        return 130
    print_study(console, ended, write_tables(ended))
    if not arguments.add_method and not Path(arguments.file).is_dir():
        again = shlex.join(["levelfield", "study", "run", arguments.file, "--add-method", "my_loss.MyLoss"])
        print_lines(console, [f"next: your own loss beside these: {again}"])
    return 0


def _unsearched(spec: StudySpec) -> list[str]:
    names = [name for name in spec.methods if not spec.trials(name)] if spec.search.trials else []
    return (
        [f"trained as they are, for nothing says what to search: {', '.join(names)} (docs/losses.md)"] if names else []
    )


def print_lines(console: Console, lines: Sequence[str]) -> None:
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def print_study(console: Console, record: StudyRecord, rows: Sequence[ResultRow]) -> None:
    """The comparison table with what must be said beside it, and where the numbers lie."""
    spec = record.spec
    openings = [entry["reason"] for entry in record.ledger.openings]
    table = comparison_table(spec.name, [BASELINE, *spec.methods], summarise(rows), summarise(rows, stage="run"))
    notes = footnotes(spec.runs, spec.folds, openings, differing_conditions(spec))
    print_report(console, table, [*notes, *mixed_lines(record), *gap_lines(changed_files(record))])
    places = f"{record.results_file}, {record.summary_file}, {write_report(record)}"
    print_lines(console, [*_search_lines(record), *_verdict_lines(spec, rows), places])


def _verdict_lines(spec: StudySpec, rows: Sequence[ResultRow]) -> list[str]:
    """What the paired comparisons of separated MAP@R say; the page has the other metrics and every interval."""
    from levelfield.analysis.comparison import (  # numpy and scipy, which `status` can spare
        PAIR,
        SECOND_SEARCH,
        compare_all,
    )
    from levelfield.analysis.verdicts import CAVEAT, all_in_words

    comparisons = compare_all(rows, list(spec.methods))
    sentences = dict(zip(comparisons, all_in_words(comparisons), strict=True))
    pairs = [comparison for comparison in comparisons if comparison.kind == PAIR]
    shown = [sentences[comparison] for comparison in pairs if comparison.shown]
    lines = [*shown, *(sentences[comparison] for comparison in comparisons if comparison.kind == SECOND_SEARCH)]
    if spec.runs >= SMALLEST_SAMPLE and len(pairs) > len(shown):
        lines.append(f"No difference shown between {len(pairs) - len(shown)} of {len(pairs)} pairs of methods.")
    return [*lines, CAVEAT] if lines else []


def _search_lines(record: StudyRecord) -> list[str]:
    """What each method's search found, failed at or ran into, and the runs that failed."""
    lines, spec, state = [], record.spec, record.state
    for method, selection in selected(record).items():
        if selection.trial is not None:
            setting = ", ".join(f"{key.rpartition('.')[2]} {value:.4g}" for key, value in selection.parameters.items())
            lines.append(f"{method}: best of {spec.trials(method)} trials is number {selection.trial}: {setting}")
        lines += [f"{method}: {sentence}" for sentence in (*selection.advice, *selection.failures)]
    lines += [f"{method}: no trial had a score, so it has no runs" for method in state.without_setting()]
    return [
        *lines,
        *(f"{job} failed and is left out with its run: {why}" for job, why in state.failures("run").items()),
    ]
