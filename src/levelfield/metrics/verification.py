"""Open-set measures: whether one threshold tells pairs of one class from pairs of two, counted in bounded memory.

A pair's similarity is brought to [-1, 1] and rounded to 2^-21, near what float32 products are rounded to: a histogram
of all pairs is then exact, ties included, and no N x N matrix is needed. For the intervals the pairs are counted once
more, coarsely, by the two classes that they are of.

Shapes: N items that ask, G items of the gallery, T thresholds, U units that are drawn (classes, or groups of them),
K coarse bins, B draws, R rows and C columns of one tile.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer, Num
from torch import Tensor

from levelfield.metrics.checks import check_embeddings
from levelfield.metrics.distances import DISTANCES, at_one_scale, full_precision
from levelfield.metrics.query_scores import DEFAULT_MEMORY_BUDGET
from levelfield.metrics.table import PAIR_METRICS, Metric, named
from levelfield.numerics import CLIP_RADIUS
from levelfield.seeds import seed_of

# Similarities are rounded to multiples of 1 / STEPS.
STEPS = 2**21
# So many bins of the histogram, as a power of two, are one for the intervals.
COARSE_BITS = 10
# Classes are drawn alone, or where there are more in as many groups: beyond, the interval gains little.
MAX_UNITS = 64
# Fewer say nothing of others.
FEWEST_CLASSES = 3
# Of a pair: its similarity, its bin and their temporaries.
PAIR_BYTES = 32
# Errors that a rate must rest on: the true one is then within 30% at 90% confidence, were the pairs independent.
FEWEST_ERRORS = 30
# False accept rates, as powers of a tenth, that are asked for unasked.
FAR_EXPONENTS = (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Roc:
    """Share of the pairs that is accepted, from the threshold above all similarities to the one below all.

    Attributes:
        far_T: of the pairs of two classes, ascending from 0 to 1.
        tar_T: of the pairs of one class.
        is_coarse: thresholds lie between these, too, on straight lines.
    """

    far_T: Float64[np.ndarray, " thresholds"]
    tar_T: Float64[np.ndarray, " thresholds"]
    is_coarse: bool = False

    @classmethod
    def of(cls, same_T: np.ndarray, other_T: np.ndarray, is_coarse: bool = False) -> "Roc":
        """From the counts of pairs by falling similarity; pairs that tie are accepted together."""
        far_T, tar_T = (np.concatenate([[0.0], counts.cumsum() / counts.sum()]) for counts in (other_T, same_T))
        return cls(far_T, tar_T, is_coarse)

    def last_accepted(self, far: float) -> int:
        """The last threshold whose FAR is at most this."""
        return int(np.searchsorted(self.far_T, far, side="right")) - 1

    def tar_at(self, far: float) -> float:
        """TAR at the last threshold whose FAR is at most this."""
        place = self.last_accepted(far)
        if not self.is_coarse or place + 1 == len(self.far_T):
            return float(self.tar_T[place])
        share = (far - self.far_T[place]) / (self.far_T[place + 1] - self.far_T[place])
        return float(self.tar_T[place] + share * (self.tar_T[place + 1] - self.tar_T[place]))


@dataclass(frozen=True)
class Verification:
    """What `verification_metrics` finds.

    Attributes:
        scores: fractions by metric.
        ci95: half the width of each score's 95% interval over classes; None with fewer than 3 classes.
        thresholds: of each TAR, the least similarity that is accepted: cosine; of `euclidean` and `poincare` the
            largest distance, of `hamming` the most bits that differ. Missing where no pair can be accepted.
        not_given: why a metric has no score: the pairs are too few for it.
        num_same: pairs of one class.
        num_other: pairs of two classes.
    """

    scores: dict[str, float]
    ci95: dict[str, float | None]
    thresholds: dict[str, float]
    not_given: dict[str, str]
    num_same: int
    num_other: int


def verification_metrics(
    embeddings: Num[Tensor, "queries dim"],
    labels: Integer[Tensor, " queries"],
    gallery: Num[Tensor, "gallery dim"] | None = None,
    gallery_labels: Integer[Tensor, " gallery"] | None = None,
    metrics: Iterable[str] | None = None,
    *,
    distance: str = "cosine",
    draws: int = 1000,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Verification:
    """Tell pairs of one class from pairs of two by one threshold on their similarity.

    Without a gallery the pairs are those of different embeddings, each once; with one, those of an embedding and an
    item of the gallery. The interval is a bootstrap's: classes are drawn with replacement, `draws` times; a pair of one
    class counts as often as its class was drawn, a pair of two by the product, and each time the thresholds are found
    anew. More than 64 classes are drawn in 64 groups that are formed at random.

    Args:
        embeddings: (N, D) floating point, any scale.
        labels: (N,) integers.
        gallery: (G, D) items, where the embeddings are not compared among themselves.
        gallery_labels: (G,) their labels.
        metrics: any of `tar_at_far_1e-<n>`, `eer` and `auroc`; None for all, the first with n from 2 to 6.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`, as in `retrieval_metrics`.
        draws: of the bootstrap; 0 for no interval.
        seed: of the draws and of the groups.
        memory_budget: bytes that the similarities looked at together may take, beside the histograms (about 200 MB).

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not go together, an unknown metric or distance, or no
            pair of one class, or of two.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> verification_metrics(embeddings, torch.tensor([0, 0, 1, 1]), metrics=("auroc",)).scores
        {'auroc': 1.0}

    Source: Bolle et al., Error analysis of pattern recognition systems: the subsets bootstrap, CVIU 2004, for classes
    as the units; Doddington et al., The NIST speaker recognition evaluation, Speech Communication 2000, for 30 errors.
    """
    wanted = _wanted(metrics)
    if distance not in DISTANCES:
        raise ValueError(f"no such distance {distance!r}; known are {', '.join(DISTANCES)}")
    packed = distance == "hamming"
    check_embeddings(embeddings, labels, "embeddings", "labels", packed=packed)
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither")
    if gallery is not None and gallery_labels is not None:
        check_embeddings(gallery, gallery_labels, "gallery", "gallery_labels", packed=packed)
        if gallery.shape[1] != embeddings.shape[1]:
            raise ValueError(f"gallery has {gallery.shape[1]} dimensions, embeddings have {embeddings.shape[1]}")
    prepare, similarity = DISTANCES[distance]
    sets = [(embeddings, labels), *([] if gallery is None or gallery_labels is None else [(gallery, gallery_labels)])]
    rows = [each for each, _ in sets]
    if distance == "euclidean":
        rows = at_one_scale(*rows)
    held = [prepare(each) for each in rows]
    likeness, shown = _likeness(distance, similarity, held)
    counted = PairCounts([each.long() for _, each in sets], seed)
    with torch.inference_mode(), full_precision(embeddings.device):
        counted.count(held, likeness, memory_budget // PAIR_BYTES)
    return _scored(counted, wanted, shown, draws, seed)


class PairCounts:
    """Pairs of one class and of two by similarity, finely of all, and coarsely by the units that the pairs are of.

    Args:
        labels: of the items, and of the gallery where there is one.
        seed: of the groups of classes.
    """

    def __init__(self, labels: list[Int64[Tensor, " items"]], seed: int) -> None:
        classes, slots = torch.cat(labels).unique(return_inverse=True)
        self.num_classes = len(classes)
        self.num_units = min(self.num_classes, MAX_UNITS)
        generator = torch.Generator().manual_seed(seed_of("groups of classes", seed))
        unit_of = torch.randperm(self.num_classes, generator=generator) % self.num_units
        units = unit_of.to(slots.device)[slots].split([len(each) for each in labels])
        self.slots = slots.split([len(each) for each in labels])
        # The items of each unit, ascending.
        self.members = [[(each == unit).nonzero().squeeze(1) for unit in range(self.num_units)] for each in units]
        device, num_bins = slots.device, 2 * STEPS + 1
        self.same_T, self.other_T = (torch.zeros(num_bins, dtype=torch.int64, device=device) for _ in range(2))
        num_coarse = (num_bins - 1 >> COARSE_BITS) + 1
        self.same_UK = torch.zeros((self.num_units, num_coarse), dtype=torch.int64, device=device)
        # Of the units u <= v at u * U + v.
        self.other_VK = torch.zeros((self.num_units**2, num_coarse), dtype=torch.int64, device=device)

    def count(
        self, held: list[Num[Tensor, "items dim"]], likeness: Callable[[Tensor, Tensor], Tensor], room: int
    ) -> None:
        """Add all pairs, `room` of them at a time."""
        waiting: dict[bool, list[Tensor]] = {True: [], False: []}
        for unit, other, is_same, bins in self._tiles(held, likeness, max(1, room // 2)):
            first, last = min(unit, other), max(unit, other)
            counts_K = self.same_UK[unit] if is_same else self.other_VK[first * self.num_units + last]
            counts_K += (bins >> COARSE_BITS).bincount(minlength=len(counts_K))
            waiting[is_same].append(bins)
            if sum(map(len, waiting[is_same])) >= room // 2:
                self._flush(waiting)
        self._flush(waiting)

    def _flush(self, waiting: dict[bool, list[Tensor]]) -> None:
        for fine_T, bins in ((self.same_T, waiting[True]), (self.other_T, waiting[False])):
            if bins:
                fine_T += torch.cat(bins).bincount(minlength=len(fine_T))
            bins.clear()

    def _tiles(
        self, held: list[Num[Tensor, "items dim"]], likeness: Callable[[Tensor, Tensor], Tensor], room: int
    ) -> Iterator[tuple[int, int, bool, Int64[Tensor, " pairs"]]]:
        """The two units of some pairs, whether these are of one class, and their bins."""
        is_alone = len(held) == 1
        for unit, asking_R in enumerate(self.members[0]):
            for other in range(unit if is_alone else 0, self.num_units):
                gallery_C = self.members[-1][other]
                for rows_R in asking_R.split(max(1, room // max(1, len(gallery_C)))):
                    if len(rows_R) == 0 or len(gallery_C) == 0:
                        continue
                    bins_RC = likeness(held[0][rows_R], held[-1][gallery_C]).mul_(STEPS).round_().long()
                    bins_RC = bins_RC.add_(STEPS).clamp_(0, 2 * STEPS)
                    if unit != other:
                        yield unit, other, False, bins_RC.flatten()
                        continue
                    is_same_RC = self.slots[0][rows_R, None] == self.slots[-1][gallery_C]
                    is_pair_RC = rows_R[:, None] < gallery_C if is_alone else torch.ones_like(is_same_RC)
                    yield unit, other, True, bins_RC[is_pair_RC & is_same_RC]
                    yield unit, other, False, bins_RC[is_pair_RC & ~is_same_RC]

    def drawn(self, draws: int, seed: int) -> Iterator[Roc]:
        """The curve of each draw of the units that has pairs of both kinds."""
        generator = torch.Generator().manual_seed(seed_of("drawn classes", seed))
        drawn_BU = torch.randint(self.num_units, (draws, self.num_units), generator=generator)
        times_BU = torch.zeros((draws, self.num_units), dtype=torch.float64)
        times_BU.scatter_add_(1, drawn_BU, torch.ones_like(times_BU))
        times_BUU = times_BU[:, :, None] * times_BU[:, None]
        # Different classes of one group come with each draw of it, and two draws of one have no pairs with each other.
        times_BUU.diagonal(dim1=1, dim2=2).copy_(times_BU)
        same_UK, other_VK = self.same_UK.cpu().double(), self.other_VK.cpu().double()
        used_K = (same_UK.sum(0) + other_VK.sum(0)) > 0
        same_BK = (times_BU @ same_UK[:, used_K]).flip(1).numpy()
        used_V = other_VK.sum(1) > 0
        other_BK = (times_BUU.flatten(1)[:, used_V] @ other_VK[used_V][:, used_K]).flip(1).numpy()
        for same_K, other_K in zip(same_BK, other_BK, strict=True):
            if same_K.any() and other_K.any():
                yield Roc.of(same_K, other_K, is_coarse=True)


def _wanted(metrics: Iterable[str] | None) -> dict[str, tuple[Metric, tuple[int, ...]]]:
    """Row and number by key."""
    if isinstance(metrics, str):
        raise ValueError(f"metrics={metrics!r} is one string; pass a tuple of names, for example ({metrics!r},)")
    usual = [key.replace("<n>", str(n)) for key in PAIR_METRICS for n in (FAR_EXPONENTS if "<n>" in key else (0,))]
    rows = {}
    for name in usual if metrics is None else metrics:
        row = named(name)
        if row is None or row[0].key not in PAIR_METRICS or min(row[1], default=1) < 1:
            raise ValueError(f"no such metric {name!r}; known are {', '.join(PAIR_METRICS)}")
        rows[name] = row
    return rows


def _likeness(
    distance: str, similarity: Callable[[Tensor, Tensor], Tensor], held: list[Num[Tensor, "items dim"]]
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[float], float]]:
    """Similarities in [-1, 1], and what such a one is called: a cosine, a distance, a number of bits."""
    if distance == "hamming":
        bits = 8 * held[0].shape[1]
        return lambda *blocks: similarity(*blocks).div_(bits), lambda value: round(bits * (1 - value) / 2)
    if distance == "euclidean":
        # No two items are farther apart; the same number for each set of the same embeddings.
        bound = max(sum(float(each.double().norm(dim=1).max()) for each in (held[0], held[-1])), 1e-30)

        def nearness(*blocks: Tensor) -> Float[Tensor, "rows columns"]:
            return similarity(*blocks).mul_(-2).clamp_(min=0).sqrt_().div_(-bound).add_(1)

        return nearness, lambda value: bound * (1 - value)
    if distance == "poincare":
        farthest = 4 * CLIP_RADIUS  # between points opposite at the radius that clips them
        return lambda *blocks: similarity(*blocks).mul_(2 / farthest).add_(1), lambda value: farthest * (1 - value) / 2
    return similarity, lambda value: value


def _scored(
    counted: PairCounts,
    wanted: dict[str, tuple[Metric, tuple[int, ...]]],
    shown: Callable[[float], float],
    draws: int,
    seed: int,
) -> Verification:
    used_T = ((counted.same_T + counted.other_T) > 0).nonzero().squeeze(1).flip(0)
    same_T, other_T = counted.same_T[used_T].cpu().numpy(), counted.other_T[used_T].cpu().numpy()
    num_same, num_other = int(same_T.sum()), int(other_T.sum())
    for kind, number in (("one class", num_same), ("two classes", num_other)):
        if number == 0:
            raise ValueError(f"there is no pair of {kind} among the {counted.num_classes} labels' items")
    roc = Roc.of(same_T, other_T)
    not_given, given = {}, {}
    for name, (metric, numbers) in wanted.items():
        accepted = num_other // 10 ** numbers[0] if numbers else FEWEST_ERRORS
        if accepted < FEWEST_ERRORS:
            not_given[name] = (
                f"it would rest on {accepted} of {num_other:,} pairs of two classes, and {FEWEST_ERRORS} are needed"
            )
        else:
            given[name] = metric, numbers
    scores = {name: float(metric.score(roc, *numbers)) for name, (metric, numbers) in given.items()}
    thresholds = {}
    for name, (_, numbers) in given.items():
        place = roc.last_accepted(float(f"1e-{numbers[0]}")) if numbers else 0
        if place > 0:
            thresholds[name] = shown(int(used_T[place - 1]) / STEPS - 1)
    ci95: dict[str, float | None] = dict.fromkeys(scores)
    if draws and counted.num_classes >= FEWEST_CLASSES:
        found: dict[str, list[float]] = {name: [] for name in scores}
        for drawn in counted.drawn(draws, seed):
            for name, (metric, numbers) in given.items():
                found[name].append(metric.score(drawn, *numbers))
        ci95 = {name: _half_width(values) for name, values in found.items()}
    return Verification(scores, ci95, thresholds, not_given, num_same, num_other)


def _half_width(values: list[float]) -> float | None:
    """Half of what 95% of the draws span."""
    if not values:
        return None
    low, high = np.quantile(values, (0.025, 0.975))
    return math.fabs(high - low) / 2
