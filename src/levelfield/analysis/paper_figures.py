"""What the Reality Check's figures say, from what is published: its tables and searches, and others' claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from levelfield.analysis.ranks import Ranks, rank_methods
from levelfield.analysis.results import EMBEDDING_KINDS
from levelfield.published.searches import reality_check_searches
from levelfield.published.tables import claims, fehervari_recall, papers, reality_check_scores, vasilev_dyakonov_scores

DATASETS = ("cub200", "cars196", "sop")
# Figure 3's caption: both baselines and the outlier are no methods whose improvement counts.
LEFT_OUT = ("Pretrained", "Contrastive", "Triplet", "FastAP")


def relative_improvement(scores: Mapping[str, float], over: str) -> float:
    """Mean over methods, but for `LEFT_OUT`, of (score / score of the method `over`) - 1, a fraction.

    Raises:
        ValueError: no method is left.

    Source: Musgrave et al. 2020, caption of Figure 3.

    Example:
        >>> scores = {"Contrastive": 0.5, "MS": 0.6, "SNR": 0.55, "FastAP": 0.1}
        >>> round(relative_improvement(scores, over="Contrastive"), 2)
        0.15
    """
    counted = [score for method, score in scores.items() if method != over and method not in LEFT_OUT]
    if not counted:
        raise ValueError(f"no method but {over} and those left out has a score")
    return fmean(score / scores[over] for score in counted) - 1


@dataclass(frozen=True)
class Point:
    """A method in Figure 2: P@1, a fraction, against the year of its paper."""

    method: str
    year: int
    precision_at_1: float


def claimed_trend(dataset: str) -> list[Point]:
    """Figure 2a: what papers report for their methods, as far as Zhai and Wu 2019 collected it.

    The Reality Check's own collection is in its picture alone.
    """
    return [Point(claim.method, claim.year, claim.recall_at_1) for claim in claims(dataset)]


def measured_trend(dataset: str) -> list[Point]:
    """Figure 2b: the Reality Check's concatenated P@1 of each method against the year of its paper (Table 7)."""
    return points_of(reality_check_scores(dataset, embedding="concatenated"))


def points_of(scores: Mapping[str, float]) -> list[Point]:
    """The methods, by the Reality Check's names, whose paper's year it gives (Table 7)."""
    methods = papers()["reality_check"]["methods"]
    return [Point(name, methods[name]["year"], score) for name, score in scores.items() if "year" in methods[name]]


@dataclass(frozen=True)
class Improvement:
    """A group of bars in Figure 3: relative improvements of P@1 over a baseline, fractions.

    Args:
        claimed: of the papers that Zhai and Wu collected, over the contrastive loss that they report; None where they
            report no such baseline.
        separated: measured by the Reality Check, 128 dimensions.
        concatenated: the same, 512 dimensions.
    """

    dataset: str
    over: str
    claimed: float | None
    separated: float
    concatenated: float


def improvements(over: str) -> list[Improvement]:
    """Figure 3: how much the methods improve on `Contrastive` (3a) or `Triplet`, claimed and measured, by data set."""
    found = []
    for dataset in DATASETS:
        separated, concatenated = (
            relative_improvement(reality_check_scores(dataset, embedding=embedding), over)
            for embedding in EMBEDDING_KINDS
        )
        reported = {claim.method: claim.recall_at_1 for claim in claims(dataset)}
        claimed = relative_improvement(reported, over) if over in reported else None
        found.append(Improvement(dataset, over, claimed, separated, concatenated))
    return found


@dataclass(frozen=True)
class Agreement:
    """Validation against test over the methods of one data set.

    Args:
        validation: The paper's name of a method to the validation MAP@R of its best trial, a fraction.
        test: Method to its test score, a fraction.
    """

    dataset: str
    batch_size: int
    validation: dict[str, float]
    test: dict[str, float]
    spearman: float


def validation_against_test(
    dataset: str, metric: str = "map_at_r", embedding: str = "separated", batch_size: int = 32
) -> Agreement:
    """Whether the methods that are best on the validation classes are best on the test classes.

    The validation score of a method is that of the best of its 50 recorded trials. FastAP at a batch size of 32 has no
    recorded trials and is left out.

    Args:
        dataset: `cub200`, `cars196` or `sop`.
        metric: of the test: `map_at_r`, `r_precision` or `precision_at_1`.
        embedding: `separated` or `concatenated`.
        batch_size: 32, or 256 on `cub200`.

    Example:
        >>> round(validation_against_test("sop").spearman, 2)
        0.97
    """
    from scipy.stats import spearmanr  # takes a second

    names = {
        method["search"]: name for name, method in papers()["reality_check"]["methods"].items() if "search" in method
    }
    validation = {
        names[search["loss"]]: search["val_map_at_r"]
        for search in reality_check_searches()
        if (search["dataset"], search["batch_size"]) == (dataset, batch_size) and search["val_map_at_r"] is not None
    }
    scores = reality_check_scores(dataset, metric, embedding, batch_size)
    test = {method: scores[method] for method in validation}
    correlation = spearmanr(list(validation.values()), list(test.values())).statistic
    return Agreement(dataset, batch_size, validation, test, float(correlation))


def reported_order(dataset: str) -> float:
    """Spearman's correlation of the recall@1 that methods' papers report with that which Fehervari et al. measured.

    Args:
        dataset: `cub200`, `cars196` or `sop`.

    Source: Fehervari et al. 2019, Tables 1 to 4: "the performance ranking of the tested methods do not follow the
    expected order once the conditions are equal".
    """
    from scipy.stats import spearmanr  # takes a second

    both = [(reported, measured) for reported, measured in fehervari_recall(dataset).values() if reported is not None]
    return float(spearmanr(*zip(*both, strict=True)).statistic)


def vasilev_dyakonov_ranks(metric: str) -> Ranks:
    """Mean ranks of the sixteen losses over the six data sets of Vasilev and D'yakonov.

    Args:
        metric: `precision_at_1` (their recall@1) or `map_at_r`.
    """
    datasets = ("cars196", "cub200", "sop", "dogs130", "news20", "wos134")
    return rank_methods({dataset: vasilev_dyakonov_scores(dataset, metric) for dataset in datasets})
