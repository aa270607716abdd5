"""Figures of the Reality Check from published numbers: against what it says of them, and by hand."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from levelfield.analysis.paper_figures import (
    claimed_trend,
    improvements,
    measured_trend,
    relative_improvement,
    reported_order,
    validation_against_test,
    vasilev_dyakonov_ranks,
)
from levelfield.published.tables import claims, fehervari_recall


def rounded(fraction: float) -> float:
    return round(100 * fraction, 1)


def correlation_of_ranks(*scores: Sequence[float]) -> float:
    """Spearman's by hand: Pearson's of the ranks, equal scores sharing theirs."""
    return float(np.corrcoef([[sum(b < a for b in s) + (s.count(a) - 1) / 2 for a in s] for s in scores])[0, 1])


def test_the_improvement_over_the_classic_losses_is_the_papers() -> None:
    """Figure 3, separated and concatenated, percent: both baselines and FastAP left out, as its caption says."""
    over_contrastive = {f.dataset: (rounded(f.separated), rounded(f.concatenated)) for f in improvements("Contrastive")}
    assert over_contrastive == {"cub200": (-2.6, -3.0), "cars196": (2.3, 1.7), "sop": (0.9, 2.0)}
    over_triplet = {f.dataset: (rounded(f.separated), rounded(f.concatenated)) for f in improvements("Triplet")}
    assert over_triplet == {"cub200": (4.3, 2.9), "cars196": (8.7, 5.1), "sop": (3.9, 2.6)}


def test_both_baselines_and_the_outlier_are_left_out_of_an_improvement() -> None:
    scores = {"Contrastive": 0.5, "Triplet": 0.1, "FastAP": 0.1, "Pretrained": 0.1, "MS": 0.6, "SNR": 0.4}
    assert relative_improvement(scores, over="Contrastive") == pytest.approx((0.6 / 0.5 + 0.4 / 0.5) / 2 - 1)
    with pytest.raises(ValueError, match="no method but Contrastive"):
        relative_improvement({"Contrastive": 0.5, "Triplet": 0.6}, over="Contrastive")


def test_claims_exceed_100_percent_over_the_contrastive_loss_as_the_paper_says() -> None:
    """Section 4.2: many papers show relative improvements exceeding 100% when compared with the contrastive loss."""
    claimed = {found.dataset: found.claimed for found in improvements("Contrastive")}
    assert claimed["cub200"] > 1
    assert claimed["cars196"] > 1
    assert all(found.claimed is None for found in improvements("Triplet"))  # no such row in their tables


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
        starts = range(len(printed) - len(column))
        assert any(printed[start : start + len(column)] == column for start in starts), dataset


def test_measured_points_carry_the_years_of_table_7() -> None:
    years = {point.method: point.year for point in measured_trend("cub200")}
    assert len(years) == 14
    assert (years["Triplet"], years["NT-Xent"], years["CosFace"], years["SoftTriple"]) == (2006, 2016, 2018, 2019)
    measured = [point.precision_at_1 for point in measured_trend("cars196")]
    claimed = [point.precision_at_1 for point in claimed_trend("cars196")]
    assert max(measured) - min(measured) < 0.1 < 0.6 < max(claimed) - min(claimed)  # flat, and the inexorable rise


@pytest.mark.parametrize(("dataset", "spearman"), [("cub200", 0.91), ("cars196", 0.66), ("sop", 0.97)])
def test_the_order_of_methods_on_validation_and_test_classes(dataset: str, spearman: float) -> None:
    found = validation_against_test(dataset)
    assert "FastAP" not in found.validation  # it has no recorded trials
    assert len(found.validation) == 13
    assert round(found.spearman, 2) == spearman
    validation, test = ([scores[method] for method in found.test] for scores in (found.validation, found.test))
    assert found.spearman == pytest.approx(correlation_of_ranks(validation, test))


def test_every_method_of_the_tables_has_its_search() -> None:
    with open("src/levelfield/published/reality_check_tables.csv") as file:
        methods = {line["method"] for line in csv.DictReader(file)} - {"Pretrained"}
    assert set(validation_against_test("cub200", batch_size=256).validation) == methods


def test_what_is_reported_and_measured_is_fehervaris_tables(data_root: Path) -> None:
    paper = data_root.parent / "papers" / "fehervari_2019.md"
    if not paper.exists():
        pytest.skip("the text of the paper is not beside the data")
    rows = [line.split("\t") for line in paper.read_text().splitlines() if "\t" in line]
    table1 = {row[0].partition(" [")[0].replace("Npairs", "N-Pairs"): row[3] for row in rows if len(row) == 5}
    for method, (reported, _) in fehervari_recall("cub200").items():
        assert table1[method] == ("-" if reported is None else f"{100 * reported:.1f}")
    tables = next(i for i, row in enumerate(rows) if row[1:2] == ["Reported (@1)"])  # 3 and 4
    printed = [row for row in rows[tables:] if len(row) == 8 and row[0] != "Recall @K"]
    both = [fehervari_recall("cars196"), fehervari_recall("sop")]
    assert len(printed) == sum(map(len, both))
    for row, recall in zip(printed, [both[0]] * 12 + [both[1]] * 8, strict=True):
        reported, measured = recall[row[0]]
        assert (row[1].rstrip("*†") == "-") == (reported is None)
        assert reported is None or 100 * reported == pytest.approx(float(row[1].rstrip("*†")))
        assert 100 * measured == pytest.approx(float(row[2]))


def test_the_measured_order_is_not_the_reported_one() -> None:
    """Their conclusion: algorithms perform very differently under conditions that are equal."""
    both = [pair for pair in fehervari_recall("cub200").values() if pair[0] is not None]
    assert len(both) == 10
    assert reported_order("cub200") == pytest.approx(correlation_of_ranks(*zip(*both, strict=True)))
    assert reported_order("cub200") < 0.2


def test_vasilev_and_dyakonovs_conclusion_holds_by_recall_and_not_by_map_at_r() -> None:
    """Section 5: tuplet margin and circle loss were more likely than others to achieve the best results."""
    by_recall = vasilev_dyakonov_ranks("precision_at_1")
    assert set(list(by_recall.mean_ranks)[:2]) == {"Circle Loss", "Tuplet Margin Loss"}
    # Tuplet margin by hand: first on Cars-196, CUB-200, News-20 and WOS-134, second on Dogs-130, last of 16 on SOP.
    assert by_recall.mean_ranks["Tuplet Margin Loss"] == pytest.approx((1 + 1 + 1 + 1 + 2 + 16) / 6)
    by_map = vasilev_dyakonov_ranks("map_at_r")
    assert list(by_map.mean_ranks).index("Tuplet Margin Loss") == 10
    for ranks in (by_recall, by_map):
        assert len(ranks.mean_ranks) == 16
        assert ranks.p < 0.05
        assert ranks.groups() == [tuple(ranks.mean_ranks)]  # and yet no two of them are shown to differ
