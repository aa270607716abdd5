"""`levelfield study status`: jobs done, running, failed and to do, and the time left; in lines, or as plain values."""

import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from levelfield.storage.lock import running
from levelfield.study.jobs.job import method_runs
from levelfield.study.jobs.standing import method_standings
from levelfield.study.jobs.state import StudyState
from levelfield.study.progress import duration, seconds_left
from levelfield.study.record import StudyRecord
from levelfield.study.tested import read_tests


def status_lines(record: StudyRecord) -> list[str]:
    """Where a study stands, one fact a line."""
    stands = status(record)
    lines = [f"{stands['study']} in {record.folder}", f"done     {stands['done']} of {stands['jobs']} jobs"]
    lines += [
        f"running  {each['title']} for {duration(each['seconds'])}{_elsewhere(each)}" for each in stands["running"]
    ] or ["running  nothing"]
    lines += [f"failed   {job}: {why}" for job, why in stands["failed"].items()]
    lines += [f"failed   {method}: no trial had a score, so it has no runs" for method in stands["without_setting"]]
    lines.append(f"to do    {stands['to_do']} jobs")
    lines.append(f"test     {stands['tested']} of {stands['to_test']} runs scored")
    if record.state.to_do:
        left = stands["seconds_left"]
        lines.append("left     " + ("not known before a job is done" if left is None else f"about {duration(left)}"))
    return lines


def status(record: StudyRecord) -> dict[str, Any]:
    """Where a study stands, as plain values: `to_do` leaves out what runs, `seconds_left` is None where unknown."""
    state = record.state
    now = time.time()
    held = {entry["title"]: {**entry, "seconds": max(now - entry["since"], 0.0)} for entry in running(record.folder)}
    to_do = state.to_do
    jobs = [held[str(job)] for job in to_do if str(job) in held]
    active = [*jobs, *([held["test"]] if "test" in held else [])]
    seconds = {job: result["seconds"] for job, result in state.results.items()}
    left = seconds_left(to_do, seconds, sum(entry["seconds"] for entry in jobs), max(len(jobs), 1)) if to_do else 0.0
    shown = ("title", "seconds", "host", "process")
    return {
        "study": record.spec.name,
        "done": len(state.results),
        "jobs": len(state.jobs),
        "to_do": len(to_do) - len(jobs),
        "running": [{key: entry[key] for key in shown} for entry in active],
        "failed": {str(job): why for stage in ("trial", "final", "run") for job, why in state.failures(stage).items()},
        "without_setting": state.without_setting(),
        "tested": len(read_tests(record)),
        "to_test": len(_runs_to_test(state)),
        "seconds_left": left,
        "methods": [asdict(each) for each in method_standings(state)],
    }


def _elsewhere(holder: Mapping[str, Any]) -> str:
    return "" if holder["host"] == socket.gethostname() else f" on {holder['host']} (process {holder['process']})"


def _runs_to_test(state: StudyState) -> set[tuple[str, int]]:
    broken = {(job.method, job.number) for job in state.failures("run")}
    trained = {(job.method, job.number) for job in state.jobs if job.stage == "run"} - broken
    shared = state.spec.trained_as
    return {(method, run) for method, run in method_runs(state.spec) if (shared.get(method, method), run) in trained}
