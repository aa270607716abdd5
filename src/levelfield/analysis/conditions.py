"""What a reader must know about the scores: unequal settings, collapsed embeddings, failed or damaged results."""

from collections import Counter, defaultdict

from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import NOT_ARCHIVED, changed_files
from levelfield.core.configuration import ABSENT, flatten
from levelfield.metrics.definitions import COLLAPSED_RANK
from levelfield.study.folder import StudyFolder
from levelfield.study.same_study import differing_origins
from levelfield.study.spec import StudySpec

# A method is its loss (with its weights' rate and decay), miner and regularizer: these settings differ by design.
METHOD_ITSELF = ("model.loss", "model.loss_lr", "model.loss_weight_decay", "model.miner", "model.regularizer")
MOST_AT_CAP = 0.05  # fraction of the trainings; fewer hardly affect the table


def differing_conditions(spec: StudySpec) -> list[str]:
    """One sentence for each setting that differs between methods, such as the batch composition."""
    by_design = tuple(f"{key}." for key in (*METHOD_ITSELF, *spec.sweep))
    settings = {
        name: {key: value for key, value in flatten(config) if not f"{key}.".startswith(by_design)}
        for name, config in spec.methods.items()
    }
    shown, sentences = shown_names(spec), list[str]()
    for key in sorted({key for values in settings.values() for key in values}):
        by_method = {name: repr(values.get(key, ABSENT)) for name, values in settings.items()}
        usual = Counter(by_method.values()).most_common(1)[0][0]
        for value in dict.fromkeys(by_method.values()):
            if value != usual:
                rows = ", ".join(shown[name] for name in by_method if by_method[name] == value)
                here, there = ("the default" if each == repr(ABSENT) else each for each in (value, usual))
                sentences.append(f"{rows}: {key} is {here}, {there} for the others")
    unsearched = [shown[name] for name in spec.methods if not spec.trials(name)]
    if unsearched and spec.search.trials:
        sentences.append(f"{', '.join(unsearched)}: not searched, {spec.search.trials} trials for the others")
    return sentences


def cap_lines(study: StudyFolder) -> list[str]:
    """One sentence if `UntilDone` cut off more than 5% of the runs' trainings at the step limit."""
    endings = [result.get("ending", {}) for job, result in study.state.results.items() if job.stage == "run"]
    limited = [ending for ending in endings if "stopped_by" in ending]
    at_cap = [ending["steps"] for ending in limited if ending["stopped_by"] == "cap"]
    if len(at_cap) <= MOST_AT_CAP * len(limited):
        return []
    caps = " or ".join(f"{steps:,}" for steps in sorted(set(at_cap)))
    return [f"{len(at_cap)} of {len(limited)} trainings were cut off at {caps} steps."]


def collapsed(study: StudyFolder) -> dict[str, str]:
    """Row whose test embeddings have collapsed, and a sentence about it."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for (method, _), test in study.tests().items():
        ranks[method] += test.get("effective_rank", [])
    return {
        method: f"{method} collapsed: in {number} of {len(each)} models nearly all test embeddings are on one "
        f"line (effective rank below {COLLAPSED_RANK})."
        for method, each in ranks.items()
        if (number := sum(rank < COLLAPSED_RANK for rank in each))
    }


def warnings(study: StudyFolder) -> list[str]:
    """One sentence for each thing that is wrong with a study's results or differs among them."""
    state, changed = study.state, changed_files(study)
    return [
        *(f"{method} has no runs: no trial has a score." for method in state.without_setting()),
        *(f"{job} failed, and its run is left out: {why}" for job, why in state.failures("run").items()),
        *collapsed(study).values(),
        *differing_origins(study),
        *(f"{path} {what}; the page leaves it out." for path, what in changed.items() if what != NOT_ARCHIVED),
    ]
