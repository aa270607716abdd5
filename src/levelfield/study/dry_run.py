"""`--dry-run`: print the jobs of a study without building, reading or training anything."""

from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelfield.core.terminal import say
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import study_jobs
from levelfield.study.spec import is_baseline


def print_jobs(console: Console, study: StudyFolder) -> None:
    """Print one line per row with the jobs of its search and runs, and how many are finished."""
    spec = study.spec
    jobs = study_jobs(spec)
    table = Table(title=Text(spec.name), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("trials\nx folds", "runs\nx folds", "jobs", "done"):
        table.add_column(heading, justify="right", vertical="bottom")
    of_row, stored = (Counter(job.method for job in each) for each in (jobs, study.stored))
    for row in spec.rows:
        trials, runs = spec.trials(row), 1 if is_baseline(row) else spec.runs
        searched = f"{trials:,} x {spec.folds_of('trial')}" if trials else ""
        table.add_row(Text(row), searched, f"{runs:,} x {spec.folds}", f"{of_row[row]:,}", f"{stored[row]:,}")
    console.print(table)
    untrained = sum(is_baseline(job.method) for job in jobs)
    in_search = sum(job.stage == "trial" for job in jobs)
    runs_in_all = len(jobs) - untrained - in_search
    each = f"in each of {spec.replicates} replicates " * (spec.replicates > 1)
    lines = [
        f"{len(jobs):,} jobs {each}in {study.folder}: {in_search:,} trainings in the search, {runs_in_all:,} in "
        f"the runs, {untrained} fits of the untrained rows"
    ]
    if unsearched := [row for row in spec.methods if spec.search.trials and not spec.trials(row)]:
        lines.append(f"trained without a search, because they have no search space: {', '.join(unsearched)}")
    say(*lines, console=console)
