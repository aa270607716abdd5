"""Configurations: found by their names from any folder, and laid over each other by one merge."""

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from refused import refused, succeeded
from tiny_fit import REPOSITORY

from levelfield.cli.options import configuration, dotted, read
from levelfield.core.configuration import find_configuration, merge, parse_value, set_dotted
from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.study.rows import find_study
from levelfield.training.learner import MetricLearner
from levelfield.training.settings import parse_training, plain

ARCFACE = {"model": {"loss": {"class_path": "ArcFaceLoss", "init_args": {"margin": 20, "scale": 10}}}}
MEMORY = {  # whole names: the peers have classes of the same
    "class_path": "levelfield.losses.CrossBatchMemory",
    "init_args": {"loss": {"class_path": "levelfield.losses.MultiSimilarityLoss"}, "memory_size": 64},
}
OTHER_LOSS = {"model": {"loss": {"loss": "levelfield.losses.ContrastiveLoss"}}}
TEXT = {"class_path": "TransformersTrunk", "init_args": {"name": "x", "config": {"dim": 8, "n_heads": 2}}}
SMALL = {"model": {"trunk": {"config": {"dim": 4}}}}
LOSS, TRUNK = "model.loss.init_args", "model.trunk.init_args"
LONG = {"model": {"loss": {**ARCFACE["model"]["loss"], "class_path": "levelfield.losses.ArcFaceLoss"}}}


@pytest.mark.parametrize(
    ("layers", "options", "key", "value"),
    [
        ([ARCFACE, {"model": {"loss": "CosFaceLoss"}}], {}, f"{LOSS}.margin", 0.35),
        ([ARCFACE], {"model.loss.class_path": "CosFaceLoss"}, f"{LOSS}.margin", 0.35),
        ([ARCFACE, {"model": {"loss": "ArcFaceLoss"}}], {}, f"{LOSS}.margin", 20),
        ([ARCFACE, {"model": {"loss": {"scale": 11}}}], {}, f"{LOSS}.margin", 20),
        ([ARCFACE], {"model.loss.scale": "11"}, f"{LOSS}.margin", 20),
        ([LONG], {"model.loss": "levelfield.losses.arcface.ArcFaceLoss"}, f"{LOSS}.margin", 20),
        ([{"model": {"loss": MEMORY}}, OTHER_LOSS], {}, f"{LOSS}.memory_size", 64),
        ([ARCFACE], {"model.trunk": "BNInceptionTrunk"}, f"{TRUNK}.weights", "pretrained"),
        ([ARCFACE, {"model": {"trunk": TEXT}}, SMALL], {}, f"{TRUNK}.config", {"dim": 4}),
        ([ARCFACE, {"model": {"miner": "MultiSimilarityMiner"}}], {"model.miner": "null"}, "model.miner", None),
    ],
)
def test_a_study_lays_settings_over_each_other_as_a_fit_does(
    layers: list[dict[str, Any]], options: dict[str, str], key: str, value: Any, tmp_path: Path
) -> None:
    files, merged = [], {"data": {"dataset": "Glyphs"}}
    for number, layer in enumerate(layers):
        files.append(str(file := tmp_path / f"{number}.yaml"))
        file.write_text(yaml.safe_dump(layer))
        merged = merge(merged, layer)
    for option, text in options.items():
        merged = set_dotted(merged, option, parse_value(text))
    of_fit = configuration(files, [("data.dataset", "Glyphs"), *options.items()])
    fit = plain(*parse_training(MetricLearner, MetricDataModule, of_fit, "fit"))
    study = plain(*parse_training(MetricLearner, MetricDataModule, merged))
    assert {part: fit[part] for part in merged} == {part: study[part] for part in merged}
    assert reduce(getitem, key.split("."), fit) == value


CALLBACKS = [
    *(("trainer.callbacks+", "EarlyStopping"), ("trainer.callbacks.monitor", "val/loss")),
    *(("trainer.callbacks+", "LearningRateMonitor"), ("trainer.callbacks.logging_interval", "step")),
]


def test_a_key_that_appends_may_be_given_several_times_each_with_arguments(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("trainer: {callbacks+: [ValidateFirst]}\n")
    files = [str(tmp_path / "one.yaml")]
    of_study = reduce(lambda config, each: set_dotted(config, *each), dotted(files, CALLBACKS).items(), {})
    expected = [
        "ValidateFirst",
        {"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss"}},
        {"class_path": "LearningRateMonitor", "init_args": {"logging_interval": "step"}},
    ]
    assert configuration(files, CALLBACKS)["trainer"]["callbacks"] == expected
    assert of_study["trainer"]["callbacks"] == expected
    again = [*CALLBACKS, ("trainer.callbacks", "[]"), ("trainer.callbacks+", "ValidateFirst")]
    assert configuration(files, again)["trainer"]["callbacks"] == ["ValidateFirst"]
    assert dotted(files, again) == {"trainer.callbacks": [], "trainer.callbacks+": ["ValidateFirst"]}


def test_options_win_over_files_and_what_is_no_number_stays_text(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: nine\nmodel: {loss: ArcFaceLoss, embedding_size: 9}\n")
    words = ["--name", "5", "--model.embedding_size=8", "--model.miner", "null"]
    config = configuration([str(tmp_path / "one.yaml")], read("fit", words).settings)
    assert config == {"name": "5", "model": {"loss": "ArcFaceLoss", "embedding_size": "8", "miner": None}}
    parsed = parse_training(MetricLearner, MetricDataModule, merge(config, {"data": {"dataset": "Glyphs"}}), "fit")[1]
    assert (parsed.name, parsed.model.embedding_size) == ("5", 8)


def test_the_root_of_the_data_is_the_data_set_s_unless_it_has_one() -> None:
    config = {"model": {"loss": "ArcFaceLoss"}, "data": {"dataset": "Omniglot", "root": "all"}}
    assert parse_training(MetricLearner, MetricDataModule, config)[1].data.dataset.init_args.root == "all"
    own = set_dotted(config, "data.dataset.root", "letters")
    assert parse_training(MetricLearner, MetricDataModule, own)[1].data.dataset.init_args.root == "letters"


CONFIGS = REPOSITORY / "configs"
NAMES = ("configs/data/glyphs.yaml", "data/glyphs.yaml", "data/glyphs")


def test_the_working_directory_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        assert find_configuration(name) == CONFIGS / "data/glyphs.yaml"
    for name in ("quickstart", "quickstart.yaml", "study/quickstart", "configs/study/quickstart.yaml"):
        assert find_study(name) == CONFIGS / "study/quickstart.yaml"
    for place in ("configs/data", "configs/study", "data"):
        Path(place).mkdir(parents=True)
    for file in (CONFIGS / "data/glyphs.yaml", CONFIGS / "study/quickstart.yaml"):
        Path("configs", file.relative_to(CONFIGS)).write_text(file.read_text())
    assert {str(find_configuration(name)) for name in NAMES} == {"configs/data/glyphs.yaml"}
    assert find_study("quickstart") == Path("configs/study/quickstart.yaml")
    Path("data/glyphs.yaml").touch()
    assert find_configuration("data/glyphs") == Path("data/glyphs.yaml")
    with pytest.raises(UserError, match=r"no study file 'quikstart'; did you mean 'quickstart'\?"):
        find_study("quikstart")


def test_a_fit_stacks_shipped_files_and_sets_a_methods_search_aside(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "data/glyphs.yaml", "--config=configs/trunk/tiny.yaml", "--config", "method/adaface"]
    printed = succeeded(run("fit", *words, "--print_config"))
    shown, shipped = yaml.safe_load(printed), yaml.safe_load((CONFIGS / "method/adaface.yaml").read_text())
    assert "search" not in shown
    assert shown["model"]["loss"]["init_args"].items() >= shipped["model"]["loss"]["init_args"].items()
    assert shown["data"]["samples_per_class"] == shipped["data"]["samples_per_class"]
    meant = "did you mean 'data/glyphs.yaml'?"
    refused(run("fit", "--config=data/glyhps.yaml"), f"--config: no file 'data/glyhps.yaml'; {meant}")
    Path("mine.yaml").write_text((CONFIGS / "study/smoke.yaml").read_text())  # a copy finds the files that it names
    refused(run("study", "status", "mine.yaml"), "no study in outputs/smoke; begin it with levelfield study run")
    Path("mine.yaml").write_text("base: ../data/glyhps.yaml\nmethods: {arcface: ArcFaceLoss}\n")
    refused(run("study", "status", "mine.yaml"), meant)
