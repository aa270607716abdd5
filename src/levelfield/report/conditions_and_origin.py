"""The setup of a study and the origin of its numbers, read from its folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.selection import value_text
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.written_config import LEARNER, class_name, whole_config
from levelfield.core.configuration import init_args
from levelfield.core.paths import strip_paths
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import EMBEDDINGS_FILE, Job
from levelfield.study.progress import duration
from levelfield.study.spec import StudySpec, second_search

Facts = list[tuple[str, str]]


def headline(study: StudyFolder) -> str:
    """Data set, trunk, repetitions and length of a training, in one line."""
    spec, config = study.spec, whole_config(study.folder, next(iter(study.spec.methods)))
    data = [result["data"]["dataset"] for result in study.state.results.values() if result.get("data")]
    words = [class_name(each) for each in data[:1]]
    if config is not None and set(config["model"]) >= LEARNER:
        model = config["model"]
        trunk = _plain(init_args(model["trunk"]).get("name") or class_name(model["trunk"]))
        words.append(f"{trunk}, {'frozen' if model.get('freeze_trunk') else 'trained'}")
    words.append(f"{spec.runs} run{'s' * (spec.runs != 1)} × {spec.folds} fold{'s' * (spec.folds != 1)}")
    if config is not None:
        steps = config["trainer"]["max_epochs"] * config["data"]["steps_per_epoch"]
        words.append(f"{'' if spec.whole_half else 'at most '}{steps:,} steps per training")
    return " · ".join(words)


def setup(study: StudyFolder) -> Facts:
    """Data, split, trunk, batches and repetitions; settings that differ among methods are the first method's."""
    spec, results, names = study.spec, study.state.results.values(), shown_names(study.spec)
    config = whole_config(study.folder, next(iter(spec.methods)))
    facts = [("methods", ", ".join(map(names.__getitem__, spec.methods)))]
    data = next((result["data"] for result in results if result.get("data")), None)
    if data is not None:
        facts.append(("data set", _call(data["dataset"])))
        facts.append(("split", _split(data, spec, _test_half(study.folder, spec.rows[0]))))
    if config is not None:
        model, batches, trainer = config["model"], config["data"], config["trainer"]
        if set(model) >= LEARNER:
            frozen = f"trained, batch norm {'frozen' if model['freeze_batch_norm'] else 'trained'}"
            frozen = "frozen" if model.get("freeze_trunk") else frozen
            facts.append(("trunk", f"{_call(model['trunk'], ('mean', 'std'))}, {frozen}"))
            facts.append(("embedding", f"{model['embedding_size']} numbers by {_call(model['embedder'])}"))
            facts.append(("optimizer", f"{class_name(model['optimizer'])}, learning rate {_rate(model)}"))
        facts.append(("batch", f"{batches['batch_size']} samples, {_batches(batches)}"))
        at_most = "" if spec.whole_half else "at most "
        epochs = f"{trainer['max_epochs']} epoch{'s' * (trainer['max_epochs'] != 1)}"
        facts.append(("training", f"{at_most}{epochs} of {batches['steps_per_epoch']} steps"))
    again = [names[method] for method in spec.methods if second_search(method)]
    seeds = "the same seeds for all methods" + (f" except {', '.join(again)}" if again else "")
    trained = "on the whole training half" if spec.whole_half else f"of {spec.folds} folds"
    facts.append(("repetitions", f"{spec.runs} run{'s' * (spec.runs != 1)} {trained}, {seeds}"))
    return facts


def _batches(data: Mapping[str, Any]) -> str:
    sampler = class_name(data["sampler"])
    if sampler == "ShuffledBatchSampler":
        return "shuffled"
    by = "" if sampler == "MPerClassBatchSampler" else f" by {sampler}"
    return f"{data['samples_per_class']} of a class{by}"


def _rate(model: Mapping[str, Any]) -> str:
    part = "embedder" if model.get("freeze_trunk") else "trunk"
    return f"{model[f'{part}_lr']:g} of the {part}"


def _call(value: Any, hidden: Sequence[str] = ()) -> str:
    """`TimmTrunk(name: resnet50, weights: pretrained)` from a class path with its arguments."""
    arguments = value.get("init_args") if isinstance(value, Mapping) else None
    listed = ", ".join(f"{key}: {_plain(v)}" for key, v in (arguments or {}).items() if key not in (*hidden, "root"))
    return f"{class_name(value)}({listed})" if listed else class_name(value)


def _plain(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(strip_paths(value))


def _split(data: Mapping[str, Any], spec: StudySpec, test: tuple[int, int] | None) -> str:
    classes = len({*data["train_classes"], *data["val_classes"]})
    folds = (
        "all trained, no validation"
        if spec.whole_half
        else f"trained and validated in {spec.folds} class-disjoint folds"
    )
    text = f"{data['split']}: {classes} classes {folds}"
    return text if test is None else f"{text}, {test[0]} test classes with {test[1]:,} samples"


def _test_half(study_folder: Path, first: str) -> tuple[int, int] | None:
    """Number of test classes and test samples; None before the test classes are evaluated."""
    from safetensors import safe_open

    path = study_folder / Job(first, "run", 0, 0).path / EMBEDDINGS_FILE
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        labels = file.get_tensor("labels")
    return len(set(labels.tolist())), len(labels)


def origin(study: StudyFolder) -> Facts:
    """Code, libraries, devices, seeds, data and compute; if values differ, each has its number of jobs."""
    spec, results = study.spec, list(study.state.results.values())
    known = [r["provenance"] for r in results if r.get("provenance")]
    facts = [
        ("code", _counted(_version(p["code"]) for p in known)),
        ("libraries", _counted(", ".join(f"{k} {v}" for k, v in p["libraries"].items()) for p in known)),
        ("device", _counted(p.get("gpu") or p.get("device", "unknown") for p in known)),
        ("processor", _counted(p["processor"] for p in known)),
        ("trunk weights", _counted(p.get("weights") or "unknown" for p in known)),
        ("threads per job", str(spec.threads)),
        ("study seed", str(spec.seed)),
        ("data fingerprint", _counted(r["data"]["fingerprint"] for r in results if r.get("data"))),
        ("configuration", spec.configuration_hash()),
    ]
    seconds = sum(r.get("seconds", 0.0) for r in results)
    facts.append(("compute", f"{duration(seconds)} in {len(results)} jobs, without the tests"))
    return facts


def _version(code: Mapping[str, Any]) -> str:
    commit = f", commit {code['commit'][:12]}" if code["commit"] else ", not a checkout"
    return f"levelfield {code['levelfield']}{commit}{' with changes' if code['modified'] else ''}"


def _counted(values: Any) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} jobs)" for value, count in sorted(counts.items())) or "unknown"


def setting_text(parameters: Mapping[str, Any]) -> str:
    """`loss.margin 23.2, loss_lr 0.00514`: a setting, its keys without their common parts."""
    short = {key.removeprefix("model.").replace("init_args.", ""): value for key, value in parameters.items()}
    return ", ".join(f"{key} {value_text(value)}" for key, value in short.items())
