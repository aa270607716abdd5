"""The setup of a study, the origin and the cost of its numbers, and the commands that repeat it, from its folder."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.results import ResultRow
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdict import best_method, decided
from levelfield.analysis.written_config import class_name, whole_config
from levelfield.core.configuration import SHIPPED, init_args, shipped_files
from levelfield.core.paths import strip_paths
from levelfield.data import datasets
from levelfield.data.dataset import has_root
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, EMBEDDINGS_FILE, Job, folds_of
from levelfield.study.progress import duration
from levelfield.study.rows import load_spec
from levelfield.study.spec import OF, StudySpec, is_baseline, second_search
from levelfield.study.suggest import Trial, at_bound

Facts = list[tuple[str, str]]
# Settings of the section "Setup".
SETTINGS = {
    "model": ["trunk", "freeze_trunk", "embedder", "embedding_size", "optimizer", "trunk_lr", "embedder_lr"],
    "data": ["sampler", "batch_size", "samples_per_class", "steps_per_epoch"],
    "trainer": ["max_epochs"],
}


def headline(study: StudyFolder) -> str:
    """Data set, trunk, repetitions and length of a training, in one line."""
    spec = study.spec
    data = [result["data"]["dataset"] for result in study.state.results.values() if result.get("data")]
    words, more = [class_name(each) for each in data[:1]], []
    configs = [whole_config(study.folder, row) for row in spec.methods if spec.trains(row)]
    if written := [config for config in configs if config is not None]:
        if "trunk" in (model := written[0]["model"]):
            name = _plain(init_args(model["trunk"]).get("name") or class_name(model["trunk"]))
            kinds = {"frozen" if config["model"].get("freeze_trunk") else "trained" for config in written}
            words.append(f"{name}, {' or '.join(sorted(kinds))}")
        steps = {config["trainer"]["max_epochs"] * config["data"]["steps_per_epoch"] for config in written}
        more = [f"{'' if spec.whole_half and len(steps) == 1 else 'at most '}{max(steps):,} steps per training"]
    return " · ".join([*words, f"{_count(spec.runs, 'run')} × {_count(spec.folds, 'fold')}", *more])


def setup(study: StudyFolder) -> Facts:
    """Data, split, settings and repetitions; settings that differ among methods are the first method's."""
    spec, names = study.spec, shown_names(study.spec)
    config = whole_config(study.folder, next(iter(spec.methods)))
    facts = [("methods", ", ".join(map(names.__getitem__, spec.methods)))]
    data = next((result["data"] for result in study.state.results.values() if result.get("data")), None)
    if data is not None:
        facts += [("data set", _call(data["dataset"])), ("split", _split(data, study))]
    for section, keys in SETTINGS.items() if config is not None else ():
        given = config[section]  # type: ignore[index]
        facts += [(f"{section}.{key}", _call(given[key])) for key in keys if key in given]
    again = [names[method] for method in spec.methods if second_search(method)]
    seeds = "the same seeds for all methods" + (f" except {', '.join(again)}" if again else "")
    trained = "on the whole training half" if spec.whole_half else f"of {spec.folds} folds"
    return [*facts, ("repetitions", f"{_count(spec.runs, 'run')} {trained}, {seeds}")]


def selected(study: StudyFolder) -> dict[str, tuple[Trial | None, list[str]]]:
    """Method to its best trial so far, whose setting the runs have, and remarks.

    The trial is None without a search or without a trial that has a score. The remarks are one sentence for each
    argument at a bound of its space, then one for each trial that failed.
    """
    found = {}
    for method in study.spec.methods:
        best = study.state.chosen(method)
        remarks = [] if best is None else at_bound(study.spec.space(method), best.parameters)
        failures = study.state.failures("trial").items()
        remarks += [f"trial {job.number} fold {job.fold}: {why}" for job, why in failures if job.method == method]
        found[method] = best, remarks
    return found


def setting_text(parameters: Mapping[str, Any]) -> str:
    """`loss.margin 23.2, loss_lr 0.00514`: numbers short, a class by its name."""

    def text(value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.4g}"
        is_class = isinstance(value, str) or (isinstance(value, dict) and "class_path" in value)
        return class_name(value) if is_class else str(value)

    return ", ".join(f"{short_key(key)} {text(value)}" for key, value in parameters.items())


def short_key(key: str) -> str:
    """`loss.margin` of `model.loss.init_args.margin`."""
    return key.removeprefix("model.").replace("init_args.", "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _call(value: Any) -> str:
    """`TimmTrunk(name: resnet50, weights: pretrained)` from a class path with its arguments, or a plain value."""
    if isinstance(value, str):
        return class_name(value)
    if not isinstance(value, Mapping) or "class_path" not in value:
        return _plain(value)
    arguments = init_args(value).items()
    hidden = ("mean", "std", "root")
    listed = ", ".join(f"{key}: {_plain(given)}" for key, given in arguments if key not in hidden)
    return f"{class_name(value)}({listed})" if listed else class_name(value)


def _plain(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(strip_paths(value))


def _split(data: Mapping[str, Any], study: StudyFolder) -> str:
    """Training and test classes; the test classes are unknown before they are evaluated."""
    from safetensors import safe_open

    folds = f"trained and validated in {study.spec.folds} class-disjoint folds"
    folds = "all trained, no validation" if study.spec.whole_half else folds
    text = f"{data['split']}: {len({*data['train_classes'], *data['val_classes']})} classes {folds}"
    path = study.folder / Job(study.spec.rows[0], "run", 0, 0).path / EMBEDDINGS_FILE
    if not path.exists():
        return text
    with safe_open(path, framework="numpy") as file:
        labels = file.get_tensor("labels").tolist()
    return f"{text}, {len(set(labels))} test classes with {len(labels):,} samples"


def origin(study: StudyFolder) -> Facts:
    """Code, libraries, devices, seeds, data and compute; if values differ, each has its number of jobs."""
    spec, results = study.spec, list(study.state.results.values())
    known = [r["provenance"] for r in results if r.get("provenance")]
    seconds = sum(r.get("seconds", 0.0) for r in results)
    return [
        ("code", _counted(map(_version, known))),
        ("libraries", _counted(", ".join(f"{k} {v}" for k, v in p["libraries"].items()) for p in known)),
        ("device", _counted(p.get("gpu") or p.get("device", "unknown") for p in known)),
        ("processor", _counted(p["processor"] for p in known)),
        ("trunk weights", _counted(p.get("weights") or "unknown" for p in known)),
        ("threads per job", str(spec.threads)),
        ("study seed", str(spec.seed)),
        ("data fingerprint", _counted(r["data"]["fingerprint"] for r in results if r.get("data"))),
        ("configuration", spec.configuration_hash()),
        ("compute", f"{duration(seconds)} in {len(results)} jobs, without the tests"),
    ]


def _version(provenance: Mapping[str, Any]) -> str:
    code = provenance["code"]
    commit = f", commit {code['commit'][:12]}" if code["commit"] else ", not a checkout"
    return f"levelfield {code['levelfield']}{commit}{' with changes' if code['modified'] else ''}"


def _counted(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} jobs)" for value, count in sorted(counts.items())) or "unknown"


def costs(study: StudyFolder) -> list[dict[str, Any]]:
    """One row per method with its trainings and their time, without the tests, then a row for all."""
    spent = [(job.method, job.stage, result.get("seconds", 0.0)) for job, result in study.state.results.items()]
    rows = []
    for name in (*dict.fromkeys(method for method, *_ in spent), "all") if spent else ():
        own = [(stage, seconds) for method, stage, seconds in spent if name in (method, "all")]
        search, run = (sum(seconds for stage, seconds in own if stage == wanted) for wanted in ("trial", "run"))
        cells = [str(len(own)), *(duration(each) if each else "-" for each in (search, run))]
        cells += [f"{(search + run) / 3600:.2f}", f"{(search + run) / len(own):.1f} s"]
        rows.append({"method": name, "cells": cells})
    return rows


def commands(study: StudyFolder, rows: Sequence[ResultRow]) -> list[tuple[str, str]]:
    """Purpose and words of each command; those of a method only where its files are."""
    from levelfield.training.trust import user_packages  # imports torch, which `study status` does not need

    spec, known = study.spec, [r["provenance"] for r in study.state.results.values() if r.get("provenance")]
    found = []
    if known:
        code = known[0]["code"]
        # A registry has no local versions, such as torch's 2.9.0+cpu.
        libraries = [f"{name}=={version.partition('+')[0]}" for name, version in known[0]["libraries"].items()]
        own = f"pip install levelfield=={code['levelfield']}"
        if code["commit"]:
            own = f"git checkout {code['commit'][:12]}\npip install -e ."
        found.append(("Install the same versions", " ".join([own, *libraries])))
    if (shipped := _shipped_as(spec)) is not None:
        dataset = getattr(datasets, class_name(next(iter(spec.methods.values()))["data"]["dataset"]), None)
        root = " --data.root DIR" if dataset is not None and has_root(dataset) else ""
        found.append(("Run the study again", f"levelfield study run {shlex.quote(shipped)}{root}"))
    # The page names no folder of the machine: `outputs` is where a study is without --output.
    also = "" if study.folder.parent.name == "outputs" else "; FOLDER is the study's folder"
    folder = Path("FOLDER" if also else f"outputs/{study.folder.name}")
    words = "\n".join(shlex.join(["levelfield", "study", what, str(folder)]) for what in ("report", "verify"))
    found.append((f"Write this page again, and check all numbers{also}", words))
    trained = [method for method in spec.methods if not is_baseline(method)]
    if not any(row.stage == "test" and row.method in trained for row in rows):
        return found
    chosen = decided(study)
    best = source = best_method(rows, spec) if chosen is None else chosen["row"]
    while source in spec.derived:  # no training of its own
        source = spec.derived[source][OF]
    job, model = folds_of(spec, source, 0)[0], study.checkpoint(folds_of(spec, best, 0)[0])
    config = job.path / CONFIG
    if (study.folder / config).is_file():
        words = shlex.join(["levelfield", "fit", "--config", str(folder / config)])
        found.append((f"Repeat one training: {job}", words))
    if model.is_file():
        trust = [word for name in sorted(user_packages(spec.config_of(best))) for word in ("--trust", name)]
        given = ["--ckpt_path", str(folder / model.relative_to(study.folder)), *trust, "IMAGES_OR_TEXTS"]
        words = shlex.join(["levelfield", "search", *given, "--query", "ONE"])
        found.append(("Search with its model" if best == source else f"Search with {best}", words))
    return found


def _shipped_as(spec: StudySpec) -> str | None:
    """The name of the shipped study with exactly these settings; None without one."""
    shipped, name, identity = shipped_files("study", [SHIPPED]), f"name: {spec.name}\n", spec.configuration_hash()
    named = [key for key, path in shipped.items() if name in path.read_text(encoding="utf-8")]
    same = (key.removeprefix("study/") for key in named if load_spec(shipped[key]).configuration_hash() == identity)
    return next(same, None)
