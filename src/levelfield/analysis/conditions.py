"""Notes for a table: settings that differ between methods, and methods whose embeddings collapsed."""

from collections import Counter, defaultdict

from levelfield.core.configuration import ABSENT, flatten
from levelfield.metrics.table import COLLAPSED_RANK
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec

# The method itself: loss, miner, regularizer and the learning rate of the loss.
METHOD_ITSELF = ("model.loss", "model.miner", "model.regularizer")


def differing_conditions(spec: StudySpec) -> list[str]:
    """One sentence for each setting that differs between methods, such as the batch composition."""
    settings = {
        name: {key: value for key, value in flatten(config) if not key.startswith((*METHOD_ITSELF, *spec.sweep))}
        for name, config in spec.methods.items()
    }
    keys = sorted({key for values in settings.values() for key in values})
    sentences = []
    for key in keys:
        by_method = {name: values.get(key, ABSENT) for name, values in settings.items()}
        usual = Counter(map(repr, by_method.values())).most_common(1)[0][0]
        unusual: dict[str, list[str]] = {}
        for name, value in by_method.items():
            if repr(value) != usual:
                unusual.setdefault(repr(value), []).append(name)
        for value, names in unusual.items():
            sentences.append(f"{', '.join(names)}: {key} is {_say(value)}, {_say(usual)} for the others")
    unsearched = [name for name in spec.methods if not spec.trials(name)]
    if unsearched and spec.search.trials:
        sentences.append(f"{', '.join(unsearched)}: not searched, {spec.search.trials} trials for the others")
    return sentences


def _say(value: str) -> str:
    return "the default" if value == repr(ABSENT) else value


def collapsed(study: StudyFolder) -> dict[str, str]:
    """Row with collapsed test embeddings to a sentence with their number."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for (method, _), test in study.tests().items():
        ranks[method] += test.get("effective_rank", [])
    found = {method: sum(rank < COLLAPSED_RANK for rank in each) for method, each in ranks.items()}
    return {
        method: f"COLLAPSED: {method}: nearly all test embeddings of {number} of {len(ranks[method])} models lie on "
        f"one line (effective rank below {COLLAPSED_RANK})."
        for method, number in found.items()
        if number
    }
