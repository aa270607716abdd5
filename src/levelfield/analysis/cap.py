"""Whether a study's trainings ended because they were done, or because they had reached the most steps allowed."""

from levelfield.study.folder import StudyFolder

MOST_AT_CAP = 0.05  # of the trainings; the rest says little of where theirs would have ended


def cap_lines(study: StudyFolder) -> list[str]:
    """One line where more than 5% of the runs' trainings reached the cap before their patience ended (`UntilDone`)."""
    results = [result for job, result in study.state.results.items() if job.stage == "run"]
    endings = [result["ending"] for result in results if "stopped_by" in result.get("ending", {})]
    at_cap = [ending["steps"] for ending in endings if ending["stopped_by"] == "cap"]
    if len(at_cap) <= MOST_AT_CAP * len(endings):
        return []
    caps = " or ".join(f"{steps:,}" for steps in sorted(set(at_cap)))
    return [f"{len(at_cap)} of {len(endings)} trainings of the runs reached the cap of {caps} steps."]
