"""The search: spaces, suggestions that are a function of the ended trials, advice."""

import json
import logging
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
from scipy.stats.qmc import Sobol

from levelfield.core.configuration import read_yaml
from levelfield.errors import UserError
from levelfield.study.search_space import Range, configured, read_space
from levelfield.study.suggest import Trial, at_bound, best_trial, suggest

METHODS = sorted((Path(__file__).parents[2] / "configs" / "method").glob("*.yaml"))
SPACE = {
    "model.loss_lr": Range(1e-6, 1.0, "log"),
    "model.loss.init_args.margin": Range(0.0, 90.0),
    "model.loss.init_args.num_bins": Range(2.0, 250.0, integer=True),
}


def score(parameters: dict[str, float]) -> float:
    """Best (0) at a rate of 1e-3, a margin of 30 and 100 bins."""
    rate, margin, bins = parameters.values()
    return -(((math.log10(rate) + 3) / 6) ** 2 + ((margin - 30) / 90) ** 2 + ((bins - 100) / 248) ** 2)


def trials(count: int, sampler: str = "gp") -> list[Trial]:
    """A search of which trials 3 and 6 fail."""
    ended: list[Trial] = []
    for number in range(count):
        parameters = suggest(SPACE, ended, number, 0, "arcface", sampler)
        value = None if number in (3, 6) else score(parameters)
        ended.append(Trial(number, parameters, value, "loss is not finite" if value is None else None))
    return ended


@pytest.fixture(scope="module")
def eight() -> list[Trial]:
    return trials(8)


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_shipped_space_is_read_and_searched(path: Path) -> None:
    space = read_space(read_yaml(path)["search"], str(path))
    assert all(key.startswith(("model.loss.", "model.miner.", "model.regularizer.", "model.loss_lr")) for key in space)
    parameters = suggest(space, [], 0, 0, path.stem)
    assert list(parameters) == [each for key, place in space.items() for each in place.keys(key)]
    assert all(place.low <= parameters[each] <= place.high for key, place in space.items() for each in place.keys(key))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "s.yaml must map dotted keys to ranges"),
        ({"m": 3}, "s.yaml: m must be a range"),
        ({"m": {"low": 0, "hihg": 1}}, "s.yaml: m: unknown key 'hihg'"),
        ({"m": {"low": 0}}, "s.yaml: m: high must be a number, not None"),
        ({"m": {"low": "a", "high": 1}}, "s.yaml: m: low must be a number, not 'a'"),
        ({"m": {"low": 0, "high": float("inf")}}, "s.yaml: m: high must be a number, not inf"),
        ({"m": {"low": False, "high": 1}}, "s.yaml: m: low must be a number, not False"),
        ({"m": {"low": 1, "high": 1}}, "low (1) must be below high (1)"),
        ({"m": {"low": 0, "high": 1, "scale": "log"}}, "a log scale needs a low above 0"),
        ({"m": {"low": 0, "high": 1, "scale": "lin"}}, "scale must be linear or log, not 'lin'"),
        ({"m": {"low": 0.5, "high": 9, "integer": True}}, "must be whole numbers, not 0.5 and 9"),
        ({"m": {"low": 0, "high": 9, "integer": 1}}, "integer must be true or false, not 1"),
    ],
)
def test_a_wrong_space_names_file_key_and_remedy(content: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_space(content, "s.yaml")  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_first_five_are_sobol_points_in_each_range_s_scale() -> None:
    for method in ("arcface", "arcface@2"):
        points = [suggest(SPACE, [], number, 7, method) for number in range(5)]
        positions = np.array([[SPACE[key].position(value) for key, value in point.items()] for point in points])
        # The first four points of a Sobol sequence have one in each quarter of every axis.
        quarters = np.sort((positions[:4] * 4).astype(int), axis=0)
        assert (quarters == np.arange(4)[:, None]).all()
        assert all(isinstance(point["model.loss.init_args.num_bins"], int) for point in points)
    assert points[0] != suggest(SPACE, [], 0, 7, "arcface") != suggest(SPACE, [], 0, 8, "arcface")


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_the_first_trial_is_the_method_s_own_setting_where_it_lies_in_the_space(sampler: str) -> None:
    space = read_space(
        {
            "model.loss.scale": {"low": 1, "high": 100, "scale": "log"},
            "model.loss.init_args.margin": {"low": 0, "high": 1},
            "model.embedder_lr": {"low": 0.1, "high": 1},
            "data.batch_size": {"values": {16: {"data.samples_per_class": 2}, 32: {"data.samples_per_class": 4}}},
        },
        "s.yaml",
    )
    config = {
        "model": {"loss": {"class_path": "L", "init_args": {"scale": 64.0, "margin": 7.0}}},
        "data": {"batch_size": 32, "samples_per_class": 4},
    }
    own = configured(space, config)
    first = suggest(space, [], 0, 0, "arcface", sampler, own)
    assert first["model.loss.scale"] == 64.0
    assert (first["data.batch_size"], first["data.samples_per_class"]) == (32, 4)
    # Outside the space, and not said: as without an own setting.
    without = suggest(space, [], 0, 0, "arcface", sampler)
    for key in ("model.loss.init_args.margin", "model.embedder_lr"):
        assert first[key] == without[key]
    assert suggest(space, [], 1, 0, "arcface", sampler, own) == suggest(space, [], 1, 0, "arcface", sampler)


def test_sobol_points_do_not_depend_on_how_many_are_drawn() -> None:
    drawn = Sobol(1, scramble=True, seed=5).random_base2(4)
    assert (Sobol(1, scramble=True, seed=5).random_base2(3) == drawn[:8]).all()
    # Without a value to learn from the search stays quasi-random.
    failed = [Trial(n, suggest(SPACE, [], n, 0, "arcface"), None, "out of memory") for n in range(6)]
    assert suggest(SPACE, failed, 6, 0, "arcface") == suggest(SPACE, [], 6, 0, "arcface")


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_a_suggestion_is_a_function_of_its_arguments(sampler: str, eight: list[Trial]) -> None:
    first = suggest(SPACE, eight, 8, 0, "arcface", sampler)
    shuffled = random.Random(0).sample(eight, len(eight))
    assert suggest(SPACE, shuffled, 8, 0, "arcface", sampler) == first
    assert suggest(dict(reversed(SPACE.items())), eight, 8, 0, "arcface", sampler) == first
    assert list(first) == list(SPACE)
    assert [type(value) for value in first.values()] == [float, float, int]
    assert all(SPACE[key].low <= value <= SPACE[key].high for key, value in first.items())
    assert suggest(SPACE, eight, 8, 0, "arcface@2", sampler) != first


@pytest.mark.processes
def test_a_suggestion_is_the_same_in_another_process_with_more_threads(eight: list[Trial]) -> None:
    here = [suggest(SPACE, eight, 8, 0, "arcface", sampler) for sampler in ("gp", "tpe", "random")]
    told = [[trial.number, trial.parameters, trial.value, trial.failure] for trial in eight]
    program = (
        "import json, sys, torch; torch.set_num_threads(3); torch.manual_seed(1)\n"
        "from levelfield.study.search_space import Range\n"
        "from levelfield.study.suggest import Trial, suggest\n"
        "space, told = json.load(sys.stdin)\n"
        "space = {key: Range(*place) for key, place in space.items()}\n"
        "trials = [Trial(*trial) for trial in told]\n"
        "found = [suggest(space, trials, 8, 0, 'arcface', sampler) for sampler in ('gp', 'tpe', 'random')]\n"
        "assert torch.get_num_threads() == 3\n"
        "print(json.dumps(found))"
    )
    plain = {key: [place.low, place.high, place.scale, place.integer] for key, place in SPACE.items()}
    there = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps([plain, told]), capture_output=True, text=True, check=True
    )
    assert json.loads(there.stdout) == here
    assert there.stderr == ""


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_nothing_global_is_changed(
    sampler: str, eight: list[Trial], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def state() -> list[object]:
        name, keys, *rest = np.random.get_state()
        return [
            torch.get_rng_state().tolist(),
            (name, keys.tolist(), *rest),
            random.getstate(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            optuna.logging.get_verbosity(),
        ]

    before = state()
    with caplog.at_level(logging.INFO):
        suggest(SPACE, eight, 8, 0, "arcface", sampler)
    assert state() == before
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_the_trials_of_a_batch_are_apart(eight: list[Trial]) -> None:
    batch = [suggest(SPACE, eight, number, 0, "arcface") for number in (8, 9, 10)]
    positions = np.array([[SPACE[key].position(value) for key, value in point.items()] for point in batch])
    distances = [np.abs(a - b).max() for i, a in enumerate(positions) for b in positions[:i]]
    assert min(distances) > 0.02


@pytest.mark.parametrize(("sampler", "reached"), [("gp", -0.01), ("tpe", -0.05)])
def test_the_search_finds_the_maximum_despite_failures(sampler: str, reached: float) -> None:
    found = best_trial(trials(20, sampler))
    assert found is not None
    assert found.value is not None
    assert found.value > reached


def test_failures_keep_the_search_away() -> None:
    """A loss that diverges above a rate of 1e-3, where it would be best."""
    space = {"model.loss_lr": Range(1e-6, 1.0, "log")}
    ended: list[Trial] = []
    for number in range(16):
        rate = suggest(space, ended, number, 0, "arcface")["model.loss_lr"]
        failed = rate > 1e-3
        value = None if failed else math.log10(rate)
        ended.append(Trial(number, {"model.loss_lr": rate}, value, "loss is not finite" if failed else None))
    found = best_trial(ended)
    assert found is not None
    assert found.parameters["model.loss_lr"] > 2e-4
    assert sum(trial.failure is not None for trial in ended[5:]) <= 6


def test_an_empty_space_and_an_unknown_sampler() -> None:
    assert suggest({}, [], 6, 0, "prototypical") == {}
    with pytest.raises(ValueError, match="no sampler 'grid'; there are gp, tpe, random"):
        suggest(SPACE, [], 0, 0, "arcface", "grid")


def test_the_best_trial_is_the_first_of_equals() -> None:
    assert best_trial([]) is None
    assert best_trial([Trial(0, {}, None, "out of memory")]) is None
    found = best_trial([Trial(2, {}, 0.5), Trial(1, {}, 0.5), Trial(0, {}, 0.4), Trial(3, {}, None)])
    assert found == Trial(1, {}, 0.5)


def test_a_value_near_a_bound_is_told() -> None:
    assert (
        at_bound(SPACE, {"model.loss_lr": 1e-3, "model.loss.init_args.margin": 1, "model.loss.init_args.num_bins": 9})
        == []
    )
    low, high = at_bound(
        SPACE,
        # 1% of six decades is a factor of 1.148; 1% of 90 degrees is 0.9; 245 of 2..250 is 2% away.
        {"model.loss_lr": 1.14e-6, "model.loss.init_args.margin": 89.1, "model.loss.init_args.num_bins": 245},
    )
    assert low == (
        "model.loss_lr is 1.14e-06, at or within 1% of the lower bound 1e-06 of its space: a "
        "better value may be outside; widen the space and search again"
    )
    assert high.startswith("model.loss.init_args.margin is 89.1, at or within 1% of the upper bound 90 of its space")
    assert at_bound({"m": Range(1e-6, 1.0, "log")}, {"m": 1.16e-6}) == []
