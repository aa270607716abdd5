"""`Study`: the Python interface of `levelfield study`."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console

from levelfield.analysis.results import ResultRow, SummaryRow, as_frame, collect_rows, summarise, write_tables
from levelfield.analysis.status import status_lines
from levelfield.analysis.verdict import verdict_lines
from levelfield.analysis.verify import verify_study
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.report.figures import write_figures
from levelfield.report.page import write_report
from levelfield.report.table import StudyTable, paper_table, study_table
from levelfield.report.tracked_summary import track_summary
from levelfield.study.archive import SUFFIX, write_archive
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import study_jobs
from levelfield.study.methods import added_methods
from levelfield.study.replicates import FOLDER as REPLICATES
from levelfield.study.replicates import run_replicates
from levelfield.study.rows import find_study, load_spec, with_options
from levelfield.study.spec import STUDY, StudySpec

if TYPE_CHECKING:
    import pandas as pd

    from levelfield.study.run import Replan


class Study:
    """A comparison of methods under equal conditions.

    `run` does the same as `levelfield study run`. Everything else reads the current folder of the study, also while
    another process runs it. A mistake is a `UserError` of one line.

    Args:
        study: The name of a shipped study, the path of a study file, or the folder of a study.
        output: Folder of the study; `outputs/<name>` by default.
        options: Dotted settings for all methods (`{"trainer.max_epochs": 2}`) and of the study itself (`{"runs": 3}`).
        add_methods: Methods to add to the study: a loss (`my_loss.MyLoss`, `ArcFaceLoss`), a method of
            `configs/method` (`ntxent_koleo`) or a file (`my_method.yaml`).

    Attributes:
        folder: Folder of the study.
        file: The study file; None if `study` is a folder.
        asked: The study with these arguments; its folder may have more methods (`record`).

    Raises:
        UserError: no such study, or a wrong option or method.
    """

    def __init__(
        self,
        study: str | Path,
        *,
        output: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        add_methods: Sequence[str] = (),
    ) -> None:
        added, folder = added_methods(list(add_methods)), Path(study)
        self.file = None if (folder / STUDY).is_file() else find_study(str(study))
        if self.file is None:
            if output is not None or added:
                given = "--add-method" if output is None else f"--output {output}"
                raise UserError(f"{given}: {folder} is the folder of a study; give its file, or leave the option out")
            spec = with_options(StudySpec.read(folder / STUDY), options or {})
        else:
            spec = load_spec(self.file, options, added)
            folder = Path("outputs", spec.name) if output is None else Path(output)
            if output is None and (spec.name in ("", "..") or Path(spec.name).name != spec.name):
                raise UserError(f"name: {spec.name!r} is no name of a folder; choose another, or give --output DIR")
        if folder.is_file():
            raise UserError(f"{folder} is a file, not a folder; give another --output")
        self.folder, self.asked = folder, StudyFolder(folder, spec)

    def __repr__(self) -> str:
        spec = self.asked.spec
        trials = f"{spec.search.trials} trial{'s' * (spec.search.trials != 1)} of each, " if spec.search.trials else ""
        folds = "the whole training half" if spec.whole_half else f"{spec.folds} folds"
        unsearched = [name for name in spec.methods if spec.search.trials and not spec.trials(name)]
        why = "trained without a search, because they have no search space"
        return (
            f"{spec.name}: pretrained baseline and {', '.join(spec.methods)}; {trials}{folds}, {spec.runs} "
            f"run{'s' * (spec.runs != 1)}, {len(study_jobs(spec))} jobs "
            f"{f'in each of {spec.replicates} replicates ' * (spec.replicates > 1)}in {self.folder}"
        ) + (f"\n{why}: {', '.join(unsearched)} (docs/losses.md)" if unsearched else "")

    def record(self) -> StudyFolder:
        """The current folder of the study.

        Raises:
            UserError: the study has not begun.
        """
        return StudyFolder.begun(self.folder)

    def run(
        self,
        workers: int | Literal["auto"] | None = 1,
        executor: str = "local",
        *,
        options: Mapping[str, Any] = MappingProxyType({}),
        recompute: Collection[str] = (),
        reopen_test: str | None = None,
        stop_here: bool = False,
        console: Console | None = None,
        debug: bool = False,
        replan: "Replan | None" = None,
    ) -> Self:
        """Run all remaining jobs, score the runs on the test classes, and write `results.csv` and `summary.csv`.

        A study with replicates runs one after the other, and writes tables of each and of all. Returns the study.

        Args:
            workers: Parallel jobs, `--executor.workers`. With `local`, 1 means this process; None takes the executor's
                default.
            executor: Where jobs run, as in `--executor`: `local`, `ray` or the import path of a class.
            options: Other options of the executor: `{"cpus": 2}` for `--executor.cpus 2`.
            recompute: Methods to compute again if their results are stale.
            reopen_test: The reason for scoring the runs on the test classes again; it is recorded and shown.
            stop_here: Run no job, and score the complete runs, also if others failed.
            debug: Whether to show the traceback of an error in your own class.
            replan: Called after each job until it returns another number of folds (`levelfield.study.run`).

        Raises:
            UserError: another process runs the study, the folder has another study, a setting, the data or a result is
                wrong, or runs failed.
        """
        from levelfield.study.executors import make_slots
        from levelfield.study.run import run_study

        given = dict(options) if workers is None else {**options, "workers": workers}
        how: Any = {"recompute": recompute, "reopen_test": reopen_test, "stop_here": stop_here}
        how |= {"debug": debug, "replan": replan}

        def run(study: StudyFolder) -> StudyFolder:
            study = run_study(study, make_slots(study.spec, executor, given), console, **how)
            write_tables(study)
            return study

        self.asked = run_replicates(self.asked, run, console)
        write_tables(self.asked)
        track_summary(self.asked)
        return self

    def table(self) -> StudyTable:
        """The separated test scores so far, with the best method and whether training pays in sentences."""
        return study_table(self.record())

    def verdicts(self) -> list[str]:
        """The significant differences in separated MAP@R, one sentence each; the page has all metrics and all pairs."""
        study = self.record()
        return verdict_lines(collect_rows(study), study.spec)

    @property
    def results(self) -> "pd.DataFrame":
        """All scores so far, as in `results.csv`."""
        return as_frame(collect_rows(self.record()), ResultRow)

    @property
    def summary(self) -> "pd.DataFrame":
        """Mean and interval of each test score, as in `summary.csv`."""
        return as_frame(summarise(collect_rows(self.record())), SummaryRow)

    def report(self) -> Path:
        """Write `results.csv`, `summary.csv` and the page with its figures, and return the page's path."""
        study = self.record()
        write_tables(study)
        return write_report(study)

    def figures(self, folder: str | Path) -> list[Path]:
        """Write the figures as SVG and PDF, with one width and font, and the table, for a paper; return the paths."""
        tables = {Path(folder, f"table.{end}"): markup for markup, end in (("latex", "tex"), ("markdown", "md"))}
        figures = write_figures(self.record(), Path(folder))
        for file, markup in tables.items():
            write_atomically(file, paper_table(self.record(), markup).encode())
        return [*figures, *tables]

    def status(self) -> list[str]:
        """The state of the study, one fact per line."""
        return status_lines(self.record())

    def archive(self, file: str | Path | None = None) -> Path:
        """Pack the results and tables of a finished study into one small file; returns its path.

        Args:
            file: The archive; by default next to the folder: `outputs/smoke.tar.xz` for `outputs/smoke`.

        Raises:
            UserError: the study is not finished, or a table is missing.
        """
        if self.asked.spec.replicates > 1:
            raise UserError(f"{self.folder}: archive its replicates one by one: {self.folder / REPLICATES}/0, ...")
        return write_archive(self.record(), Path(file or f"{self.folder}{SUFFIX}"))

    def verify(self) -> list[str]:
        """Compute the tables again from the stored embeddings; returns the problems, empty if everything matches."""
        return verify_study(self.record())
