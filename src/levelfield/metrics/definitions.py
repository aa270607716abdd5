"""The formula and row of every metric: the source of names, titles and defaults. It does not import torch.

To add a metric: its function, its row in `METRICS`, its test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from levelfield.metrics.counts import Partitions, Ranks, Roc


def map_at_r(ranks: Ranks) -> Float64[Tensor, " queries"]:
    """Mean average precision of the R nearest.

        1/R sum over m(i) <= R of i/m(i)

    When: always: it rewards the order of all matches, and levelfield selects by it.

    Paper: Musgrave et al. 2020, "A Metric Learning Reality Check", arXiv:2003.08505, equations 3 and 4.
    """
    return (ranks.precision_QP * ranks.within_r_QP).sum(1) / ranks.num_relevant_Q


def r_precision(ranks: Ranks) -> Float64[Tensor, " queries"]:
    """Share of the R nearest that match.

        |{i: m(i) <= R}| / R

    When: next to MAP@R, as an easy share; the order within the R nearest does not count.

    Paper: Musgrave et al. 2020, "A Metric Learning Reality Check", arXiv:2003.08505, section 3.2.
    """
    return ranks.within_r_QP.sum(1) / ranks.num_relevant_Q


def precision_at_1(ranks: Ranks) -> Float64[Tensor, " queries"]:
    """Whether the nearest sample matches.

        [m(1) <= 1]

    When: comparison with the literature, where it is Recall@1; it saturates early and may disagree with MAP@R.

    Paper: Musgrave et al. 2020, "A Metric Learning Reality Check", arXiv:2003.08505, section 3.2.
    """
    return (ranks.first_Q <= 1).double()


def recall_at_k(ranks: Ranks, k: int) -> Float64[Tensor, " queries"]:
    """Whether one of the k nearest matches; not the share of matches found.

        [m(1) <= k]

    When: comparison with the literature.

    Paper: Oh Song et al. 2016, "Deep Metric Learning via Lifted Structured Feature Embedding", arXiv:1511.06452.
    """
    return (ranks.first_Q <= k).double()


def mean_average_precision(ranks: Ranks) -> Float64[Tensor, " queries"]:
    """Average precision of the full ranking.

        1/R sum of i/m(i)

    When: every match counts, however far down; needs the full ranking.

    Paper: Manning et al. 2008, "Introduction to Information Retrieval", https://nlp.stanford.edu/IR-book/,
    chapter 8.4.
    """
    return ranks.precision_QP.sum(1) / ranks.num_relevant_Q


def map_at_n(ranks: Ranks, n: int) -> Float64[Tensor, " queries"]:
    """Average precision of the n nearest.

        1/min(R, n) sum over m(i) <= n of i/m(i)

    When: a search shows n results; also the ranking of papers on hashing.

    Paper: Manning et al. 2008, "Introduction to Information Retrieval", https://nlp.stanford.edu/IR-book/,
    chapter 8.4, cut at n.
    """
    return (ranks.precision_QP * (ranks.ranks_QP <= n)).sum(1) / ranks.num_relevant_Q.clamp(max=n)


def ndcg_at_n(ranks: Ranks, n: int) -> Float64[Tensor, " queries"]:
    """Gain of the n nearest, discounted by rank, over that of the best order.

        sum over m(i) <= n of g(i)/log2(1 + m(i))  /  the same of the items by falling g

    g is the number of labels that an item shares with the query.

    When: label sets: items that share more labels should come first.

    Paper: Järvelin and Kekäläinen 2002, "Cumulated Gain-Based Evaluation of IR Techniques",
    https://doi.org/10.1145/582415.582418.
    """
    return ranks.ndcg_at(n)


def mrr(ranks: Ranks) -> Float64[Tensor, " queries"]:
    """Reciprocal rank of the first match.

        1/m(1)

    When: one match is enough, and it should come early.

    Paper: Voorhees 1999, "The TREC-8 Question Answering Track Report",
    https://trec.nist.gov/pubs/trec8/papers/qa_report.pdf.
    """
    return 1 / ranks.first_Q


def hierarchical_precision(
    of_class_Q: Float64[Tensor, " queries"],
    of_coarse_Q: Float64[Tensor, " queries"],
    num_relevant_Q: Float64[Tensor, " queries"],
) -> Float64[Tensor, " queries"]:
    """Share of the R nearest that match; a match of only the coarse class counts half.

        (|{i <= R: same class}| + |{i <= R: same coarse class}|) / 2R

    When: classes form groups, and a wrong result should at least be of the same group.

    Paper: Deng et al. 2011, "Hierarchical Semantic Indexing for Large Scale Image Retrieval",
    https://doi.org/10.1109/CVPR.2011.5995516; Barz and Denzler 2019, "Hierarchy-based Image Embeddings for Semantic
    Image Retrieval", arXiv:1809.09924, with two levels.
    """
    return (of_class_Q + of_coarse_Q) / (2 * num_relevant_Q)


def nmi(partitions: Partitions) -> float:
    """Normalised mutual information of clusters and labels.

        2 I / (H_1 + H_2)

    When: comparison with older work; with many small classes chance alone gives a high value.

    Paper: Manning et al. 2008, "Introduction to Information Retrieval", https://nlp.stanford.edu/IR-book/,
    chapter 16.3.
    """
    return partitions.normalized_information("arithmetic")


def nmi_geometric(partitions: Partitions) -> float:
    """Normalised mutual information with the entropies' geometric mean.

        I / sqrt(H_1 H_2)

    When: comparison with papers and programs that divide this way.

    Paper: Strehl and Ghosh 2002, "Cluster Ensembles", https://jmlr.org/papers/v3/strehl02a.html.
    """
    return partitions.normalized_information("geometric")


def ami(partitions: Partitions) -> float:
    """Mutual information beyond what chance gives partitions of these sizes.

        (I - E[I]) / ((H_1 + H_2) / 2 - E[I])

    When: you want clusters; chance gives 0.

    Paper: Vinh et al. 2010, "Information Theoretic Measures for Clusterings Comparison",
    https://jmlr.org/papers/v11/vinh10a.html, equation 24a.
    """
    (information, mean_entropy), expected = partitions.information, partitions.expected_information
    room = mean_entropy - expected
    return (information - expected) / room if abs(room) >= 1e-12 else nmi(partitions)


def f1(partitions: Partitions) -> float:
    """F1 of the pairs that share a cluster, compared with those that share a label.

        2 P R / (P + R)

    When: comparison with older work.

    Paper: Manning et al. 2008, "Introduction to Information Retrieval", https://nlp.stanford.edu/IR-book/,
    chapter 16.3.
    """
    (_, false), (missed, found) = partitions.pair_counts.tolist()
    return 2 * found / (2 * found + false + missed) if found + false + missed else 1.0


def tar_at_far(pairs: Roc, n: int) -> float:
    """Share of same-class pairs accepted where at most one in 10^n other pairs is.

        max over t with FAR(t) <= 10^-n of TAR(t)    FAR(t) = P(s >= t | two classes)

    When: a threshold decides whether two samples match, and its rate of false accepts is given.

    Paper: Klare et al. 2015, "Pushing the Frontiers of Unconstrained Face Detection and Recognition",
    https://openaccess.thecvf.com/content_cvpr_2015/html/Klare_Pushing_the_Frontiers_2015_CVPR_paper.html.
    """
    return float(pairs.tar_T[pairs.last_accepted(float(f"1e-{n}"))])


def eer(pairs: Roc) -> float:
    """Error rate at the threshold where both kinds of error are equally frequent; lower is better.

        FAR(t) = 1 - TAR(t), on the lines between the thresholds

    When: one number for a threshold, if both kinds of error are equally bad.

    Paper: Martin et al. 1997, "The DET Curve in Assessment of Detection Task Performance",
    https://www.isca-archive.org/eurospeech_1997/martin97b_eurospeech.html.
    """
    misses_T = 1 - pairs.tar_T
    after = int((pairs.far_T >= misses_T).argmax())
    open_before = misses_T[after - 1] - pairs.far_T[after - 1]
    closed = open_before + pairs.far_T[after] - misses_T[after]
    return float(pairs.far_T[after - 1] + open_before / closed * (pairs.far_T[after] - pairs.far_T[after - 1]))


def auroc(pairs: Roc) -> float:
    """Probability that a same-class pair is more similar than another pair; ties count half.

        P(s > s') + P(s = s') / 2

    When: all thresholds together; with many classes it says little about rare false accepts.

    Paper: Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve",
    https://doi.org/10.1148/radiology.143.1.7063747.
    """
    heights_T = (pairs.tar_T[1:] + pairs.tar_T[:-1]) / 2
    return float(((pairs.far_T[1:] - pairs.far_T[:-1]) * heights_T).sum())


@dataclass(frozen=True)
class Metric:
    """One row.

    Attributes:
        key: as results name it; `<k>` and `<n>` stand for a number.
        title: as tables and figures show it.
        kind: `queries`, a retrieval score of each query, `partition`, of a clustering of the embeddings; `coarse`, of
            classes in groups, or `pairs`, of a threshold on similarities, only in Python.
        score: function of `Ranks` and the key's number, a `Partitions`, three counts of items found among the R nearest
            (of the class, of its group, R), or a `Roc` and the key's number.
        depth: neighbours that it needs: the number in the `key`, the query's `R`, or `all`.
        usual: whether a call that names no metric computes it, `recall_at_<k>` for the k of `recall_at`.
        shown: whether validation and studies compute it by default, and tables and figures show it.
    """

    key: str
    title: str
    kind: Literal["queries", "partition", "coarse", "pairs"]
    score: Callable[..., Any]
    depth: Literal["key", "R", "all"] = "key"
    usual: bool = True
    shown: bool = False


METRICS = (
    Metric("map_at_r", "MAP@R", "queries", map_at_r, depth="R", shown=True),
    Metric("r_precision", "R-precision", "queries", r_precision, depth="R", shown=True),
    Metric("precision_at_1", "P@1", "queries", precision_at_1, shown=True),
    Metric("recall_at_<k>", "R@k", "queries", recall_at_k),
    Metric("map", "MAP", "queries", mean_average_precision, depth="all"),
    Metric("map_at_<n>", "MAP@n", "queries", map_at_n, usual=False),
    Metric("ndcg_at_<n>", "nDCG@n", "queries", ndcg_at_n, usual=False),
    Metric("mrr", "MRR", "queries", mrr, depth="all"),
    Metric("hierarchical_precision", "HP@R", "coarse", hierarchical_precision, depth="R"),
    Metric("nmi", "NMI", "partition", nmi),
    Metric("nmi_geometric", "NMI, geometric", "partition", nmi_geometric, usual=False),
    Metric("ami", "AMI", "partition", ami),
    Metric("f1", "F1", "partition", f1),
    Metric("tar_at_far_1e-<n>", "TAR at FAR 1e-<n>", "pairs", tar_at_far),
    Metric("eer", "EER", "pairs", eer),
    Metric("auroc", "AUROC", "pairs", auroc),
)
SHOWN_METRICS = {metric.key: metric.title for metric in METRICS if metric.shown}
PARTITION_METRICS = {metric.key: metric for metric in METRICS if metric.kind == "partition"}
# The metric that ranks methods, and selects epoch and trial unless a training or study sets another; its logged name.
SELECTED_BY = "map_at_r"
MONITOR = f"val/{SELECTED_BY}"
# Embeddings of a lower effective rank have collapsed: nearly all lie on one line.
COLLAPSED_RANK = 1.5


@dataclass(frozen=True)
class Wanted:
    """The requested scores: row and number by key of the result, in order."""

    rows: dict[str, tuple[Metric, tuple[int, ...]]]

    @classmethod
    def parse(cls, metrics: Iterable[str] | None, kind: str, numbers: Sequence[int] = ()) -> Wanted:
        """The rows of these names. None means the usual metrics of the kind.

        Args:
            numbers: that a usual metric with `<k>` or `<n>` has; `recall` alone means `recall_at_<k>` for each.

        Raises:
            ValueError: an unknown name, or a number below 1.
        """
        if isinstance(metrics, str):
            raise ValueError(f"metrics={metrics!r} is one string; pass a tuple of names, for example ({metrics!r},)")
        of_kind = [metric.key for metric in METRICS if metric.kind == kind]
        usual = {
            re.sub("(_at_|_1e-)<.>", "", metric.key): [re.sub("<.>", str(number), metric.key) for number in numbers]
            if "<" in metric.key
            else [metric.key]
            for metric in METRICS
            if metric.kind == kind and metric.usual
        }
        rows = {}
        for name in [name for given in (usual if metrics is None else metrics) for name in usual.get(given, [given])]:
            row = named(name)
            if row is None or row[0].kind != kind:
                known = ", ".join(dict.fromkeys((*usual, *of_kind)))
                raise ValueError(f"no such metric {name!r}; known are {known}")
            if min(row[1], default=1) < 1:
                raise ValueError(f"{name!r}: the number must be at least 1")
            rows[name] = row
        if not rows:
            raise ValueError("metrics is empty; name at least one, or pass None for all")
        return cls(rows)

    def depth(self, num_gallery: int, max_relevant: int) -> int:
        """Length of the ranking that the scores need, where a query has at most `max_relevant` matches."""
        kinds = {metric.depth for metric, _ in self.rows.values()}
        longest = max([1, *(number for _, numbers in self.rows.values() for number in numbers)])
        return num_gallery if "all" in kinds else min(num_gallery, max(longest, max_relevant if "R" in kinds else 1))


def is_user_metric(name: str) -> bool:
    """Whether a name is the import path of your own function: no shipped metric has a dot in its name.

    Example:
        >>> is_user_metric("my_metric.hubness"), is_user_metric("map_at_r")
        (True, False)
    """
    return "." in name


def title_of(key: str) -> str:
    """The title of a key: `R@4` of `recall_at_4`; an unknown key is its own title."""
    found = named(key)
    return key if found is None else re.sub("(?<=@)[kn]$|<n>", lambda _: str(found[1][0]), found[0].title)


def as_shown(key: str, value: float, digits: int = 4) -> str:
    """A score as text: percent, or for your own metric the number itself with `digits` digits.

    Example:
        >>> as_shown("map_at_r", 0.3123), as_shown("my_metric.hubness", -0.83214)
        ('31.2', '-0.8321')
    """
    return f"{value:.{digits}g}" if is_user_metric(key) else f"{100 * value:.1f}"


def can_select(key: str) -> bool:
    """Whether validation can compute it and select the best epoch: a score of queries, or your own metric."""
    found = named(key)
    return is_user_metric(key) or (found is not None and found[0].kind == "queries" and min(found[1], default=1) > 0)


def named(key: str) -> tuple[Metric, tuple[int, ...]] | None:
    """The row of a key such as `recall_at_4`, and the number in it."""
    for metric in METRICS:
        if found := re.fullmatch(re.sub("<.>", r"(-?\\d+)", metric.key), key):
            return metric, tuple(map(int, found.groups()))
    return None
