"""Count trainings of a study that ended at the limit of steps and not by early stopping."""

from levelfield.study.folder import StudyFolder

MOST_AT_CAP = 0.05  # fraction of the trainings; below it nothing is reported


def cap_lines(study: StudyFolder) -> list[str]:
    """One line if more than 5% of the runs' trainings reached the cap before their patience ended (`UntilDone`)."""
    results = [result for job, result in study.state.results.items() if job.stage == "run"]
    endings = [result["ending"] for result in results if "stopped_by" in result.get("ending", {})]
    at_cap = [ending["steps"] for ending in endings if ending["stopped_by"] == "cap"]
    if len(at_cap) <= MOST_AT_CAP * len(endings):
        return []
    caps = " or ".join(f"{steps:,}" for steps in sorted(set(at_cap)))
    return [f"{len(at_cap)} of {len(endings)} trainings of the runs reached the cap of {caps} steps."]
