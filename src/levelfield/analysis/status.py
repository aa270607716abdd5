"""The progress of a study: jobs done, running, failed and to do, and the time left."""

import time

from levelfield.analysis.conditions import cap_lines
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, row_runs
from levelfield.study.lock import running_process
from levelfield.study.progress import duration, seconds_left
from levelfield.study.replicates import replicates_of


def status_lines(study: StudyFolder) -> list[str]:
    """The progress of a study, one fact a line."""
    spec = study.spec
    if spec.replicates > 1:
        parts = replicates_of(study)
        lines = [f"{spec.name} in {study.folder}"]
        for part in parts:
            done, jobs = len(part.state.results), len(part.state.jobs)
            lines.append(f"{part.spec.name}: {done} of {jobs} jobs, {len(part.tests())} runs scored")
        return [*lines, f"to do    {spec.replicates - len(parts)} replicates"]
    state, holder = study.state, running_process(study.folder)
    to_do = state.to_do
    running = {job: file for job in to_do if (file := study.folder / job.path / CONFIG).is_file()} if holder else {}
    lines = [f"{spec.name} in {study.folder}", f"done     {len(state.results)} of {len(state.jobs)} jobs"]
    for job, config in running.items():  # a job writes its configuration first
        lines.append(f"running  {job} for {duration(max(time.time() - config.stat().st_mtime, 0.0))}")
    about = holder and f"process  {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}"
    lines.append(about or "running  nothing")
    failures = state.failures("trial") | state.failures("run")
    lines += [f"failed   {job}: {why}" for job, why in failures.items()]
    lines += [f"failed   {row}: no trial has a score, so it has no runs" for row in state.without_setting()]
    lines += [f"cap      {line}" for line in cap_lines(study)]
    broken = {(job.method, job.number) for job in state.failures("run")}
    lines.append(f"to do    {len(to_do) - len(running)} jobs")
    lines.append(f"test     {len(study.tests())} of {len(set(row_runs(spec)) - broken)} runs scored")
    if to_do:
        left = seconds_left(state, max(len(running), 1))
        lines.append("left     " + ("unknown until a job is finished" if left is None else f"about {duration(left)}"))
    return lines
