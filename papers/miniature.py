"""A small copy of a study, to test that all of it runs. Its scores mean nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from levelfield.core.configuration import Config, find_configuration, flatten, init_args, read_yaml
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.study.spec import STUDY, SearchSettings, StudySpec, value_of, without_value

# Letters instead of photographs: 30 classes for training and validation, with at least 12 images each.
LETTERS = {"class_path": "levelfield.data.datasets.Glyphs", "init_args": {"num_classes": 60, "image_size": 32}}
SIZES = {"resize": 36, "eval_resize": 36, "crop_size": 32}
TINY_FEATURES = 96
CLASSES_OF_TEXTS, TEXTS_OF_A_CLASS = 40, 8


def begin_miniature(spec: StudySpec, folder: Path) -> None:
    """Write the definition of a study's miniature into its folder, for `levelfield study resume`.

    For a study of texts, it writes made-up texts next to the folder.

    Raises:
        UserError: the folder holds another study.
    """
    definition = folder / STUDY
    content = miniature(spec, folder.with_name(f"{folder.name}_texts.csv")).to_yaml()
    if definition.exists() and definition.read_text(encoding="utf-8") != content:
        raise UserError(f"{folder} holds another study; remove it, or choose another --output")
    write_atomically(definition, content.encode())


def miniature(spec: StudySpec, texts: Path) -> StudySpec:
    """The same methods, batches, losses, schedules and tests on letters or made-up texts, with a tiny random trunk.

    A training has two steps. A study has at most two folds, one run and one trial. A sweep keeps its first and last
    value.

    Args:
        texts: The file for the made-up texts, if the study is of texts.
    """
    ends = {name for names in _values(spec).values() for name in (names[0], names[-1])}
    methods = {name: _small(config, texts) for name, config in spec.methods.items() if name in ends}
    return replace(
        spec,
        folds=min(spec.folds, 2),
        runs=1,
        threads=1,
        methods=methods,
        search=replace(spec.search, trials=1) if spec.search.trials else SearchSettings(),
        spaces={name: space for name, space in spec.spaces.items() if name in ends},
    )


def data_and_weights(spec: StudySpec) -> tuple[set[str], set[str]]:
    """What a study needs that does not come with levelfield: import paths of data sets, names of pretrained trunks."""
    data, weights = set(), set()
    for config in spec.methods.values():
        dataset, trunk = config["data"]["dataset"], config["model"]["trunk"]
        data.add(dataset["class_path"] if isinstance(dataset, dict) else dataset)
        trunk = init_args(trunk).get("trunk", trunk)  # an ensemble's
        settings = dict(flatten({"trunk": trunk}))
        if settings.get("trunk.init_args.weights") == "pretrained":
            name = settings.get("trunk.init_args.name") or settings["trunk.class_path"].rpartition(".")[2]
            weights.add(str(name).removesuffix("Trunk"))
    return data, weights


def _values(spec: StudySpec) -> dict[str, list[str]]:
    """The names that a sweep gave each method, in order."""
    found: dict[str, list[str]] = {}
    for name in spec.methods:
        found.setdefault(without_value(name) if value_of(name) else name, []).append(name)
    return found


def _small(config: Config, texts: Path) -> Config:
    model, data = dict(config["model"]), dict(config["data"])
    reads_texts = "TransformersTrunk" in str(model["trunk"])
    tiny = _tiny("tiny_text" if reads_texts else "tiny")
    arguments = init_args(model["trunk"])
    model["trunk"] = {**model["trunk"], "init_args": {**arguments, "trunk": tiny}} if "trunk" in arguments else tiny
    if "LayerNormEmbedder" in str(model.get("embedder")):
        model["embedding_size"] = TINY_FEATURES  # its only size
    for place in ("root", "cache"):
        data.pop(place, None)
    if data.get("split") == "official":
        del data["split"]  # letters have no official split
    data |= {"dataset": _made_up(texts) if reads_texts else LETTERS, "steps_per_epoch": 1, "num_workers": 0}
    if not reads_texts:
        given = data.get("transforms") or {}
        small = {key: size for key, size in SIZES.items() if given.get(key) is not None or key == "crop_size"}
        data["transforms"] = {**given, **small}
    trainer = {**config["trainer"], "max_epochs": 2, "check_val_every_n_epoch": 1, "accelerator": "cpu"}
    return {**config, "model": model, "data": data, "trainer": {**trainer, "log_every_n_steps": 1}}


def _tiny(name: str) -> Any:
    file = find_configuration(f"trunk/{name}")
    assert file is not None, f"configs/trunk/{name}.yaml is shipped"
    return read_yaml(file)["model"]["trunk"]


def _made_up(table: Path) -> Config:
    """Texts that are about one thing in each class."""
    rows = [
        f"note {sample} about thing{number} and what thing{number} does,thing {number:02d}"
        for number in range(CLASSES_OF_TEXTS)
        for sample in range(TEXTS_OF_A_CLASS)
    ]
    write_atomically(table, "\n".join(["text,label", *rows, ""]).encode())
    return {"class_path": "levelfield.data.datasets.TextTable", "init_args": {"table": str(table)}}
