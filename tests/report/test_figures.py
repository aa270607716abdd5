"""What the figures draw, where it is computed and not only placed."""

import pytest

from levelfield.analysis.comparison import compare_all
from levelfield.analysis.results import ResultRow
from levelfield.report.figures.differences import differences_figure
from levelfield.report.figures.search import best_so_far
from levelfield.report.figures.style import style, to_svg
from levelfield.study.search.suggest import Trial


def test_best_so_far_steps_over_trials_without_a_value() -> None:
    values = [None, 0.2, 0.1, None, 0.3, 0.25]
    trials = [Trial(number, {}, value, None if value else "NaN") for number, value in enumerate(values)]
    assert best_so_far(trials[::-1]) == [(1, 0.2), (2, 0.2), (3, 0.2), (4, 0.3), (5, 0.3)]
    assert best_so_far(trials[:1]) == []


def comparisons(methods: int) -> list:
    """Method k scores k points more than method 0 when separated, and as much less when concatenated."""
    rows = [
        ResultRow(f"m{k}", "test", None, run, None, embedding, "map_at_r", 0.5 + sign * k / 100 + 0.001 * run * (k % 3))
        for k in range(methods)
        for run in range(3)
        for embedding, sign in (("separated", 1), ("concatenated", -1))
    ]
    names = [f"m{k}" for k in range(methods)]
    return [c for e in ("separated", "concatenated") for c in compare_all(rows, names, embedding=e)]


def drawn(figure) -> list[list[float]]:
    """The differences of each panel, from the top, in points."""
    return [
        [round(float(line.get_xdata()[0]), 6) for line in axes.lines if line.get_marker() == "o"]
        for axes in figure.axes
    ]


def test_the_better_method_is_named_first_and_the_other_panel_has_the_same_pairs() -> None:
    with style():
        figure = differences_figure(comparisons(3))
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert names == ["m1 over m0", "m2 over m0", "m2 over m1"]
        # Runs 0, 1 and 2 add 0, 0.1 and 0.2 points to m1, twice that to m2: 0.1 and 0.2 on average.
        assert drawn(figure) == [[1.1, 2.2, 1.1], [-0.9, -1.8, -0.9]]
        assert to_svg(figure) == to_svg(differences_figure(comparisons(3)))


@pytest.mark.parametrize(("methods", "rows"), [(8, 28), (9, 8)])
def test_of_many_pairs_those_with_the_best_method_are_drawn(methods: int, rows: int) -> None:
    with style():
        figure = differences_figure(comparisons(methods))
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == rows
    if methods == 9:
        assert all(name.startswith("m8 over ") for name in names)
        assert all(difference > 0 for difference in drawn(figure)[0])
