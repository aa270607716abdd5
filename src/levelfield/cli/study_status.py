"""`levelfield study status`: once, or watched until the study is done; for people, or as JSON for machines."""

import json
import time
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from levelfield.analysis.status import status, status_lines
from levelfield.experiment import Study
from levelfield.study.jobs.live_view import Doing, StudyView
from levelfield.study.jobs.standing import method_standings
from levelfield.study.progress import duration
from levelfield.study.record import StudyRecord

WATCH_SECONDS = 2.0
# What a watch without a terminal waits for.
EVENTS = ("done", "jobs", "failed", "tested")


def show_status(console: Console, study: Study, watch: bool, machine: TextIO | None) -> None:
    """Print where a study stands; with `watch` again and again until its last run is tested, or until Ctrl-C.

    On a terminal a watch is one view that is renewed; elsewhere the lines, or one of JSON, are printed where a job has
    ended or a run was scored.
    """
    record = study.record()
    if not watch:
        _print(console, record, machine)
        return
    if console.is_terminal and machine is None:
        view = StudyView(record.spec.name)
        _show(view, record)
        with Live(view, console=console, transient=True):
            while not _is_over(status(record)):
                time.sleep(WATCH_SECONDS)
                record.refresh()
                _show(view, record)
        _print(console, record, machine)
        return
    told: list[Any] | None = None
    while True:
        stands = status(record)
        if told != (told := [stands[key] for key in EVENTS]):
            _print(console, record, machine)
        if _is_over(stands):
            return
        time.sleep(WATCH_SECONDS)
        record.refresh()


def _print(console: Console, record: StudyRecord, machine: TextIO | None) -> None:
    if machine is not None:
        print(json.dumps(status(record)), file=machine, flush=True)
    else:
        console.print("\n".join(status_lines(record)), highlight=False, markup=False, soft_wrap=True)


def _is_over(stands: dict[str, Any]) -> bool:
    return stands["done"] == stands["jobs"] and stands["tested"] >= stands["to_test"]


def _show(view: StudyView, record: StudyRecord) -> None:
    stands, left = status(record), ""
    if record.state.to_do:
        left = "" if stands["seconds_left"] is None else f"about {duration(stands['seconds_left'])} left"
    view.note = left or f"{stands['tested']} of {stands['to_test']} runs tested"
    view.methods, view.failures = method_standings(record.state), stands["failed"]
    view.doing = [Doing(each["title"], note=f"for {duration(each['seconds'])}") for each in stands["running"]]
