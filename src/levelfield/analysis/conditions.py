"""What a reader must know about the scores: unequal settings, collapsed embeddings, failed or damaged results."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from levelfield.analysis.integrity import gap_lines
from levelfield.analysis.shown_names import shown_names
from levelfield.core.configuration import ABSENT, flatten
from levelfield.metrics.definitions import COLLAPSED_RANK
from levelfield.study.folder import StudyFolder
from levelfield.study.same_study import differing_origins, kept_lines
from levelfield.study.spec import StudySpec

# A method is its loss (with its weights' rate and decay), miner and regularizer: these settings differ by design.
METHOD_ITSELF = ("model.loss", "model.loss_lr", "model.loss_weight_decay", "model.miner", "model.regularizer")


def differing_conditions(spec: StudySpec) -> list[str]:
    """One sentence for each setting that differs between methods, such as the batch composition."""
    by_design = tuple(f"{key}." for key in (*METHOD_ITSELF, *spec.sweep))
    settings = {
        name: {key: value for key, value in flatten(config) if not f"{key}.".startswith(by_design)}
        for name, config in spec.methods.items()
    }
    keys = sorted({key for values in settings.values() for key in values})
    shown, sentences = shown_names(spec), list[str]()
    for key in keys:
        by_method = {name: values.get(key, ABSENT) for name, values in settings.items()}
        usual = Counter(map(repr, by_method.values())).most_common(1)[0][0]
        unusual: dict[str, list[str]] = {}
        for name, value in by_method.items():
            if repr(value) != usual:
                unusual.setdefault(repr(value), []).append(name)
        for value, names in unusual.items():
            rows = ", ".join(shown[name] for name in names)
            sentences.append(f"{rows}: {key} is {_or_default(value)}, {_or_default(usual)} for the others")
    unsearched = [shown[name] for name in spec.methods if not spec.trials(name)]
    if unsearched and spec.search.trials:
        sentences.append(f"{', '.join(unsearched)}: not searched, {spec.search.trials} trials for the others")
    return sentences


def _or_default(value: str) -> str:
    return "the default" if value == repr(ABSENT) else value


def collapsed(study: StudyFolder) -> dict[str, str]:
    """Row whose test embeddings have collapsed, and a sentence about it."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for (method, _), test in study.tests().items():
        ranks[method] += test.get("effective_rank", [])
    found = {method: sum(rank < COLLAPSED_RANK for rank in each) for method, each in ranks.items()}
    return {
        method: f"{method} collapsed: in {number} of {len(ranks[method])} models nearly all test embeddings are on one "
        f"line (effective rank below {COLLAPSED_RANK})."
        for method, number in found.items()
        if number
    }


def warnings(study: StudyFolder, changed: Mapping[Path, str]) -> list[str]:
    """One sentence for each thing that is wrong with a study's results or differs among them.

    Args:
        changed: `changed_files` of the study.
    """
    state = study.state
    return [
        *(f"{method} has no runs: no trial has a score." for method in state.without_setting()),
        *(f"{job} failed, and its run is left out: {why}" for job, why in state.failures("run").items()),
        *collapsed(study).values(),
        *kept_lines(study),
        *differing_origins(study),
        *gap_lines(changed),
    ]
