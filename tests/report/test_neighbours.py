"""Neighbours and chosen queries, against sorting and answers known by hand."""

import torch
from by_sorting import cosines, ranked, scores_by_sorting

from levelfield.report.retrieval import Retrieval
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet


def test_nearest_is_what_sorting_finds_and_the_best_are_better_than_the_median_and_these_than_the_worst() -> None:
    """Of queries of their own; without them, tests/report/test_page.py has the neighbours."""
    labels, is_query = torch.arange(120) % 6, torch.arange(120) < 60
    points = torch.randn(6, 8)[labels] + 0.8 * torch.randn(120, 8)
    found = Retrieval(EmbeddedTest(EmbeddedSet(points, labels, torch.arange(120)), is_query, "data"))
    similarities = cosines(points[:60], points[60:])
    expected = 60 + ranked(similarities, excludes_self=False)[[0, 8, 44], :5]
    assert found.nearest([0, 8, 44], 5).tolist() == expected.tolist()
    scores = scores_by_sorting(similarities, labels[:60], labels[60:], per_query=True)["map_at_r"]
    groups = found.examples(3)
    best, median, worst = (scores[queries] for queries in groups.values())
    assert [*groups] == ["best", "median", "worst"]
    assert (max(best), min(worst)) == (scores.max(), scores.min())
    assert max(worst) < min(median) < min(best)
    assert all(len({*labels[queries].tolist()}) == 3 for queries in groups.values()), "of three classes"
    assert len({query for queries in groups.values() for query in queries}) == 9
