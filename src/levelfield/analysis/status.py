"""`levelfield study status`: jobs done, running, failed and to do, and the time left."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from levelfield.storage.lock import running
from levelfield.study.jobs.state import StudyState
from levelfield.study.progress import duration, seconds_left
from levelfield.study.record import StudyRecord
from levelfield.study.tested import read_tests


def status_lines(record: StudyRecord) -> list[str]:
    """Where a study stands, one fact a line."""
    state = record.state
    now = time.time()
    holders = {entry["title"]: entry for entry in running(record.folder)}
    active = {title: max(now - entry["since"], 0.0) for title, entry in holders.items()}
    to_do = state.to_do
    running_jobs = [job for job in to_do if str(job) in active]
    failures = {**state.failures("trial"), **state.failures("final"), **state.failures("run")}
    lines = [f"{record.spec.name} in {record.folder}", f"done     {len(state.results)} of {len(state.jobs)} jobs"]
    titles = [str(job) for job in running_jobs] + [title for title in ("test",) if title in active]
    doing = [f"running  {title} for {duration(active[title])}{_elsewhere(holders[title])}" for title in titles]
    lines += doing or ["running  nothing"]
    lines += [f"failed   {job}: {why}" for job, why in failures.items()]
    lines += [f"failed   {method}: no trial had a score, so it has no runs" for method in state.without_setting()]
    lines.append(f"to do    {len(to_do) - len(running_jobs)} jobs")
    lines.append(f"test     {len(read_tests(record))} of {len(_runs_to_test(state))} runs scored")
    if to_do:
        seconds = {job: result["seconds"] for job, result in state.results.items()}
        elapsed = sum(active[str(job)] for job in running_jobs)
        left = seconds_left(to_do, seconds, elapsed, max(len(running_jobs), 1))
        lines.append("left     " + ("not known before a job is done" if left is None else f"about {duration(left)}"))
    return lines


def _elsewhere(holder: Mapping[str, Any]) -> str:
    return "" if holder["host"] == socket.gethostname() else f" on {holder['host']} (process {holder['process']})"


def _runs_to_test(state: StudyState) -> set[tuple[str, int]]:
    broken = {(job.method, job.number) for job in state.failures("run")}
    return {(job.method, job.number) for job in state.jobs if job.stage == "run"} - broken
