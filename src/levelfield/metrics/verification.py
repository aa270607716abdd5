"""Open-set measures: how well one threshold separates pairs of one class from pairs of two, in bounded memory.

The cosine of a pair is rounded to 2^-21, about the rounding of float32 products. Then a histogram of all pairs is
exact, ties included, and no N x N matrix is needed.

Shapes: N queries, G items of the gallery, T thresholds, R rows and C columns of one tile.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from levelfield.metrics.counts import Roc
from levelfield.metrics.definitions import Wanted
from levelfield.metrics.distances import check_sets, full_precision, prepared_sets, product
from levelfield.metrics.ranking import DEFAULT_MEMORY_BUDGET

# Cosines are rounded to multiples of 1 / STEPS.
STEPS = 2**21
# For each pair: its similarity, its bin and their temporaries.
PAIR_BYTES = 32
# Fewest errors for a rate: the true rate is then within 30% at 90% confidence, if pairs were independent.
FEWEST_ERRORS = 30
# The default false accept rates 10^-n, by n.
FAR_EXPONENTS = (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Verification:
    """Result of `verification_metrics`.

    Attributes:
        scores: fractions by metric.
        thresholds: for each TAR, the smallest accepted cosine. Missing where no pair can be accepted.
        not_given: metrics without a score, with the reason: too few pairs.
        num_same: pairs of one class.
        num_other: pairs of two classes.
    """

    scores: dict[str, float]
    thresholds: dict[str, float]
    not_given: dict[str, str]
    num_same: int
    num_other: int


def verification_metrics(
    embeddings: Float[Tensor, "queries dim"],
    labels: Integer[Tensor, " queries"],
    gallery: Float[Tensor, "gallery dim"] | None = None,
    gallery_labels: Integer[Tensor, " gallery"] | None = None,
    metrics: Iterable[str] | None = None,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Verification:
    """Score how well one threshold on the cosine separates pairs of one class from pairs of two.

    Without a gallery the pairs are those of different embeddings, each once; with one, those of an embedding and an
    item of the gallery.

    Args:
        embeddings: (N, D) floating point, any scale.
        labels: (N,) integers.
        gallery: (G, D) items; None compares the embeddings with each other.
        gallery_labels: (G,) their labels.
        metrics: any of `tar_at_far_1e-<n>`, `eer` and `auroc`; None for all, the first with n from 2 to 6.
        memory_budget: bytes for cosines at a time, in addition to the histograms (about 150 MB).

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not match, an unknown metric, or no pair of one
            class, or of two.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> verification_metrics(embeddings, torch.tensor([0, 0, 1, 1]), metrics=("auroc",)).scores
        {'auroc': 1.0}

    Source: Doddington et al., The NIST speaker recognition evaluation, Speech Communication 2000, for 30 errors.
    """
    wanted = Wanted.parse(metrics, "pairs", FAR_EXPONENTS)
    check_sets(embeddings, labels, gallery, gallery_labels, "cosine")
    prepared = prepared_sets(embeddings, gallery, distance="cosine")
    classes = [each for each in (labels, gallery_labels) if each is not None]
    with torch.inference_mode(), full_precision(embeddings.device):
        same_T, other_T = _counts(prepared, classes, memory_budget // PAIR_BYTES)
    for kind, counts_T in (("one class", same_T), ("two classes", other_T)):
        if not counts_T.any():
            raise ValueError(f"there is no pair of {kind} among the {len(torch.cat(classes).unique())} labels' items")
    used_T = ((same_T + other_T) > 0).nonzero().squeeze(1).flip(0)
    num_same, num_other = int(same_T.sum()), int(other_T.sum())
    roc = Roc.of(same_T[used_T].cpu().numpy(), other_T[used_T].cpu().numpy())
    scores: dict[str, float] = {}
    thresholds: dict[str, float] = {}
    not_given: dict[str, str] = {}
    for name, (metric, numbers) in wanted.rows.items():
        accepted = num_other // 10 ** numbers[0] if numbers else FEWEST_ERRORS
        if accepted < FEWEST_ERRORS:
            not_given[name] = (
                f"it would rest on {accepted} of {num_other:,} pairs of two classes, and {FEWEST_ERRORS} are needed"
            )
            continue
        scores[name] = float(metric.score(roc, *numbers))
        last = roc.last_accepted(float(f"1e-{numbers[0]}")) if numbers else 0
        if last > 0:
            thresholds[name] = int(used_T[last - 1]) / STEPS - 1
    return Verification(scores, thresholds, not_given, num_same, num_other)


def _counts(
    prepared: list[Float[Tensor, "items dim"]], labels: list[Integer[Tensor, " items"]], room: int
) -> tuple[Int64[Tensor, " bins"], Int64[Tensor, " bins"]]:
    """Number of pairs of one class and of two by bin of cosine, among the items or between them and a gallery.

    Args:
        room: largest number of pairs at a time, but at least one row.
    """
    device, no_pair = labels[0].device, 2 * STEPS + 1
    numbers_G = torch.arange(len(prepared[-1]), device=device)
    all_T, same_T = (torch.zeros(no_pair + 1, dtype=torch.int64, device=device) for _ in range(2))
    for rows_R in torch.arange(len(prepared[0]), device=device).split(max(1, room // len(prepared[-1]))):
        first = int(rows_R[0]) if len(prepared) == 1 else 0
        bins_RC = product(prepared[0][rows_R], prepared[-1][first:]).mul_(STEPS).round_().long()
        bins_RC = bins_RC.add_(STEPS).clamp_(0, 2 * STEPS)
        if len(prepared) == 1:
            bins_RC.masked_fill_(numbers_G[first:] <= rows_R[:, None], no_pair)
        all_T += bins_RC.flatten().bincount(minlength=no_pair + 1)
        same_T += bins_RC[labels[0][rows_R, None] == labels[-1][first:]].bincount(minlength=no_pair + 1)
    return same_T[:no_pair], (all_T - same_T)[:no_pair]
