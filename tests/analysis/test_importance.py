"""What explains a search's scores, on trials whose scores follow from one argument by construction."""

import random

import pytest

from levelfield.analysis.importance import importances, places_of
from levelfield.study.search_space import Choice, Range
from levelfield.study.suggest import Trial

SPACE = {
    "margin": Range(0.0, 90.0),
    "lr": Range(1e-4, 1.0, scale="log"),
    "batch": Choice(({"batch": 32}, {"batch": 64})),
}


def trials(number: int) -> list[Trial]:
    drawn = random.Random(4)
    found = []
    for k in range(number):
        parameters = {
            "margin": drawn.uniform(0, 90),
            "lr": 10 ** drawn.uniform(-4, 0),
            "batch": drawn.choice([32, 64]),
        }
        found.append(Trial(k, parameters, 1 - ((parameters["margin"] - 45) / 45) ** 2 + 0.01 * drawn.random()))
    return found


def test_the_argument_that_the_scores_follow_from_explains_them() -> None:
    found = importances(SPACE, trials(40))
    assert next(iter(found)) == "margin"
    assert found["margin"] > 0.9
    assert sum(found.values()) == pytest.approx(1)
    assert set(found) == set(SPACE)


def test_too_few_trials_or_arguments_say_nothing() -> None:
    assert importances(SPACE, trials(9)) == {}
    assert importances({"margin": SPACE["margin"]}, trials(40)) == {}
    failed = [Trial(k, each.parameters, None, "nan") for k, each in enumerate(trials(20))]
    assert importances(SPACE, failed) == {}


def test_places_are_in_the_scale_of_the_range() -> None:
    trial = Trial(0, {"margin": 22.5, "lr": 1e-2, "batch": 64}, 0.5)
    assert places_of(SPACE, trial) == pytest.approx({"margin": 0.25, "lr": 0.5, "batch": 1})
