"""The base class of all losses: the call and its checks.

Shapes in names and types: N embeddings, M references (the embeddings themselves unless `ref_emb` is given), D
dimensions.

A loss of pairs subclasses `levelfield.losses.pairs.PairLoss` and writes `pair_loss(matrix, positives, negatives)`. A
loss with class weights subclasses `levelfield.losses.classification.ClassificationLoss` and writes `logits`. Anything
else subclasses `MetricLoss` and writes `compute`.
"""

from functools import partial
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, autocast, nn, no_grad, promote_types

from levelfield.core.init_args import KeepsArguments
from levelfield.core.labels import Labels, LabelSets, check_alike, check_labels

IndicesTuple = tuple[Tensor, ...]
# Types of the arguments of methods that subclasses write.
Points = Float[Tensor, "N D"]
Choice = IndicesTuple | None
RefPoints = Float[Tensor, "M D"] | None
RefLabels = Int[Tensor, " M"] | None
Scalar = Float[Tensor, ""]


class PairMasks(NamedTuple):
    """The pairs that count, each once. Lists of their indices would take sixteen times the memory."""

    positives: Bool[Tensor, "N M"]
    negatives: Bool[Tensor, "N M"]


class MetricLoss(KeepsArguments, nn.Module):
    """A loss over a batch of embeddings and their integer labels; subclasses write `compute`.

    `compute` runs in float32 (float64 stays float64), even under autocast. The matrix products of
    `levelfield.core.numerics` and their gradients are true float32, whatever precision is set. A batch without anything
    to compare gives 0 with a zero gradient. An embedding that is not finite never gives a finite loss. Random choices
    use torch's global generator, the CPU's or the GPU's, so processes with equal seeds choose equally.

    With `takes_label_sets` the labels may be a boolean matrix, where samples match that share a label.
    """

    takes_label_sets = False

    def forward(
        self,
        embeddings: Float[Tensor, "N D"],
        labels: Labels | LabelSets,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Float[Tensor, "M D"] | None = None,
        ref_labels: Int[Tensor, " M"] | Bool[Tensor, "M L"] | None = None,
    ) -> Scalar:
        """The loss.

        Args:
            embeddings: one row for each sample.
            labels: their classes; any integers for a loss of pairs, 0..num_classes-1 for a loss with class weights. Or
                label sets, (N, L) boolean, if the loss takes them; a sample with an empty set matches no other.
            indices_tuple: the choice of a miner, (a, p, n) or (a1, p, a2, n); None compares everything.
            ref_emb: compare each embedding with all of these; None compares it with the rest of the batch.
            ref_labels: the classes of `ref_emb`.

        Raises:
            ValueError: a shape or type that does not fit, or a class out of range. On a GPU or in compiled code such a
                class makes the loss NaN instead, which costs no synchronisation.
        """
        check_batch(embeddings, labels, ref_emb, ref_labels, self.takes_label_sets)
        if indices_tuple is not None:
            check_indices(indices_tuple)
        dtype = promote_types(embeddings.dtype, torch.float32)
        with autocast(embeddings.device.type, enabled=False):
            embeddings = embeddings.to(dtype)
            ref_emb = None if ref_emb is None else ref_emb.to(dtype)
            loss = self.compute(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            loss = loss + sum_of_zeros(embeddings, loss.requires_grad)
            return loss if ref_emb is None else loss + sum_of_zeros(ref_emb, loss.requires_grad)

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        """The loss of checked input, in the precision of `embeddings`."""
        raise NotImplementedError

    def set_num_classes(self, num_classes: int) -> None:
        """Called once, before training and before a checkpoint is loaded; for losses with parameters per class.

        A loss that holds other losses passes the number on.
        """
        pass_num_classes(self, num_classes)


def pass_num_classes(holder: nn.Module, num_classes: int) -> None:
    """Call `set_num_classes` of the modules that a module holds, or of those that they hold."""
    for part in holder.children():
        getattr(part, "set_num_classes", partial(pass_num_classes, part))(num_classes)


class LossFactory(Protocol):
    """A class, partial or function that returns a loss. It gets those of the two arguments that it takes.

    It does not get an argument whose default is None: with `num_classes=None` the loss works without classes.
    """

    def __call__(self, *, num_classes: int, embedding_size: int) -> nn.Module: ...


class MetricLossFactory(Protocol):
    """A `LossFactory` of a levelfield loss: with this type a short name means levelfield's loss before torch.nn's."""

    def __call__(self, *, num_classes: int, embedding_size: int) -> MetricLoss: ...


@no_grad()
def sample_weights(embeddings: Points, indices_tuple: Choice, anchors_only: bool = False) -> Float[Tensor, " N"]:
    """How often the miner names each sample, divided by the largest count; 1 without a miner or an empty choice.

    With `anchors_only` only the indices of anchors count.
    """
    ones = embeddings.new_ones(len(embeddings))
    if indices_tuple is None:
        return ones
    named = torch.cat(indices_tuple)
    if anchors_only:
        named = torch.cat([indices_tuple[0], indices_tuple[2]] if len(indices_tuple) == 4 else [indices_tuple[0]])
    counts = torch.zeros_like(ones).index_add_(0, named, ones.new_ones(len(named)))
    return torch.where(counts.max() > 0, counts / counts.max().clamp_min(1), ones)


def can_look(tensor: Tensor) -> bool:
    """Whether code may branch on a tensor's values: a GPU would have to synchronise, and a compiler would stop."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def sum_of_zeros(embeddings: Tensor, constant: bool) -> Scalar:
    """0, NaN if an embedding is not finite; with a zero gradient, unless it is `constant`."""
    embeddings = embeddings.detach() if constant else embeddings
    return torch.dist(embeddings, embeddings)


def check_batch(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None, takes_label_sets: bool
) -> None:
    """Raise ValueError if shapes or types do not fit."""
    _check_points("embeddings", embeddings)
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:  # a look that costs a step nothing
        check_labels(labels, len(embeddings), takes_sets=takes_label_sets)
    if (ref_emb is None) != (ref_labels is None):
        given, missing = ("ref_labels", "ref_emb") if ref_emb is None else ("ref_emb", "ref_labels")
        raise ValueError(f"{given} is given without {missing}; give both or neither")
    if ref_emb is not None and ref_labels is not None:
        _check_points("ref_emb", ref_emb)
        check_labels(ref_labels, len(ref_emb), "ref_labels", "ref_emb", takes_label_sets)
        check_alike(labels, ref_labels, "ref_labels")
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"ref_emb has {ref_emb.shape[1]} dimensions but embeddings have {embeddings.shape[1]}; they must agree"
            )


def check_indices(indices_tuple: IndicesTuple) -> None:
    """Raise ValueError unless these are (a, p, n) or (a1, p, a2, n) of matching lengths, or masks."""
    if isinstance(indices_tuple, PairMasks):
        return
    lengths = [len(indices) for indices in indices_tuple]
    triplets = len(lengths) == 3 and lengths[0] == lengths[1] == lengths[2]
    pairs = len(lengths) == 4 and lengths[0] == lengths[1] and lengths[2] == lengths[3]
    if not (triplets or pairs):
        raise ValueError(
            f"indices_tuple must be (a, p, n) or (a1, p, a2, n) of matching lengths, not lengths {lengths}"
        )


def check_above_0(**numbers: float) -> None:
    """Raise ValueError unless all these arguments of a loss are above 0."""
    if any(number <= 0 for number in numbers.values()):
        raise ValueError(f"{' and '.join(f'{name}={number}' for name, number in numbers.items())} must be above 0")


def _check_points(name: str, points: Tensor) -> None:
    if points.ndim != 2 or not points.is_floating_point() or points.numel() == 0:
        given = f"{str(points.dtype).removeprefix('torch.')} of shape {tuple(points.shape)}"
        raise ValueError(f"{name} must be a non-empty floating-point (N, D) tensor, not {given}")
