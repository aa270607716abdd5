"""The progress of a study: jobs done, running, failed and to do, and the time left."""

import time
from typing import Any

from levelfield.analysis.conditions import cap_lines
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, row_runs
from levelfield.study.progress import duration, seconds_left
from levelfield.study.replicates import replicates_of


def status_lines(study: StudyFolder) -> list[str]:
    """The progress of a study, one fact a line."""
    if study.spec.replicates > 1:
        parts = [status(part) for part in replicates_of(study)]
        done = [
            f"{each['study']}: {each['done']} of {each['jobs']} jobs, {each['tested']} runs scored" for each in parts
        ]
        return [
            f"{study.spec.name} in {study.folder}",
            *done,
            f"to do    {study.spec.replicates - len(parts)} replicates",
        ]
    stands = status(study)
    lines = [f"{stands['study']} in {study.folder}", f"done     {stands['done']} of {stands['jobs']} jobs"]
    lines += [f"running  {each['job']} for {duration(each['seconds'])}" for each in stands["running"]]
    if (holder := stands["process"]) is not None:
        lines.append(f"process  {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}")
    else:
        lines.append("running  nothing")
    lines += [f"failed   {job}: {why}" for job, why in stands["failed"].items()]
    lines += [f"failed   {method}: no trial has a score, so it has no runs" for method in stands["without_setting"]]
    lines += [f"cap      {line}" for line in stands["cap"]]
    lines.append(f"to do    {stands['to_do']} jobs")
    lines.append(f"test     {stands['tested']} of {stands['to_test']} runs scored")
    if study.state.to_do:
        left = stands["seconds_left"]
        lines.append("left     " + ("unknown until a job is finished" if left is None else f"about {duration(left)}"))
    return lines


def status(study: StudyFolder) -> dict[str, Any]:
    """The progress of a study as plain values: `to_do` without running jobs, `seconds_left` None where unknown."""
    if study.spec.replicates > 1:
        return {"study": study.spec.name, "replicates": [status(part) for part in replicates_of(study)]}
    state, holder = study.state, study.holder()
    to_do, running = state.to_do, {}
    for job in to_do if holder is not None else ():
        config = study.folder / job.path / CONFIG  # which a job writes first
        if config.is_file():
            running[str(job)] = max(time.time() - config.stat().st_mtime, 0.0)
    broken = {(job.method, job.number) for job in state.failures("run")}
    seconds = {job: result["seconds"] for job, result in state.results.items()}
    left = seconds_left(to_do, seconds, max(len(running), 1)) if to_do else 0.0
    return {
        "study": study.spec.name,
        "done": len(state.results),
        "jobs": len(state.jobs),
        "to_do": len(to_do) - len(running),
        "process": holder,
        "running": [{"job": job, "seconds": spent} for job, spent in running.items()],
        "failed": {str(job): why for stage in ("trial", "run") for job, why in state.failures(stage).items()},
        "without_setting": state.without_setting(),
        "cap": cap_lines(study),
        "tested": len(study.tests()),
        "to_test": len(set(row_runs(state.spec)) - broken),
        "seconds_left": left,
    }
