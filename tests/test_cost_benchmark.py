"""`benchmarks/cost.py`: the schedule of a study's trainings on several GPUs, against hand counts."""

from types import ModuleType

import pytest
from benchmark_module import benchmark_module


@pytest.fixture(scope="module")
def cost() -> ModuleType:
    return benchmark_module("cost")


@pytest.mark.parametrize(
    ("methods", "workers", "steps_in_a_row"),
    [
        (1, 1, 10),  # (3 trials + 2 runs) x 2 folds
        (1, 2, 5),  # the folds of a trial side by side
        (1, 4, 4),  # and those of both runs, but no trial beside another
        (1, 100, 4),
        (2, 1, 20),
        (2, 4, 5),
        (2, 8, 4),
        (3, 4, 8),  # 30 trainings: no less than 7.5
    ],
)
def test_a_trial_waits_for_the_folds_of_the_one_before_and_runs_for_no_other(
    cost: ModuleType, methods: int, workers: int, steps_in_a_row: int
) -> None:
    part = cost.Part(
        "toy", methods, 3, 2, 2, batch=10, steps=90, evaluations=2, most_steps=0, val_images=50, test_images=7
    )
    speed = cost.Speed(training=10, embedding=10)  # 90 s of steps, 10 s of evaluations
    assert speed.seconds(part, 1) == (90, 10)
    assert part.trainings == methods * 10
    assert cost.waiting([part], speed, workers, 1) == pytest.approx(100 * steps_in_a_row)
    assert cost.waiting([part], speed, workers, 3) == pytest.approx(300 * steps_in_a_row)


def test_data_sets_share_the_gpus(cost: ModuleType) -> None:
    short = cost.Part("short", 1, 1, 2, 1, 10, 100, 0, 0, 0, 0)
    long = cost.Part("long", 1, 1, 2, 1, 10, 300, 0, 0, 0, 0)
    speed = cost.Speed(10, 10)
    assert cost.waiting([short, long], speed, 2, 1) == pytest.approx(800)
    assert cost.waiting([short, long], speed, 4, 1) == pytest.approx(600)
