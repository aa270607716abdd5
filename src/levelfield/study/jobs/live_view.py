"""A study on a terminal: methods by stages as bars, the best so far, what runs, and what failed in red."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from levelfield.study.jobs.standing import MethodStanding, StageStanding

TITLES = {"trial": "search", "final": "second look", "run": "runs"}
# Lines that are no method's, and failures that are shown, the last ones.
OTHER_LINES, MOST_FAILURES = 8, 4
# Columns: between two, of a bar, and of the best score with some of its setting.
GAP, LEAST_WIDTH, MOST_WIDTH, BEST_WIDTH = 2, 4, 20, 24


@dataclass
class Doing:
    """A job that runs, with its steps where they are known."""

    title: str
    done: int = 0
    total: int = 0
    note: str = ""


class StudyView:
    """What is shown of a study; drawn anew at each refresh, as large as the terminal is then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.note = ""
        self.methods: Sequence[MethodStanding] = ()
        self.doing: Sequence[Doing] = ()
        self.failures: Mapping[str, str] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        failures = list(self.failures.items())[-MOST_FAILURES:]
        room = max(console.height - OTHER_LINES - len(self.doing) - len(failures), 1)
        stages = [stage for each in self.methods for stage in each.stages.values()]
        whole = StageStanding(*(sum(getattr(stage, key) for stage in stages) for key in ("jobs", "done", "failed")))
        yield _row(
            [
                _cut(self.name, "bold"),
                _bar(whole, MOST_WIDTH),
                _number(whole),
                Text(self.note),
            ]
        )
        yield from self._table(room, options.max_width)
        for doing in self.doing:
            steps = StageStanding(doing.total, doing.done)
            yield _row(
                [
                    _cut(doing.title),
                    _bar(steps, MOST_WIDTH // 2),
                    _number(steps),
                    Text(doing.note),
                ]
            )
        for title, why in failures:
            yield _cut(f"{title}: failed, {why}", "red")

    def _table(self, room: int, width: int) -> RenderResult:
        """The methods; of more than there is room for those that are not done, first."""
        shown = sorted(self.methods, key=_is_done)[:room] if len(self.methods) > room else self.methods
        if not shown:
            return
        stages = [stage for stage in TITLES if any(stage in each.stages for each in self.methods)]
        rows = [[_number(each.stages.get(stage, StageStanding())) for stage in stages] for each in shown]
        titled = zip(stages, *rows, strict=True)
        columns = [max(len(TITLES[stage]), *map(len, column)) for stage, *column in titled]
        names = min(max(len(each.method) for each in shown), width // 4)
        # What names and numbers leave is the bars', but for a place for the best score and some of its setting.
        bar = (width - names - sum(columns) - GAP * (2 * len(stages) + 1) - BEST_WIDTH) // len(stages)
        bar = min(bar, MOST_WIDTH) if bar >= LEAST_WIDTH else 0
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(no_wrap=True, overflow="ellipsis", width=names)
        for column in columns:
            for each_width in ([bar] if bar else []) + [column]:
                table.add_column(no_wrap=True, width=each_width)
        table.add_column()  # the one that gives way
        titles = [cell for stage in stages for cell in ([""] if bar else []) + [TITLES[stage]]]
        table.add_row("", *(Text(title, style="dim") for title in [*titles, "best MAP@R so far"]))
        for each, numbers in zip(shown, rows, strict=True):
            bars = [_bar(each.stages.get(stage, StageStanding()), bar) for stage in stages]
            cells = [cell for pair in zip(bars, numbers, strict=True) for cell in (pair if bar else pair[1:])]
            table.add_row(Text(each.method), *cells, _cut(_best(each)))
        yield table
        if len(shown) < len(self.methods):
            yield Text(f"and {len(self.methods) - len(shown)} more", style="dim")


def _cut(text: str, style: str = "") -> Text:
    """A text that is cut off where there is no room for it."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _row(cells: Sequence[Any]) -> Table:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for cell in cells:
        grid.add_column(no_wrap=cell is not cells[0])
    grid.add_row(*cells)
    return grid


def _bar(stage: StageStanding, width: int) -> Any:
    """A bar; nothing for a stage without a job."""
    return ProgressBar(total=stage.jobs, completed=stage.done, width=width) if stage.jobs else ""


def _number(stage: StageStanding) -> Text:
    number = Text(f"{stage.done}/{stage.jobs}" if stage.jobs else "")
    if stage.failed:
        number.append(f" {stage.failed} failed", style="red")
    return number


def _best(each: MethodStanding) -> str:
    if each.best is None:
        return ""
    said = (f"{key.rpartition('.')[2]} {_said(value)}" for key, value in each.setting.items())
    return f"{100 * each.best:.1f}  {', '.join(said)}".rstrip()


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _is_done(each: MethodStanding) -> bool:
    return all(stage.done == stage.jobs for stage in each.stages.values())
