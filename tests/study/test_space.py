"""Spaces with values to choose from and with arguments that go together."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml

from levelfield.core.configuration import read_yaml
from levelfield.errors import UserError
from levelfield.study.jobs import Job, job_config
from levelfield.study.rows import load_spec
from levelfield.study.search_space import coordinates, read_space
from levelfield.study.spec import StudySpec
from levelfield.study.suggest import Trial, at_bound, suggest
from levelfield.training.build import build

SGD = {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}
CONTENT = {
    "model.trunk_lr": {"low": 1e-5, "high": 1e-3, "scale": "log", "tied": ["model.embedder_lr", "model.loss_lr"]},
    "data.batch_size": {
        "values": {
            32: {"data.samples_per_class": 2},
            64: {"data.samples_per_class": 4},
            128: {"data.samples_per_class": 8},
        }
    },
    "model.optimizer": {"values": ["torch.optim.Adam", SGD]},
}
SPACE = read_space(CONTENT, "s.yaml")
RATES = ("model.trunk_lr", "model.embedder_lr", "model.loss_lr")
CONFIGS = Path(__file__).parents[2] / "configs"
# What several studies extend is no study by itself.
STUDIES = [path for path in sorted((CONFIGS / "study").rglob("*.yaml")) if path.stem not in ("methods", "counts")]


def search(trials: int, sampler: str) -> list[Trial]:
    """Batches of 64 with SGD are best, whatever the rate; trial 2 fails."""
    ended: list[Trial] = []
    for number in range(trials):
        tried = suggest(SPACE, ended, number, 0, "circle", sampler)
        value = (tried["data.batch_size"] == 64) + 0.5 * (tried["model.optimizer"] == SGD)
        ended.append(Trial(number, tried, None if number == 2 else value))
    return ended


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_what_goes_together_is_tried_together(sampler: str) -> None:
    for trial in search(8, sampler):
        tried = trial.parameters
        assert list(tried) == [*RATES, "data.batch_size", "data.samples_per_class", "model.optimizer"]
        assert len({tried[rate] for rate in RATES}) == 1
        assert 1e-5 <= tried["model.trunk_lr"] <= 1e-3
        assert tried["data.batch_size"] == 16 * tried["data.samples_per_class"]
        assert tried["data.batch_size"] in (32, 64, 128)
        assert tried["model.optimizer"] in ("torch.optim.Adam", SGD)
        assert at_bound(SPACE, {**tried, "model.trunk_lr": 1e-4}) == [], "a choice has no bound"


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_the_search_finds_the_better_values(sampler: str) -> None:
    """Of 16 points that the samplers choose themselves a third would have batches of 64 by chance, half of them SGD."""
    chosen = [trial.parameters for trial in search(21, sampler)[5:]]
    assert Counter(tried["data.batch_size"] for tried in chosen)[64] > 8
    assert sum(tried["model.optimizer"] == SGD for tried in chosen) > 10


def test_a_suggestion_is_the_same_in_any_order() -> None:
    ended = search(8, "gp")
    shuffled = random.Random(0).sample(ended, 8)
    reversed_space = dict(reversed(SPACE.items()))
    assert suggest(reversed_space, shuffled, 8, 0, "circle") == suggest(SPACE, ended, 8, 0, "circle")


def test_choices_are_equally_likely() -> None:
    """Of 3,000 random points 1,000 have each batch size, standard deviation 26, and 1,500 each optimizer, 27."""
    points = [suggest(SPACE, [], number, 3, "circle", "random") for number in range(3000)]
    sizes = Counter(point["data.batch_size"] for point in points)
    assert all(abs(sizes[size] - 1000) < 130 for size in (32, 64, 128))
    assert abs(sum(point["model.optimizer"] == SGD for point in points) - 1500) < 137


def test_the_first_points_spread_over_the_choices() -> None:
    """Any 4 of a Sobol sequence that begin at a multiple of 4 have one in each quarter: of two values, two each."""
    for seed in range(5):
        points = [suggest(SPACE, [], number, seed, "circle") for number in range(4)]
        assert sum(point["model.optimizer"] == SGD for point in points) == 2
        assert len({point["data.batch_size"] for point in points}) >= 2


def test_a_point_is_known_by_its_settings() -> None:
    tried = suggest(SPACE, [], 3, 0, "circle")
    found = coordinates(SPACE, tried)
    assert found["model.trunk_lr"] == tried["model.trunk_lr"]
    assert [32, 64, 128][found["data.batch_size"]] == tried["data.batch_size"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"m": {"values": 3}}, "m: values must be a list, or a mapping"),
        ({"m": {"values": {1: 2}}}, "m: values must be a list, or a mapping"),
        ({"m": {"values": [1]}}, "m: give two or more different values"),
        ({"m": {"values": [1, 2, 1]}}, "m: give two or more different values"),
        ({"m": {"values": {1: {"a": 1}, 2: {}}}}, "m: all values must have settings of the same keys"),
        ({"m": {"values": [1, 2], "low": 0}}, "m: unknown key 'low'"),
        ({"m": {"low": 0, "high": 1, "tied": "a"}}, "m: tied must be a list of dotted keys"),
        ({"m": {"low": 0, "high": 1, "tied": ["a"]}, "a": {"low": 0, "high": 1}}, "s.yaml: both m and a set a"),
        ({"m": {"values": {1: {"a": 1}, 2: {"a": 2}}}, "a": {"low": 0, "high": 1}}, "both m and a set a"),
    ],
)
def test_a_wrong_space_is_named(content: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_space(content, "s.yaml")


def test_a_job_has_what_was_suggested(tmp_path: Path) -> None:
    space = {key: CONTENT[key] for key in ("model.trunk_lr", "data.batch_size", "model.optimizer")}
    method = {"model": {"loss": "ArcFaceLoss", "optimizer": {"class_path": "torch.optim.Adam"}}, "search": space}
    trunk = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
    base = {"model": {"trunk": trunk}, "data": {"dataset": "Glyphs"}, "trainer": {"accelerator": "cpu"}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"base": [base], "methods": {"arcface": method}}))
    spec = load_spec(tmp_path / "s.yaml", {"search.trials": 3})
    (tmp_path / "study.yaml").write_text(spec.to_yaml())
    assert StudySpec.read(tmp_path / "study.yaml").row_hashes == spec.row_hashes
    points = (suggest(spec.space("arcface"), [], number, 0, "a") for number in range(4))
    tried = next(point for point in points if point["model.optimizer"] == SGD)
    training = build(job_config(spec, Job("arcface", "trial", 0, 0), tried), tmp_path / "job", progress=False)
    assert training.datamodule.batch_size == 16 * training.datamodule.samples_per_class == tried["data.batch_size"]
    training.model.build_loss(5)
    optimizer = training.model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    assert {group["lr"] for group in optimizer.param_groups} == {tried["model.trunk_lr"]}
    assert {group["momentum"] for group in optimizer.param_groups} == {0.9}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_study_can_be_searched(path: Path) -> None:
    spec = load_spec(path, {"search.trials": 5})
    untrained = {"pretrained", *spec.derived}
    trained = [method for method in spec.methods if method.partition("[")[0] not in untrained]
    assert [method for method in trained if not spec.trials(method)] == []
    for method in trained:
        tried = suggest(spec.space(method), [], 0, spec.seed, method)
        config = job_config(spec, Job(method, "trial", 0, 0), tried)
        for key, value in tried.items():
            place = config
            for part in key.split("."):
                place = place[part]
            assert place == value


def test_the_spaces_of_vasilev_and_dyakonov() -> None:
    """Section 4.2.3: one learning rate from 1e-5 to 1e-3, batches from 32 to 128."""
    for name in ("vasilev_dyakonov", "vasilev_dyakonov_text"):
        space = read_space(read_yaml(CONFIGS / "protocol" / f"{name}.yaml")["search"], name)
        rate, batch = space.values()
        assert (rate.low, rate.high) == (1e-5, 1e-3)
        assert set(rate.keys("model.trunk_lr")) == set(RATES)
        assert [option["data.batch_size"] for option in batch.options] == [32, 64, 128]
        classes = {option["data.batch_size"] / option["data.samples_per_class"] for option in batch.options}
        assert len(classes) == 1, "as many classes in each"
