"""What the figures draw, where it is computed and not only placed; their files."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import rcParams

from levelfield.analysis.comparison import PAIR, Comparison
from levelfield.analysis.results import SummaryRow, collect_rows
from levelfield.cli.main import main
from levelfield.experiment import Study
from levelfield.report.figures import PAPER_WIDTH, Results, scores, write_figures
from levelfield.report.figures.differences import differences_figure
from levelfield.report.figures.search import search_figures
from levelfield.report.figures.style import style
from levelfield.report.figures.sweep import sweep_figure
from levelfield.report.table import paper_table
from levelfield.study.folder import StudyFolder
from levelfield.study.search_space import read_space
from levelfield.study.suggest import Trial


def pair(method: int, other: int, points: float, embedding: str = "separated") -> Comparison:
    untested = dict.fromkeys(("low", "high", "p", "p_holm"))
    kinds = {"kind": PAIR, "metric": "map_at_r", "embedding": embedding}
    return Comparison(f"m{method}", f"m{other}", difference=points / 100, family=3, n=3, **kinds, **untested)


def test_the_better_method_is_named_first_and_pairs_that_do_not_fit_are_left_out() -> None:
    """Method k is better than those before it when separated, and worse when concatenated."""
    points = {(0, 1): -1.1, (0, 2): -2.3, (1, 2): -1.2}
    comparisons = [pair(*both, points[both]) for both in points]
    comparisons += [pair(*both, -points[both], "concatenated") for both in points]
    # If runs failed, pairs have different runs, and no method need beat all others: 36 pairs that form a circle.
    circle = [pair(a, b, -1 if (a, b) == (0, 8) else 1) for a, b in combinations(range(9), 2)]
    with style():
        figure, few = differences_figure(comparisons), differences_figure(circle)
    names, of_circle = ([label.get_text() for label in each.axes[0].get_yticklabels()] for each in (figure, few))
    assert names == ["m1 over m0", "m2 over m0", "m2 over m1"]
    assert of_circle == [*(f"m0 over m{k}" for k in range(1, 8)), "m8 over m0"]
    for axes, expected in zip(figure.axes, ([1.1, 2.3, 1.2], [-1.1, -2.3, -1.2]), strict=True):
        drawn = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]
        assert drawn == pytest.approx(expected)


def test_a_search_has_a_panel_for_each_argument_with_the_trials_that_have_a_score() -> None:
    rates = {"low": 1e-4, "high": 1.0, "scale": "log"}
    space = read_space({"model.loss_lr": rates, "model.miner": {"values": ["a", "b"]}}, "here")
    trials = [
        Trial(n, {"model.loss_lr": rate, "model.miner": miner}, value, None if value else "NaN")
        for n, (rate, miner, value) in enumerate(((0.01, "a", 0.5), (0.1, "b", 0.25), (0.5, "b", None)))
    ]
    with style():
        before = dict(rcParams)
        found = search_figures({"x": (space, trials), "failed": (space, trials[2:]), "not searched": ({}, [])})
        assert dict(rcParams) == before, "Optuna's style is no other figure's"
        (figure,) = found.values()
        rate, miner, _ = figure.axes
        assert [axes.get_xlabel() for axes in (rate, miner)] == ["loss_lr", "miner"]
        assert (rate.get_xscale(), rate.get_ylabel()) == ("log", "validation MAP@R, percent")
        assert rate.collections[0].get_offsets().tolist() == [[0.01, 50], [0.1, 25]]
        assert miner.collections[0].get_offsets().tolist() == [[0, 50], [1, 25]]
        assert [label.get_text() for label in miner.get_xticklabels()] == ["'a'", "'b'"]


def test_a_sweep_is_a_curve_a_method_and_a_line_for_what_is_not_swept() -> None:
    scores = {"a[64]": 0.1, "a[128]": 0.2, "a[512]": 0.4, "b[64]": 0.3, "b[128]": 0.25, "fixed": 0.35}
    rows = {name: SummaryRow(name, "separated", "map_at_r", score, 0.01, 3) for name, score in scores.items()}
    with style():
        figure = sweep_figure("model.embedding_size", rows)
        (axes,) = figure.axes
        drawn = {tuple(line.get_xdata()): [round(float(y), 6) for y in line.get_ydata()] for line in axes.lines}
        assert drawn == {(64, 128, 512): [10, 20, 40], (64, 128): [30, 25], (0, 1): [35, 35]}
        assert axes.get_xscale() == "linear"  # 512 is 8 times 64
        assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "512"]
        assert {text.get_text() for text in figure.legends[0].get_texts()} == {"a", "b", "fixed (not swept)"}
        named = sweep_figure("model.trunk", dict.fromkeys(("a[x]", "a[y]"), rows["fixed"]))
        assert list(named.axes[0].lines[0].get_xdata()) == [0, 1]


def test_the_scores_are_compared_with_the_best_untrained_row_which_is_named(finished: Path) -> None:
    """tests/analysis/test_verdict.py has which row that is."""
    study = StudyFolder.begun(finished)
    with style():
        figure = scores.FIGURE.draw(Results(study, collect_rows(study)))
    separated = Study(finished).summary.query("embedding == 'separated' and metric == 'map_at_r'")
    (line,) = (line for line in figure.axes[0].lines if line.get_linestyle() == "--")
    assert line.get_xdata()[0] == pytest.approx(100 * separated.set_index("method")["mean"]["pretrained"])
    assert figure.legends[0].get_texts()[-1].get_text() == "best untrained row: features, PCA to 16"


@pytest.mark.slow
def test_the_figures_are_files_of_one_width_and_of_the_same_bytes(copy: Path, tmp_path: Path, capsys) -> None:
    assert main(["study", "report", str(copy), "--figures", str(tmp_path / "first")]) == 0
    told = capsys.readouterr().out
    write_figures(StudyFolder.begun(copy), tmp_path / "second")
    names = {"differences", "scores", "search_1", "search_2"}
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    tables = {"table.tex": "latex", "table.md": "markdown"}
    assert set(files) == {*tables, *(f"{name}.{kind}" for name in names for kind in ("svg", "pdf"))}
    assert all(str(tmp_path / "first" / name) in told for name in files)
    for name, markup in tables.items():
        assert files.pop(name).decode() == paper_table(StudyFolder.begun(copy), markup)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}
    for name, content in files.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).get("width") == f"{72 * PAPER_WIDTH:g}pt"
            assert b"<text" not in content  # outlines: no font is needed to show them
        else:
            assert re.search(rf"/MediaBox \[ ?0 0 {72 * PAPER_WIDTH:g} ".encode(), content)
            assert b"DejaVuSans" in content
            assert b"/FontFile2" in content  # TrueType, embedded
