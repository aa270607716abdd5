"""Equal conditions, checked: in what the methods of a study differ besides the method itself."""

from collections import Counter

from levelfield.study.definition.configuration import ABSENT, flatten
from levelfield.study.definition.spec import StudySpec

# A loss, its miner, its regularizer and the learning rate of its own weights are the method.
METHOD_ITSELF = ("model.loss", "model.miner", "model.regularizer")


def differing_conditions(spec: StudySpec) -> list[str]:
    """One sentence for each setting that is not the same for all methods, such as the batch composition."""
    settings = {
        name: {key: value for key, value in flatten(config) if not key.startswith(METHOD_ITSELF + _swept(spec))}
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


def _swept(spec: StudySpec) -> tuple[str, ...]:
    return (spec.sweep,) if spec.sweep else ()


def _say(value: str) -> str:
    return "the default" if value == repr(ABSENT) else value
