"""Whether trainings stopped because they no longer improved, or because they reached the step limit."""

from levelfield.study.folder import StudyFolder

MOST_AT_CAP = 0.05  # fraction of the trainings; fewer hardly affect the table


def cap_lines(study: StudyFolder) -> list[str]:
    """One sentence if `UntilDone` cut off more than 5% of the runs' trainings at the step limit."""
    results = [result for job, result in study.state.results.items() if job.stage == "run"]
    endings = [result["ending"] for result in results if "stopped_by" in result.get("ending", {})]
    at_cap = [ending["steps"] for ending in endings if ending["stopped_by"] == "cap"]
    if len(at_cap) <= MOST_AT_CAP * len(endings):
        return []
    caps = " or ".join(f"{steps:,}" for steps in sorted(set(at_cap)))
    return [f"{len(at_cap)} of {len(endings)} trainings were cut off at {caps} steps."]
