"""Mean ranks, Friedman's test and critical differences against tables and hand calculation."""

from math import exp

import pytest

from levelfield.analysis.ranks import Ranks, rank_methods
from levelfield.errors import UserError

# Concatenated MAP@R on CUB, Cars and SOP, batch 32, of "A Metric Learning Reality Check".
PUBLISHED = {
    "ArcFace": (26.45, 27.22, 47.41),
    "Contrastive": (26.53, 24.89, 44.39),
    "CosFace": (26.70, 27.57, 46.92),
    "FastAP": (23.53, 23.14, 43.57),
    "MS": (24.70, 28.07, 45.79),
    "MS+Miner": (26.52, 27.01, 46.55),
    "Margin": (23.09, 24.21, 41.82),
    "Margin/class": (23.71, 23.11, 43.32),
    "N. Softmax": (25.25, 26.00, 47.13),
    "NT-Xent": (25.09, 24.40, 45.31),
    "ProxyNCA": (24.21, 25.38, 47.22),
    "SNR": (25.75, 25.03, 44.54),
    "SoftTriple": (26.51, 27.08, 47.35),
    "Triplet": (23.69, 23.02, 43.37),
}


def published() -> dict[str, dict[str, float]]:
    return {name: {m: v[i] for m, v in PUBLISHED.items()} for i, name in enumerate(("cub200", "cars196", "sop"))}


@pytest.mark.parametrize(("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_difference_is_that_of_demsars_table(methods: int, q: float) -> None:
    scores = {f"set{i}": {f"m{j}": float(j) for j in range(methods)} for i in range(14)}
    expected = q * (methods * (methods + 1) / (6 * 14)) ** 0.5
    assert rank_methods(scores).critical_difference == pytest.approx(expected, rel=3e-4)


def test_ten_data_sets_in_agreement_by_hand() -> None:
    # Friedman's statistic is 12 · 10 / (3 · 4) · (1 + 4 + 9) - 3 · 10 · 4 = 20; with 2 degrees P(χ² > x) = exp(-x / 2).
    ranks = rank_methods({f"set{i}": {"worst": 0.1, "best": 0.3, "middle": 0.2} for i in range(10)})
    assert ranks.mean_ranks == {"best": 1, "middle": 2, "worst": 3}
    assert list(ranks.mean_ranks) == ["best", "middle", "worst"]
    assert ranks.p == pytest.approx(exp(-10))
    assert ranks.critical_difference == pytest.approx(2.343 * (12 / 60) ** 0.5, rel=3e-4)
    assert ranks.groups() == [("best", "middle"), ("middle", "worst")], "1.05 lies between 1 and 2"


def test_groups_are_maximal_and_a_lone_method_has_none() -> None:
    ranks = Ranks({"a": 1.0, "b": 1.5, "c": 2.5, "d": 5.0}, ("x", "y"), 0.01, critical_difference=1.5)
    assert ranks.groups() == [("a", "b"), ("b", "c")]


def test_published_ranks_by_hand() -> None:
    ranks = rank_methods({**published(), "sop": {**published()["sop"], "only here": 99.0}})
    assert len(ranks.mean_ranks) == 14
    # Places on CUB, Cars and SOP: CosFace 1, 2, 5; ArcFace 5, 3, 1; SoftTriple 4, 4, 2.
    best = list(ranks.mean_ranks.items())[:3]
    assert best == [
        ("CosFace", pytest.approx(8 / 3)),
        ("ArcFace", pytest.approx(3)),
        ("SoftTriple", pytest.approx(10 / 3)),
    ]
    assert sum(ranks.mean_ranks.values()) == pytest.approx(14 * 15 / 2)


def test_equal_scores_share_their_rank() -> None:
    ranks = rank_methods({name: {"a": 0.5, "b": 0.5, "c": 0.1} for name in ("x", "y")})
    assert ranks.mean_ranks == {"a": 1.5, "b": 1.5, "c": 3}
    assert rank_methods({name: {"a": 0.5, "b": 0.5, "c": 0.5} for name in ("x", "y")}).p == 1


def test_too_little_to_rank_is_named() -> None:
    with pytest.raises(UserError, match="at least 2 data sets with 3 methods in common; cub200 have in common: a, b"):
        rank_methods({"cub200": {"a": 0.1, "b": 0.2}})
