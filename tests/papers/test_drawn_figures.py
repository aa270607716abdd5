"""What follows from published numbers, against what the papers say of it and by hand; a study's own points in it."""

import re
from collections.abc import Sequence
from pathlib import Path

import miniatures
import numpy as np
import pytest
from tiny_fit import REPOSITORY
from toy_study import run_study

from levelfield.analysis.verify import validation_scores
from levelfield.core.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from papers.__main__ import exhibits, main
from papers.drawing import to_png, write_drawing
from papers.fehervari.figures import reported_and_measured
from papers.published import claims
from papers.reality_check import figures
from papers.reality_check.figures import BLOCKS, TABLE3, improvements, lag_one_autocorrelation, toy_scores
from papers.vasilev_dyakonov.figures import ranks_over_datasets


def correlation_of_ranks(*scores: Sequence[float]) -> float:
    """Spearman's by hand: Pearson's of the ranks, equal scores sharing theirs."""
    return float(np.corrcoef([[sum(b < a for b in s) + (s.count(a) - 1) / 2 for a in s] for s in scores])[0, 1])


@pytest.mark.full
def test_the_committed_pages_have_these_numbers_and_a_figure_is_the_same_twice(tmp_path: Path) -> None:
    """`python papers run NAME --output .` writes them."""
    for exhibit in (each for each in exhibits().values() if each.is_drawn):
        page, *images = write_drawing(exhibit.drawing(), tmp_path / exhibit.paper / exhibit.number)
        folder = REPOSITORY / "papers" / exhibit.paper / "figures"
        assert page.read_text() == (folder / page.name).read_text()
        assert all((folder / image.name).is_file() for image in images)
    assert to_png(figures.draw_figure3(())) == to_png(figures.draw_figure3(()))


def test_the_improvement_over_the_classic_losses_is_the_papers() -> None:
    """Figure 3, separated and concatenated, percent: both baselines and FastAP left out, as its caption says."""
    found = {
        over: [(round(100 * each.separated, 1), round(100 * each.concatenated, 1)) for each in improvements(over)]
        for over in ("Contrastive", "Triplet")
    }
    assert [each.name for each in improvements("Triplet")] == ["CUB200", "Cars196", "SOP"]
    assert found["Contrastive"] == [(-2.6, -3.0), (2.3, 1.7), (0.9, 2.0)]
    assert found["Triplet"] == [(4.3, 2.9), (8.7, 5.1), (3.9, 2.6)]
    scores = {"Contrastive": 0.5, "Triplet": 0.1, "FastAP": 0.1, "Pretrained": 0.1, "MS": 0.6, "SNR": 0.4}
    relative = figures.relative_improvement(scores, over="Contrastive")
    assert relative == pytest.approx((0.6 / 0.5 + 0.4 / 0.5) / 2 - 1)
    with pytest.raises(ValueError, match="Contrastive"):
        figures.relative_improvement({"Contrastive": 0.5, "Triplet": 0.6}, over="Contrastive")
    # Section 4.2: many papers show relative improvements exceeding 100% when compared with the contrastive loss.
    claimed = {each.name: each.claimed for each in improvements("Contrastive")}
    assert min(claimed["CUB200"], claimed["Cars196"]) > 1
    assert all(each.claimed is None for each in improvements("Triplet"))  # no such row in their tables


def test_the_claims_are_columns_of_zhai_and_wus_tables(data_root: Path) -> None:
    paper = data_root.parent / "papers" / "zhai_wu_2019.txt"
    if not paper.exists():
        pytest.skip("the text of the paper is not beside the data")
    printed = paper.read_text().split()  # a number a line, column by column
    for dataset, last in (("sop", "60.9"), ("cars196", "73.9"), ("cub200", "58.7")):  # LMCL's, the row after these
        column = [f"{100 * claim.recall_at_1:.1f}" for claim in claims(dataset)]
        if dataset == "sop":
            column = [*column[:10], "-", column[10], "-"]  # HTL at 128 and DREML have none
        column.append(last)
        assert any(printed[start : start + len(column)] == column for start in range(len(printed))), dataset


def test_the_order_of_methods_on_validation_and_test_classes() -> None:
    for dataset, spearman in (("cub200", 0.91), ("cars196", 0.66), ("sop", 0.97)):
        found = figures.validation_against_test(dataset)
        assert len(found.validation) == 13
        assert "FastAP" not in found.validation  # it has no recorded trials
        assert round(found.spearman, 2) == spearman
        validation, test = ([scores[method] for method in found.test] for scores in (found.validation, found.test))
        assert found.spearman == pytest.approx(correlation_of_ranks(validation, test))
    methods = set(figures.table_scores("cub200", batch_size=256)) - {"Pretrained"}
    assert set(figures.validation_against_test("cub200", batch_size=256).validation) == methods


def test_what_is_reported_and_measured_is_fehervaris_tables(data_root: Path) -> None:
    paper = data_root.parent / "papers" / "fehervari_2019.md"
    if not paper.exists():
        pytest.skip("the text of the paper is not beside the data")
    rows = [line.split("\t") for line in paper.read_text().splitlines() if "\t" in line]
    table1 = {row[0].partition(" [")[0].replace("Npairs", "N-Pairs"): row[3] for row in rows if len(row) == 5}
    for method, (reported, _) in reported_and_measured("cub200").items():
        assert table1[method] == ("-" if reported is None else f"{100 * reported:.1f}")
    tables = next(i for i, row in enumerate(rows) if row[1:2] == ["Reported (@1)"])  # 3 and 4
    printed = [row for row in rows[tables:] if len(row) == 8 and row[0] != "Recall @K"]
    both = [reported_and_measured("cars196"), reported_and_measured("sop")]
    assert len(printed) == sum(map(len, both))
    for row, recall in zip(printed, [both[0]] * 12 + [both[1]] * 8, strict=True):
        reported, measured = recall[row[0]]
        assert (row[1].rstrip("*†") == "-") == (reported is None)
        assert reported is None or 100 * reported == pytest.approx(float(row[1].rstrip("*†")))
        assert 100 * measured == pytest.approx(float(row[2]))


def test_vasilev_and_dyakonovs_conclusion_holds_by_recall_and_not_by_map_at_r() -> None:
    """Section 5: tuplet margin and circle loss were more likely than others to achieve the best results."""
    by_recall, by_map = ranks_over_datasets("precision_at_1"), ranks_over_datasets("map_at_r")
    assert set(list(by_recall.mean_ranks)[:2]) == {"Circle Loss", "Tuplet Margin Loss"}
    # Tuplet margin by hand: first on Cars-196, CUB-200, News-20 and WOS-134, second on Dogs-130, last of 16 on SOP.
    assert by_recall.mean_ranks["Tuplet Margin Loss"] == pytest.approx((1 + 1 + 1 + 1 + 2 + 16) / 6)
    assert list(by_map.mean_ranks).index("Tuplet Margin Loss") == 10
    for ranks in (by_recall, by_map):
        assert (len(ranks.mean_ranks), ranks.p < 0.05) == (16, True)
        first, *_, last = ranks.mean_ranks.values()
        assert last - first < ranks.critical_difference  # and yet no two of them are shown to differ
        assert ranks.critical_difference == pytest.approx(
            3.426 * (16 * 17 / 36) ** 0.5, rel=1e-3
        )  # 4.845 / √2, Tukey's


def test_recall_nmi_and_f1_hide_what_map_at_r_shows() -> None:
    for correct, printed in TABLE3.items():
        scores = figures.hypothetical_scores(correct).values()
        assert tuple(100 * score for score in scores) == pytest.approx(printed)
    panels = {panel: toy_scores(panel) for panel in BLOCKS}
    assert min(scores["precision_at_1"] for scores in panels.values()) > 0.99  # "nearly 100% Recall@1"
    for name in ("nmi", "f1"):  # "roughly equal scores for all three"
        assert max(s[name] for s in panels.values()) - min(s[name] for s in panels.values()) < 0.1
    # "Figure 1(c) shows a better separation of the classes than Figure 1(a)"
    assert panels["a"]["map_at_r"] < panels["b"]["map_at_r"] - 0.05 < panels["c"]["map_at_r"] - 0.2


STUDY = """
name: birds
base:
  - model:
      trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}
      embedding_size: 8
    data:
      dataset: {class_path: CUB200}
      transforms: {crop_size: 32, resize: 32}
      steps_per_epoch: 2
      batch_size: 8
    trainer: {max_epochs: 4, accelerator: cpu, log_every_n_steps: 1}
methods:
  triplet: {model: {loss: TripletMarginLoss}}
  softmax: {model: {loss: NormalizedSoftmaxLoss}, data: {samples_per_class: 1}}
folds: 2
runs: 1
threads: 1
"""


@pytest.mark.full
def test_a_study_adds_its_points_bars_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    miniatures.cub200(tmp_path, samples=8)
    (tmp_path / "birds.yaml").write_text(STUDY)
    run_study(tmp_path / "birds", load_spec(tmp_path / "birds.yaml"))
    record = StudyFolder.begun(tmp_path / "birds")
    lines = record.results_file.read_text().splitlines()
    test = [line.split(",") for line in lines if ",test," in line and ",precision_at_1," in line]
    scores = {(row[0], row[5]): [float(r[-1]) for r in test if (r[0], r[5]) == (row[0], row[5])] for row in test}
    dataset, points = figures.study_points(record)
    assert dataset == "cub200"
    named = (("Triplet", 2006, "triplet"), ("N. Softmax", 2017, "softmax"))
    assert set(points) == {(name, year, scores[method, "concatenated"][0]) for name, year, method in named}
    [over_triplet] = figures.study_improvements(record)
    means = {method: sum(scores[method, "separated"]) / 2 for method in ("triplet", "softmax")}
    assert over_triplet.separated == pytest.approx(means["softmax"] / means["triplet"] - 1)
    files = [f for f in record.folder.glob("jobs/*/*/*/metrics.csv") if "pretrained" not in f.parts]
    curves = [list(validation_scores(file, "precision_at_1").values()) for file in files]
    expected = [lag_one_autocorrelation(curve) for curve in curves if max(curve) > min(curve)]
    mean, number = figures.validation_autocorrelations([record])["precision_at_1"]
    assert (mean, number) == (pytest.approx(sum(expected) / len(expected)), len(expected))
    for name, printed in (("figure2", "study birds"), ("figure3", "study birds"), ("autocorrelation", "| 4 |")):
        words = ["run", f"reality_check/{name}", "--study", str(record.folder), "--output", str(tmp_path)]
        assert main(words) == 0
        assert printed in capsys.readouterr().out


def test_lag_one_autocorrelation(finished: Path) -> None:
    # Mean 2.5: (-1.5)(-0.5) + (-0.5)(0.5) + (0.5)(1.5) over 1.5^2 + 0.5^2 + 0.5^2 + 1.5^2.
    assert lag_one_autocorrelation([1, 2, 3, 4]) == pytest.approx(1.25 / 5)
    assert lag_one_autocorrelation([0.1, 0.9] * 50) == pytest.approx(-0.99)
    with pytest.raises(UserError, match=re.escape(str(finished))):  # curves of two evaluations
        figures.validation_autocorrelations([StudyFolder.begun(finished)])
