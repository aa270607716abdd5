"""How `compare` fills its minutes: costs from the real Trainer, what fits on the slots, and the plan made again."""

import heapq
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from small_fit import small_config
from study_engine import ADDED, PLAIN
from toy_study import assert_same_bytes, run_study

from levelfield.compare import measure, plan
from levelfield.compare.measure import SIZES, Costs, Machine, costs_of, machine_here
from levelfield.compare.plan import HEAD_SECONDS, Expected, Lengths, Planner
from levelfield.data.datasets import Glyphs
from levelfield.study.rows import load_spec
from levelfield.study.workers import Here

TRAIN, VALIDATED, TESTED = 3000, 1000, 4000
# At 224 px a step of 32 takes 2 s and a sample 0.02 s, both proportional to the pixels.
CARS = Costs((0.0, 2.0 / (32 * 224**2)), (0.0, 0.02 / 224**2))
TEXTS = Costs((0.1, 0.3 / 32), (0.0, 0.005))


def on(cores: int, costs: Costs = CARS) -> Expected:
    return Expected(costs, Machine("cpu", cores, cores), TRAIN, VALIDATED, TESTED)


def test_seconds_of_the_whole_ladder() -> None:
    """Counted by hand: features of all samples; per fold two losses with a head each, and the trunk; the test."""
    compared = 4000**2 * 128 / plan.PRODUCTS["cpu"]
    trunk = 600 * 2.0 + 0.02 * (4 * 1000 + 4 * 1000 + 2 * 1000 + 3000)
    for cores, rounds, tests, scored in ((1, 6, 6, 12), (4, 2, 2, 4), (6, 1, 1, 2), (64, 1, 1, 2)):
        expected = 0.02 * 8000 + rounds * (HEAD_SECONDS + trunk) + tests * 3 * 0.02 * 4000 + scored * 4 * compared
        assert on(cores).seconds(Lengths(3, 224, 600)) == pytest.approx(expected)
    heads = 0.02 * 8000 + 6 * HEAD_SECONDS + 6 * 4 * compared
    assert on(1).seconds(Lengths(3, 224, 0)) == pytest.approx(heads)
    busy = on(1, replace(CARS, load=3.0)).seconds(Lengths(3, 224, 0))
    assert busy - heads == pytest.approx(2 * 6 * HEAD_SECONDS), "heads are not measured, but other programs are"
    more, less = (on(4, costs).seconds(Lengths(1, 224, 600)) for costs in (replace(CARS, opened=0.1), CARS))
    assert more - less == pytest.approx(0.1 * 8000 / 4), "the cores open each image once"


def test_more_time_is_spent_on_folds_then_larger_images_then_steps_then_runs() -> None:
    assert on(1, TEXTS).choose(3, 400, 3600.0, ()).size == 0, "texts have no size"
    minutes = (1, 5, 15, 30, 60, 120, 240, 2000)
    times = [*product((1, 8, 32), minutes)]
    chosen = [on(cores).choose(4, 600, 60.0 * each, SIZES) for cores, each in times]
    found = chosen[: len(minutes)]
    assert found[0] == Lengths(1, 64, 0)
    assert found[-1] == Lengths(4, 224, 2400)
    assert on(1).choose(4, 600, 60.0 * 5000, SIZES) == Lengths(4, 224, 2400, runs=3)
    order = [(each.folds, each.size, each.steps, each.runs) for each in found if each.steps]
    assert order == sorted(order)
    sizes = {each.size for each in found if 0 < each.folds < 4 and each.steps == 600}
    assert max(sizes) < 224, "a fold more comes before a larger image"
    for (cores, each), lengths in zip(times, chosen, strict=True):
        assert lengths.steps == 0 or (lengths.steps >= 100 and on(cores).seconds(lengths) <= 60 * each)
        fold_more = replace(lengths, folds=lengths.folds + 1, size=min(lengths.size, 128), steps=600, runs=1)
        assert lengths.steps < 600 or lengths.folds == 4 or on(cores).seconds(fold_more) > 60 * each
    for most in (128, 64):
        gpu = Expected(Costs((0.01, 0.0), (1e-4, 0.0), batch=most), Machine("gpu", 1, 16), TRAIN, VALIDATED, TESTED)
        assert gpu.choose(4, 600, 1800.0, SIZES) == Lengths(4, 224, 2400, runs=3, batch=most)


@pytest.mark.parametrize("cores", [2, 8, 32])
@pytest.mark.parametrize(("costs", "sizes", "usual"), [(CARS, SIZES, 600), (TEXTS, (), 400)])
def test_it_keeps_its_minutes_within_a_fifth(cores: int, costs: Costs, sizes: tuple[int, ...], usual: int) -> None:
    """By a clock: each job of a row after the other, on the slot that is free first, and after its source."""
    for minutes in (15, 30, 60):
        lengths = on(cores, costs).choose(4, usual, 60.0 * minutes, sizes)
        step, sample = costs.of(lengths.size)
        validation, folds, ended = VALIDATED * sample, lengths.folds, dict[Any, float]()
        trunk = lengths.steps * step + plan.VALIDATIONS * validation
        average, pca = (plan.VALIDATIONS + 1) * validation, TRAIN * sample + validation
        rows = [(HEAD_SECONDS, None)] * 2 + [(trunk, None)] * 2 + [(average, 2), (average, 3), (pca, 4), (pca, 5)]
        free = [(TRAIN + VALIDATED + TESTED) * sample] * cores
        for (row, (duration, source)), run, fold in product(enumerate(rows), range(lengths.runs), range(folds)):
            ended[row, run, fold] = max(free[0], ended.get((source, run, fold), 0.0)) + duration
            heapq.heapreplace(free, ended[row, run, fold])
        free, scored = [max(free)] * cores, (folds + (folds > 1)) * TESTED**2 * 128 / plan.PRODUCTS["cpu"]
        for duration in [folds * TESTED * sample + scored] * 6 * lengths.runs + [scored] * (4 + 2 * lengths.runs):
            heapq.heapreplace(free, free[0] + duration)
        assert lengths.steps > 0
        assert max(free) <= 1.2 * 60 * minutes
        assert on(cores, costs).seconds(lengths) == pytest.approx(max(free), rel=0.2)


def test_the_first_training_decides_how_many_folds_there_is_time_for() -> None:
    lengths = on(2).choose(4, 600, plan.USABLE * 2100, SIZES)
    expected = on(2).stages(lengths)[0]
    assert 1 < lengths.folds < 4
    left = 2100 - 0.02 * 8000 - HEAD_SECONDS * lengths.folds
    took = (0.3 * expected, expected, 3 * expected)
    faster, same, slower = (on(2).folds_again(lengths, 4, each, [0, 1], left - each) for each in took)
    assert same == lengths.folds, "nothing has changed"
    assert faster > lengths.folds > slower >= 1
    assert on(2).folds_again(lengths, 4, expected, [], 1.0) == 1, "late"


def test_cores_that_are_left_over_become_threads_if_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 32 cores 8 trainings of a slow trunk; with 4 threads each a step takes a third."""

    def costs(config: Any, sizes: Any, opened: float, machine: Machine, *_: Any) -> Costs:
        asked.append((machine.slots, machine.threads))
        return replace(slow, step=(0.0, slow.step[1] / {1: 1, 2: 1.8, 4: 3}.get(machine.threads, 5)))

    slow = Costs((0.0, 40.0 / (32 * 224**2)), (0.0, 0.1 / 224**2))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(measure, "costs_of", costs)
    monkeypatch.setattr(measure, "cores_here", lambda: 32)
    monkeypatch.setattr(measure, "free_memory", lambda: 1 << 40)
    monkeypatch.setattr(measure, "scores", lambda *_: ({"features": 0.5, "pca": 0.5, "whitening": 0.4}, 512, 128))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    dataset, trunks = Glyphs(num_classes=200), {"slow": {"data": {}}}
    until = plan.time.monotonic() + 3600
    make = Planner(dataset, dataset.read_index(), 1200, [], trunks, trunks, 4, until, lambda machine: Here())
    made = make.plan(machine_here({}, None), may_use_threads=True)
    assert asked[0] == (32, 1)
    assert asked[1][1] == made.path.machine.threads > 1
    assert made.path.machine.slots == 32 // made.path.machine.threads
    assert "threads" in made.lines[-1]
    assert make.plan(machine_here({}, None), may_use_threads=False).path.machine.threads == 1


def test_where_trainings_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "cores_here", lambda: 8)
    monkeypatch.setattr(measure, "free_memory", lambda: 7 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert machine_here({}, None) == Machine("gpu", 1, 8), "each takes 6 GiB"
    assert machine_here({}, "cpu") == Machine("cpu", 3, 8), "each takes 2 GiB"
    assert machine_here({"workers": 5}, "cpu").slots == 5
    monkeypatch.setattr(measure, "free_memory", lambda: 1 << 40)
    assert machine_here({}, None).slots == 4
    assert machine_here({}, "cpu", threads=4).slots == 2


@pytest.mark.slow
def test_costs_come_from_trainings_of_the_trunk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    asked = []
    real = measure.timed
    monkeypatch.setattr(measure, "timed", lambda config, *rest: asked.append(rest) or real(config, *rest))
    machine = Machine("cpu", 1, 1)
    costs = costs_of(small_config(), (32, 96), 0.0, machine, Here(), 5.0)
    assert [batch for batch, *_ in asked] == [32, 32], "the smallest and the largest size"
    small, large = costs.of(32), costs.of(96)
    assert 0 < small[0] < large[0]
    assert 0 < small[1] < large[1]
    assert costs.load >= 1
    assert not (tmp_path / "images").exists(), "it decodes no other sample"
    few = plan.merge(small_config(), {"data": {"dataset": {"init_args": {"num_classes": 4}}}})
    assert all(seconds > 0 for seconds in costs_of(few, (), 0.0, machine, Here(), 5.0).of(0))


@pytest.mark.slow
def test_a_study_whose_plan_is_made_again_is_the_one_of_that_plan(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "small.yaml").write_text(PLAIN)
    spec = replace(load_spec(tmp_path / "small.yaml", added=ADDED), blocks=3)
    for folds in (1, 3):
        seen = []

        def replan(job, result, started, folds=folds, seen=seen):
            seen.append((job.method, job in started))
            return folds if job.method == "arcface" else None

        again = run_study(tmp_path / f"again{folds}", spec, replan=replan)
        assert (seen[-1][0], all(started for _, started in seen), again.spec.folds) == ("arcface", True, folds)
        alone = run_study(tmp_path / f"alone{folds}", replace(spec, folds=folds))
        for name in ("results.csv", "summary.csv", "study.yaml"):
            assert (again.folder / name).read_bytes() == (alone.folder / name).read_bytes()
        assert not run_study(again.folder, replace(spec, folds=folds)).had_work
    assert_same_bytes(again.folder, alone.folder)
    more = run_study(tmp_path / "more", replace(spec, folds=1), replan=lambda job, *_: 3 if job.fold == 0 else None)
    assert_same_bytes(more.folder, alone.folder)
