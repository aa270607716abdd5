"""The shipped losses, float64 batches with what a miner chose of them, and the comparison with an equation."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from levelfield import losses

LABELS = [7, 7, 7, 7, 2, 2, 5, 5, 5, 11]  # classes of 4, 2, 3 and 1 samples
SITUATIONS = ["unit", "raw", "pairs", "triplets", "repeats", "duplicates", "reference"]
CLASS_SITUATIONS = ["unit", "raw", "triplets", "duplicates"]
# What some must be told, or are told to test more of them.
ARGUMENTS = {
    "MagFaceLoss": {"lower_norm": 1.0, "upper_norm": 20.0},
    "MarginLoss": {"learn_beta": True, "num_classes": 20, "nu": 0.1},
    "RankedListLoss": {"margin": 0.4, "Tn": 10},
}


# Settings that change what is computed, for tests over all losses; those without a row have their defaults.
SETTINGS = {
    **{name: [given] for name, given in ARGUMENTS.items()},
    "AngularLoss": [{}, {"normalize": False, "alpha": 20.0}],
    "CentroidTripletLoss": [{}, {"power": 2, "normalize_centroids": False}],
    "ContrastiveLoss": [{}, {"hinge_power": 2}],
    "HISTLoss": [{"hidden_size": 8}],
    "LiftedStructureLoss": [{}, {"normalize": False}],
    "MarginLoss": [ARGUMENTS["MarginLoss"], {}, {"pairs": True}, {"learn_beta": True, "nu": 0.1}],
    "NPairsLoss": [{}, {"l2_reg": 0.1, "symmetric": True}],
    "NTXentLoss": [{}, {"probability_floor": 1e-3}],
    "NormalizedSoftmaxLoss": [{"label_smoothing": 0.1}],
    "PNPLoss": [{"variant": "Dq", "anneal": 0.1}],
    "PrototypicalLoss": [{}, {"squared": False, "normalize": True}, {"num_support": 1}],
    "ProxyNCALoss": [{}, {"exclude_positive": True}],
    "ProxyTripletLoss": [{}, {"reduction": "mean"}],
    "RankedListLoss": [ARGUMENTS["RankedListLoss"], {**ARGUMENTS["RankedListLoss"], "reduction": "nonzero"}],
    "RecallAtKLoss": [{"rank_temperature": 0.1}],
    "SignalToNoiseRatioContrastiveLoss": [{}, {"regularizer_weight": 0.3}],
    "SoftTripleLoss": [{}, {"reg_weight": 0.2}],
    "TripletMarginLoss": [
        {}, {"power": 2}, {"swap": True}, {"smooth_loss": True}, {"triplets_per_anchor": "semihard"},
        {"triplets_per_anchor": "semihard", "smooth_loss": True},
    ],
}  # fmt: skip
# Settings with which a loss draws.
DRAWING = {
    "ArcFaceLoss": {"class_fraction": 0.6},
    "MarginLoss": {"triplets_per_anchor": 3},
    "NormalizedSoftmaxLoss": {"label_smoothing": 0.1, "class_fraction": 0.6},
    "PotentialFieldLoss": {"class_fraction": 0.6},
    "RecallAtKLoss": {"similarity_mixup": True},
    "SoftTripleLoss": {"class_fraction": 0.6},
    "TripletMarginLoss": {"triplets_per_anchor": 3},
}


def shipped() -> list[type[nn.Module]]:
    """The losses that one can name: those that no other extends, without the two that hold others."""
    listed = [getattr(losses, name) for name in losses.__all__]
    extended = {base for loss in listed for base in loss.__mro__[1:]}
    return [
        loss
        for loss in listed
        if loss not in extended | {losses.MetricLoss, losses.CrossBatchMemory, losses.WeightedSum}
    ]


def needs_classes(loss: type[nn.Module]) -> bool:
    """Whether it must be told the number of classes and the embedding size."""
    argument = inspect.signature(loss).parameters.get("num_classes")
    return argument is not None and argument.default is argument.empty


def make(loss: type[nn.Module], dim: int = 6, /, **arguments: Any) -> nn.Module:
    """The loss, of 20 classes if it needs classes."""
    sizes = {"num_classes": 20, "embedding_size": dim} if needs_classes(loss) else {}
    return loss(**{**sizes, **arguments})


def pairs_of(rows: list[list[int]]) -> list[tuple[int, int]]:
    return [(i, j) for i, row in enumerate(rows) for j in row]


@dataclass
class Batch:
    """A batch and, spelt out as lists, what it compares: P[i] and N[i], with repeats where a miner repeats a pair."""

    x: Tensor
    y: Tensor
    chosen: tuple[Tensor, ...] | None = None
    ref: Tensor | None = None
    ref_y: Tensor | None = None
    loss: nn.Module | None = None

    def __post_init__(self) -> None:
        theirs = self.y if self.ref_y is None else self.ref_y
        same = (self.y[:, None] & theirs).any(2) if self.y.ndim == 2 else self.y[:, None] == theirs
        if self.chosen is None:
            itself = torch.eye(len(same), dtype=torch.bool) if self.ref is None else torch.zeros_like(same)
            a1, p, a2, n = *(same & ~itself).nonzero().T, *(~same & ~itself).nonzero().T
        else:
            a1, p, a2, n = self.chosen if len(self.chosen) == 4 else (*self.chosen[:2], *self.chosen[::2])
        self.P: list[list[int]] = [p[a1 == i].tolist() for i in range(len(same))]
        self.N: list[list[int]] = [n[a2 == i].tolist() for i in range(len(same))]

    @property
    def triplets(self) -> list[tuple[int, int, int]]:
        if self.chosen is not None and len(self.chosen) == 3:
            return list(zip(*(t.tolist() for t in self.chosen), strict=True))
        return [(i, p, n) for i in range(len(self.y)) for p in self.P[i] for n in self.N[i]]

    @property
    def others(self) -> Tensor:
        return self.x if self.ref is None else self.ref

    @property
    def other_y(self) -> list:
        return (self.y if self.ref_y is None else self.ref_y).tolist()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The positive pairs."""
        return pairs_of(self.P)

    @property
    def anchors(self) -> list[tuple[int, list[int], list[int]]]:
        """Samples with positives: they, their positives and their negatives, each once."""
        return [(i, sorted(set(self.P[i])), sorted(set(self.N[i]))) for i in range(len(self.y)) if self.P[i]]

    def w(self, k: int) -> Tensor:
        """Class weight k of the loss, of length 1."""
        return self.loss.class_weights[k] / self.loss.class_weights[k].norm()

    def sample_weights(self, anchors_only: bool = False) -> list[float]:
        """How often the miner names each sample, over the largest such count."""
        if self.chosen is None:
            return [1.0] * len(self.y)
        named = self.chosen[::2][: len(self.chosen) - 2] if anchors_only else self.chosen
        counts = [sum(int((t == i).sum()) for t in named) for i in range(len(self.y))]
        return [c / max(counts) for c in counts]

    def u(self, i: int) -> Tensor:
        return self.x[i] / self.x[i].norm()

    def v(self, j: int) -> Tensor:
        return self.others[j] / self.others[j].norm()

    def s(self, i: int, j: int) -> Tensor:
        return self.u(i) @ self.v(j)

    def d(self, i: int, j: int) -> Tensor:
        return (self.u(i) - self.v(j)).norm()

    def arguments(self) -> tuple:
        return self.x, self.y, self.chosen, self.ref, self.ref_y


def in_memory(x: Tensor, y: Tensor, memory: tuple[Tensor, Tensor], places: Tensor | None, also: tuple = ()) -> Batch:
    """All pairs of a batch and a memory except each sample with itself at its place, and those of `also`."""
    everything, chosen = Batch(x, y, None, *memory), ()
    for k, pairs in enumerate((everything.P, everything.N)):
        listed = [(i, j) for i, j in pairs_of(pairs) if places is None or j != places[i]]
        listed += zip(*(indices.tolist() for indices in also[2 * k : 2 * k + 2]), strict=True) if also else []
        chosen += tuple(torch.tensor(listed).T)
    return Batch(x, y, chosen, *memory)


def batch(situation: str = "raw", labels: list | None = None, dim: int = 5, seed: int = 0) -> Batch:
    """A batch with gradient, in one of SITUATIONS."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(LABELS if labels is None else labels)
    x = torch.randn(len(y), dim, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True) if situation == "unit" else 3 * x
    if situation == "duplicates":  # of its own class, of another, and one of three
        x[[1, len(y) - 1]], x[3] = x[[0, 2]], x[1]
    chosen = ref = ref_y = None
    if situation == "reference":
        ref_y = y[torch.randperm(len(y), generator=generator).repeat(2)[: len(y) + 4]]
        ref = torch.randn(len(ref_y), dim, generator=generator, dtype=torch.float64).requires_grad_()
    elif situation in ("pairs", "triplets", "repeats"):
        everything = Batch(x, y)
        picked = torch.rand(1000, generator=generator) < 0.5
        if situation == "triplets":
            chosen = tuple(torch.tensor([t for t, keep in zip(everything.triplets, picked, strict=False) if keep]).T)
        else:
            chosen = ()
            for pairs in (everything.P, everything.N):
                listed = torch.tensor(pairs_of(pairs))
                chosen += tuple(listed[picked[: len(listed)]].T)
        if situation == "repeats":  # each pair of the choice up to three times
            times = [torch.randint(1, 4, (len(row),), generator=generator) for row in chosen[::2]]
            chosen = tuple(row.repeat_interleave(times[k // 2]) for k, row in enumerate(chosen))
    return Batch(x.requires_grad_(), y, chosen, ref, ref_y)


def value_and_gradients(loss: Tensor, *points: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    given = [p for p in points if p is not None]
    gradients = torch.autograd.grad(loss, given, allow_unused=True)
    return loss.detach(), [torch.zeros_like(p) if g is None else g for p, g in zip(given, gradients, strict=True)]


def assert_same(ours: Tensor, theirs: Tensor, *points: Tensor | None, value: float, gradient: float) -> None:
    """Values and gradients agree, relative to the largest entry of each."""
    our_value, our_gradients = value_and_gradients(ours, *points)
    their_value, their_gradients = value_and_gradients(theirs, *points)
    assert their_value.abs() > 0
    torch.testing.assert_close(our_value, their_value.to(our_value.dtype), rtol=value, atol=value)
    for mine, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=gradient, atol=gradient * max(float(other.abs().max()), 1e-12))


def assert_equals_loop(loss: nn.Module, loop: Callable[[Batch], Tensor], case: Batch) -> None:
    """The loss equals a loop over its equation, and so do its gradients, of what it learns too, to 1e-10."""
    case.loss = loss
    points = (case.x, case.ref, *(weight for weight in loss.parameters() if weight.requires_grad))
    assert_same(loss(*case.arguments()), loop(case), *points, value=1e-10, gradient=1e-9)


def class_batch(situation: str, num_classes: int = 6, dim: int = 5, seed: int = 0) -> Batch:
    """A batch whose labels are 0..num_classes-1, one class absent."""
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.randint(num_classes - 1, (14,), generator=generator).tolist()
    return batch(situation, labels, dim, seed)
