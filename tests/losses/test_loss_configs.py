"""The shipped methods and their search spaces."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser
from loss_cases import needs_classes, shipped

from levelfield import losses, miners, regularizers

CONFIGS = Path(__file__).parents[2] / "configs" / "method"
# A sum of losses, which the learner makes: tests/study/test_shipped_studies.py.
SUM = CONFIGS / "cross_batch_memory.yaml"
FILES = sorted({*CONFIGS.glob("*.yaml")} - {SUM})


def test_every_loss_has_a_configuration():
    paths = {yaml.safe_load(file.read_text())["model"]["loss"]["class_path"] for file in FILES}
    for loss in shipped():
        file = loss.__module__.rpartition(".")[2]
        assert f"levelfield.losses.{loss.__name__}" in paths, f"{loss.__name__}: write configs/method/{file}.yaml"
    assert len(paths) == len(shipped())


def test_every_regularizer_has_a_configuration():
    models = [yaml.safe_load(file.read_text())["model"] for file in FILES]
    paths = {model["regularizer"]["class_path"] for model in models if "regularizer" in model}
    listed = set(regularizers.__all__) - {"Regularizer"}
    assert paths == {f"levelfield.regularizers.{name}" for name in listed}


def regularizer_file(regularizer: regularizers.Regularizer) -> str:
    return type(regularizer).__module__.rpartition(".")[2]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_configuration_builds_its_loss_and_its_space_names_arguments(file):
    config = yaml.safe_load(file.read_text())
    model = config["model"]
    assert set(config) - {"data"} == {"model", "search"}
    cls = getattr(losses, model["loss"]["class_path"].rpartition(".")[2])
    with_classes = needs_classes(cls)
    needed = {"num_classes": 3, "embedding_size": 4} if with_classes else {}
    parser = ArgumentParser()
    parser.add_class_arguments(cls, "loss")
    parser.parse_object({"loss": {**model["loss"]["init_args"], **needed}})
    cls(**model["loss"]["init_args"], **needed)
    if "miner" in model:
        getattr(miners, model["miner"]["class_path"].rpartition(".")[2])(**model["miner"]["init_args"])
    if "regularizer" in model:
        given = model["regularizer"]["init_args"]
        regularizer = getattr(regularizers, model["regularizer"]["class_path"].rpartition(".")[2])(**given)
        assert (regularizer.of == "raw_embeddings") <= (model.get("normalize") is False)
        assert (regularizer.of == "class_weights") <= with_classes
        bounds = config["search"]["model.regularizer.init_args.weight"]
        assert bounds["low"] <= regularizer.weight <= bounds["high"]
        plain = yaml.safe_load(
            (CONFIGS / f"{file.stem.partition(f'_{regularizer_file(regularizer)}')[0]}.yaml").read_text()
        )
        assert model["loss"] == plain["model"]["loss"]
        assert plain["search"].items() <= config["search"].items()
    needs_pairs = not with_classes or cls is losses.PotentialFieldLoss  # its samples meet each other, too
    assert (config.get("data") == {"samples_per_class": 1}) != needs_pairs

    accepted = parser.get_defaults()["loss"].__dict__
    for key, bounds in config["search"].items():
        assert set(bounds) - {"integer"} == {"low", "high", "scale"}
        assert bounds["low"] < bounds["high"]
        assert bounds["scale"] in {"linear", "log"}
        if key.startswith("model.loss.init_args."):
            argument = key.rpartition(".")[2]
            assert argument in accepted
            value = model["loss"]["init_args"].get(argument, accepted[argument])
            assert bounds["low"] <= value <= bounds["high"]
        else:
            assert key in {"model.loss_lr", "model.miner.init_args.epsilon", "model.regularizer.init_args.weight"}
