"""How `levelfield compare` fills the time that it is given."""

import pytest

from levelfield.use.ladder import HEAD_SECONDS, SIZES, Costs, Counts, Lengths, choose, seconds

COUNTS = Counts(train=3000, validated=1000, tested=4000)
CARS = Costs(step=2.0, sample=0.02)  # at 224 px


def test_seconds_of_the_whole_ladder() -> None:
    """Counted by hand: features of all samples; per fold two losses with a head each, and the trunk."""
    trunk = 600 * 2.0 + 0.02 * (4 * 1000 + 4 * 1000 + 2 * 1000 + 3000 + 3 * 4000)
    assert seconds(CARS, COUNTS, 3, 600) == pytest.approx(0.02 * 8000 + 3 * 2 * (HEAD_SECONDS + trunk))
    assert seconds(CARS, COUNTS, 3, 0) == pytest.approx(0.02 * 8000 + 3 * 2 * HEAD_SECONDS)


def test_more_time_is_spent_on_larger_images_then_folds_then_steps() -> None:
    found = [choose(CARS, COUNTS, 4, 600, 60.0 * minutes, SIZES, 224) for minutes in (1, 5, 15, 30, 60, 120, 240, 2000)]
    assert found[0] == Lengths(64, 4, 0)
    assert found[-1] == Lengths(224, 4, 2400)
    order = [(each.size, each.folds * each.steps) for each in found]
    assert order == sorted(order)
    for minutes, lengths in zip((5, 15, 30, 60, 120, 240, 2000), found[1:], strict=True):
        if lengths.steps:
            spent = seconds(CARS.at(lengths.size, 224), COUNTS, lengths.folds, lengths.steps)
            assert spent <= 60 * minutes
            assert lengths.steps >= 100


def test_texts_have_no_size() -> None:
    assert choose(Costs(0.3, 0.005), COUNTS, 3, 400, 3600.0, (), 1).size is None
