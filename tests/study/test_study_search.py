"""The search: spaces, and suggestions, settings and an order of jobs that are functions of the results alone."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
import yaml
from refused import refuses
from small_fit import small_config

from levelfield.core.configuration import find_configuration, read_yaml
from levelfield.core.files import write_json
from levelfield.report.facts import selected
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, job_config, job_seed, study_jobs
from levelfield.study.progress import seconds_left
from levelfield.study.rows import load_spec
from levelfield.study.search_space import SAMPLERS, Axis, configured, read_space
from levelfield.study.spec import SearchSettings, StudySpec
from levelfield.study.state import setting
from levelfield.study.suggest import Trial, at_bound, best_trial, suggest
from levelfield.training.build import Training

SPACE = {
    "model.loss_lr": Axis(1e-6, 1.0, "log"),
    "model.loss.init_args.margin": Axis(0.0, 90.0),
    "model.loss.init_args.num_bins": Axis(2.0, 250.0, integer=True),
}
# Values to choose from, and arguments that go together.
SGD = {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}
CONTENT = {
    "model.trunk_lr": {"low": 1e-5, "high": 1e-3, "scale": "log", "tied": ["model.embedder_lr", "model.loss_lr"]},
    "data.batch_size": {"values": {16 * each: {"data.samples_per_class": each} for each in (2, 4, 8)}},
    "model.optimizer": {"values": ["torch.optim.Adam", SGD]},
}
MIXED = read_space(CONTENT, "s.yaml")
RATES = ("model.trunk_lr", "model.embedder_lr", "model.loss_lr")


@pytest.fixture(scope="module")
def eight() -> list[Trial]:
    """A search of which trials 3 and 6 fail; a rate of 1e-3, a margin of 30 and 100 bins are best."""
    ended: list[Trial] = []
    for number in range(8):
        tried = suggest(SPACE, ended, number, 0, "arcface")
        rate, margin, bins = tried.values()
        value = -(((math.log10(rate) + 3) / 6) ** 2 + ((margin - 30) / 90) ** 2 + ((bins - 100) / 248) ** 2)
        ended.append(Trial(number, tried, None if number in (3, 6) else value))
    return ended


def test_the_first_five_are_sobol_points_in_each_range_s_scale() -> None:
    for method in ("arcface", "arcface@2"):
        points = [suggest(SPACE, [], number, 7, method) for number in range(5)]
        positions = np.array([[SPACE[key].position(value) for key, value in point.items()] for point in points])
        # The first four points of a Sobol sequence have one in each quarter of every axis.
        quarters = np.sort((positions[:4] * 4).astype(int), axis=0)
        assert (quarters == np.arange(4)[:, None]).all()
        assert all(isinstance(point["model.loss.init_args.num_bins"], int) for point in points)
    assert suggest({}, [], 6, 0, "prototypical") == {}
    assert points[0] != suggest(SPACE, [], 0, 7, "arcface") != suggest(SPACE, [], 0, 8, "arcface")
    # Without a value to learn from the search stays quasi-random.
    failed = [Trial(n, suggest(SPACE, [], n, 0, "arcface"), None, "out of memory") for n in range(6)]
    assert suggest(SPACE, failed, 6, 0, "arcface") == suggest(SPACE, [], 6, 0, "arcface")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_first_trial_is_the_method_s_own_setting_where_it_lies_in_the_space(sampler: str) -> None:
    scale, margin, rate = (Axis(1, 100, "log"), Axis(0, 1), Axis(0.1, 1))
    batches = read_space({"data.batch_size": CONTENT["data.batch_size"]}, "s.yaml")
    space = {"model.loss.scale": scale, "model.loss.init_args.margin": margin, "model.embedder_lr": rate, **batches}
    loss = {"class_path": "L", "init_args": {"scale": 64.0, "margin": 7.0}}
    own = configured(space, {"model": {"loss": loss}, "data": {"batch_size": 64, "samples_per_class": 4}})
    first, without = (suggest(space, [], 0, 0, "arcface", sampler, *each) for each in ([own], []))
    assert first["model.loss.scale"] == 64.0
    assert (first["data.batch_size"], first["data.samples_per_class"]) == (64, 4)
    for key in ("model.loss.init_args.margin", "model.embedder_lr"):
        assert first[key] == without[key], "outside the space, and not said: as without an own setting"
    assert suggest(space, [], 1, 0, "arcface", sampler, own) == suggest(space, [], 1, 0, "arcface", sampler)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_suggestion_is_a_function_of_its_arguments_and_changes_nothing_global(sampler, eight, capfd):
    def state() -> list[object]:
        drawn = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
        return [*drawn, torch.get_num_threads(), torch.get_default_dtype(), optuna.logging.get_verbosity()]

    first = suggest(SPACE, eight, 8, 0, "arcface", sampler)
    shuffled = random.Random(0).sample(eight, len(eight))
    for threads in (3, 1):
        torch.set_num_threads(threads)
        torch.manual_seed(threads)
        before = state()
        assert suggest(dict(reversed(SPACE.items())), shuffled, 8, 0, "arcface", sampler) == first
        assert state() == before
    assert capfd.readouterr() == ("", "")
    assert [(key, type(value)) for key, value in first.items()] == [*zip(SPACE, (float, float, int), strict=True)]
    assert all(SPACE[key].low <= value <= SPACE[key].high for key, value in first.items())
    assert suggest(SPACE, eight, 8, 0, "arcface@2", sampler) != first
    second = suggest(SPACE, eight, 9, 0, "arcface", sampler)  # of the same batch
    assert max(abs(place.position(first[key]) - place.position(second[key])) for key, place in SPACE.items()) > 0.02


def test_failures_keep_the_search_away() -> None:
    """A loss that diverges above a rate of 1e-3, where it would be best."""
    ended: list[Trial] = []
    for number in range(16):
        tried = suggest({"rate": Axis(1e-6, 1.0, "log")}, ended, number, 0, "arcface")
        ended.append(Trial(number, tried, math.log10(tried["rate"]) if tried["rate"] <= 1e-3 else None))
    assert best_trial(ended).parameters["rate"] > 2e-4
    assert sum(trial.value is None for trial in ended[5:]) <= 6


def test_the_best_trial_is_the_first_of_equals() -> None:
    assert best_trial([]) is best_trial([Trial(0, {}, None, "out of memory")]) is None
    found = best_trial([Trial(2, {}, 0.5), Trial(1, {}, 0.5), Trial(0, {}, 0.4), Trial(3, {}, None)])
    assert found == Trial(1, {}, 0.5)


WRONG = """
[1] | s.yaml
{m: 3} | s.yaml: m
{m: {low: 0, hihg: 1}} | s.yaml: m
{m: {low: 0}} | s.yaml: m
{m: {low: a, high: 1}} | 'a'
{m: {low: 1, high: 1}} | low (1)
{m: {low: 0, high: 1, scale: log}} | log
{m: {low: 0, high: 1, scale: lin}} | scale: linear or log
{m: {low: 0.5, high: 9, integer: true}} | 0.5 and 9
{m: {low: 0, high: 9, integer: 1}} | integer: true or false
{m: {values: 3}} | s.yaml: m
{m: {values: [1, 2, 1]}} | m: give
{m: {values: {1: {a: 1}, 2: {}}}} | m: all values
{m: {low: 0, high: 1, tied: a}} | tied: [more keys]
{m: {low: 0, high: 1, tied: [a]}, a: {low: 0, high: 1}} | s.yaml: both m and a
{m: {values: {1: {a: 1}, 2: {a: 2}}}, a: {low: 0, high: 1}} | both m and a
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_space_names_file_key_and_remedy(line: str) -> None:
    content, key = line.split(" | ")
    refuses(re.escape(key), read_space, yaml.safe_load(content), "s.yaml")


def test_a_value_near_a_bound_is_told() -> None:
    assert at_bound(SPACE, dict(zip(SPACE, (1e-3, 1, 9), strict=True))) == []
    # 1% of six decades is a factor of 1.148; 1% of 90 degrees is 0.9; 245 of 2..250 is 2% away.
    low, high = at_bound(SPACE, dict(zip(SPACE, (1.14e-6, 89.1, 245), strict=True)))
    assert re.match(r"model\.loss_lr .*lower bound 1e-06", low)
    assert re.match(r"model\.loss\.init_args\.margin .*upper bound 90 ", high)
    assert at_bound({"m": Axis(1e-6, 1.0, "log")}, {"m": 1.16e-6}) == []


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_goes_together_is_tried_together(sampler: str) -> None:
    """Batches of 64 with SGD are best, whatever the rate, and trial 2 fails: the samplers choose them more often."""
    ended: list[Trial] = []
    for number in range(21):
        tried = suggest(MIXED, ended, number, 0, "circle", sampler)
        assert list(tried) == [*RATES, "data.batch_size", "data.samples_per_class", "model.optimizer"]
        assert len({tried[rate] for rate in RATES}) == 1
        assert 1e-5 <= tried["model.trunk_lr"] <= 1e-3
        assert tried["data.batch_size"] == 16 * tried["data.samples_per_class"] in (32, 64, 128)
        assert tried["model.optimizer"] in ("torch.optim.Adam", SGD)
        assert at_bound(MIXED, {**tried, "model.trunk_lr": 1e-4}) == [], "a choice has no bound"
        value = (tried["data.batch_size"] == 64) + 0.5 * (tried["model.optimizer"] == SGD)
        ended.append(Trial(number, tried, None if number == 2 else value))
    chosen = [trial.parameters for trial in ended[5:]]
    if sampler != "random":  # by chance 5 and 8 of 16
        assert sum(tried["data.batch_size"] == 64 for tried in chosen) > 8
        assert sum(tried["model.optimizer"] == SGD for tried in chosen) > 10


def test_choices_are_equally_likely() -> None:
    """Of 3,000 random points 1,000 have each batch size, standard deviation 26, and 1,500 each optimizer, 27."""
    points = [suggest(MIXED, [], number, 3, "circle", "random") for number in range(3000)]
    sizes = Counter(point["data.batch_size"] for point in points)
    assert all(abs(sizes[size] - 1000) < 130 for size in (32, 64, 128))
    assert abs(sum(point["model.optimizer"] == SGD for point in points) - 1500) < 137


def test_a_job_has_what_was_suggested(tmp_path: Path) -> None:
    method = {"model": {"loss": "ArcFaceLoss", "optimizer": {"class_path": "torch.optim.Adam"}}, "search": CONTENT}
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"base": [small_config()], "methods": {"arcface": method}}))
    spec = load_spec(file, {"search.trials": 3})
    file.write_text(spec.to_yaml())
    assert StudySpec.read(file).row_hashes == spec.row_hashes
    points = (suggest(spec.space("arcface"), [], number, 0, "a") for number in range(4))
    tried = next(point for point in points if point["model.optimizer"] == SGD)
    training = Training(job_config(spec, Job("arcface", "trial", 0, 0), tried), tmp_path / "job").build()
    assert training.datamodule.batch_size == 16 * training.datamodule.samples_per_class == tried["data.batch_size"]
    training.model.build_loss(5)
    optimizer = training.model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    assert {(group["lr"], group["momentum"]) for group in optimizer.param_groups} == {(tried["model.trunk_lr"], 0.9)}


@pytest.mark.parametrize("name", ["vasilev_dyakonov", "vasilev_dyakonov_text"])
def test_the_spaces_of_vasilev_and_dyakonov(name: str) -> None:
    """Section 4.2.3: one learning rate from 1e-5 to 1e-3, batches from 32 to 128."""
    rate, batch = read_space(read_yaml(find_configuration(f"protocol/{name}"))["search"], name).values()
    assert (rate.low, rate.high, {*rate.keys("model.trunk_lr")}) == (1e-5, 1e-3, {*RATES})
    assert [option["data.batch_size"] for option in batch.options] == [32, 64, 128]
    assert len({each["data.batch_size"] / each["data.samples_per_class"] for each in batch.options}) == 1


# The order of the jobs and their settings.

MARGIN = {"model.loss.init_args.margin": {"low": 0.0, "high": 1.0}}


def study(**search: Any) -> StudySpec:
    config = {"model": {"loss": {"class_path": "TripletMarginLoss"}}, "data": {"dataset": "Glyphs"}, "trainer": {}}
    counts = {"folds": 2, "runs": 2, "seed": 5, "threads": 1, "search": SearchSettings(**{"trials": 4, **search})}
    methods = {"a": config, "b": config, "plain": config}
    return StudySpec(name="toy", methods=methods, spaces={"a": MARGIN, "b": MARGIN}, **counts)


def parameters(record: StudyFolder, job: Job) -> dict[str, Any]:
    """What the search gives a job that is ready."""
    known = record.state.parameters(job)
    return setting(record.spec, job, record.state.trials_before(job)) if known is None else known


def finish(record: StudyFolder, job: Job, score: float | None) -> None:
    result = asdict(job) | {"configuration": record.spec.row_hashes[job.method], "seconds": 1.0}
    result |= {"parameters": parameters(record, job), "seed": job_seed(record.spec, job)}
    if score is None:
        result["failure"] = "the loss is nan at step 3"
    else:
        (record.folder / job.path).mkdir(parents=True, exist_ok=True)
        record.checkpoint(job).touch()
        result |= {"checkpoint": "", "validation": {"map_at_r": score}}
    write_json(record.folder / job.path / RESULT, result)
    record.state.add(job, result)


def finish_all(record: StudyFolder, score: Any) -> None:
    while (job := next(record.state.ready(), None)) is not None:
        finish(record, job, score(job))


def test_trials_come_one_after_the_other_and_runs_after_all_of_them(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study())
    state = record.state
    for fold in range(2):
        finish(record, Job("pretrained", "run", 0, fold), 0.1)
    ready = list(state.ready())
    assert {job.number for job in ready if job.stage == "trial"} == {0}, "the next trial waits for both folds"
    assert {job.method for job in ready if job.stage == "run"} == {"plain"}, "without a space nothing is awaited"
    for fold in range(2):
        assert Job("a", "trial", 1, 0) not in list(state.ready())
        finish(record, Job("a", "trial", 0, fold), 0.2)
    assert {job.method for job in state.ready() if job.number == 1 and job.stage == "trial"} == {"a"}
    finish_all(record, lambda job: 0.5)
    assert state.to_do == []
    batch = StudyFolder(tmp_path / "batch", study(batch=2)).state.ready()
    assert {job.number for job in batch if job.stage == "trial"} == {0, 1}


def test_any_order_of_the_work_ends_in_the_settings_that_follow_from_earlier_trials_alone(tmp_path: Path) -> None:
    spec, draw = study(trials=7), random.Random(0)

    def score(job: Job, record: StudyFolder) -> float:
        return (0.1 + parameters(record, job).get("model.loss.init_args.margin", 0.5)) / (2 + job.fold)

    straight = StudyFolder(tmp_path / "straight", spec)
    finish_all(straight, lambda job: score(job, straight))
    shuffled = StudyFolder(tmp_path / "shuffled", spec)
    while ready := list(shuffled.state.ready()):
        job = draw.choice(ready)
        finish(shuffled, job, score(job, shuffled))
        shuffled = StudyFolder(tmp_path / "shuffled", spec)
    for file in (job.path / RESULT for job in study_jobs(spec)):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "shuffled" / file).read_bytes()
    trials = shuffled.state.trials("a")
    assert len(trials) == 7
    for trial in trials:
        asked = suggest(spec.space("a"), trials[: trial.number], trial.number, 5, "a")
        assert asked == trial.parameters == straight.state.parameters(Job("a", "trial", trial.number, 1))
    best = max(trials, key=lambda trial: trial.value or 0)
    assert shuffled.state.parameters(Job("a", "run", 1, 0)) == best.parameters
    assert (selected(straight)["a"][0], selected(straight)["plain"]) == (best, (None, []))


def test_failures_are_recorded_and_what_has_not_failed_is_searched_and_tested(tmp_path: Path) -> None:
    def finished(fails: Callable[[Job], bool], **changes: Any) -> StudyFolder:
        record = StudyFolder(tmp_path / str(len(list(tmp_path.iterdir()))), replace(study(), **changes))
        finish_all(record, lambda job: None if fails(job) else 0.1 + 0.01 * job.number)
        return record

    trial = finished(lambda job: job == Job("a", "trial", 1, 1))
    assert [each.value is None for each in trial.state.trials("a")] == [False, True, False, False]
    best, failures = selected(trial)["a"]
    assert (best.number, len(failures)) == (3, 1)
    assert "trial 1 fold 1" in failures[0]
    assert len(trial.state.tested_runs()) == 1 + 3 * 2
    failing = finished(lambda job: job == Job("a", "run", 1, 1)).state
    assert {("a", 0), ("a", 1)} & {*failing.tested_runs()} == {("a", 0)}
    assert list(failing.failures("run")) == [Job("a", "run", 1, 1)]
    methods, derived = study().methods | {"of_b": study().methods["b"]}, {"of_b": {"of": "b", "pca": 2}}
    state = finished(lambda job: job.method == "b", methods=methods, derived=derived).state
    assert (state.without_setting(), state.to_do) == (["b", "of_b"], [])
    assert state.tested_runs() == [("pretrained", 0), ("a", 0), ("a", 1), ("plain", 0), ("plain", 1)]


def test_each_job_left_takes_its_methods_mean() -> None:
    slow, fast = ([Job(name, "run", run, 0) for run in range(3)] for name in ("slow", "fast"))
    spec = SimpleNamespace(trains=lambda row: row not in ("pretrained", "averaged"))

    def left(to_do: list[Job], done: dict[Job, float], workers: int = 1) -> float | None:
        results = {job: {"seconds": seconds} for job, seconds in done.items()}
        return seconds_left(SimpleNamespace(spec=spec, to_do=to_do, results=results), workers)  # type: ignore[arg-type]

    assert left(slow, {}) is left(slow, {Job("pretrained", "run", 0, 0): 1.0}) is None
    done = {slow[0]: 30.0, slow[1]: 50.0, fast[0]: 10.0}
    assert left([slow[2], fast[1], fast[2]], done) == 40 + 10 + 10
    assert left([Job("new", "run", 0, 0)], done) == 30
    assert left(slow[1:], {slow[0]: 30.0}, workers=2) == 30
    assert left([slow[1], Job("averaged", "run", 0, 0)], {slow[0]: 600.0}) == 600, "a derived row trains nothing"
