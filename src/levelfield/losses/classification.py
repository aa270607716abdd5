"""Base class of the losses with class weights. N samples, C classes of the step, K centres a class, D dimensions."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn, no_grad
from torch.nn import functional

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, can_look, sample_weights

WeightInit = Literal["normal", "uniform", "class_means"]
# Types of the arguments and results of the methods that subclasses write.
Logits = Float[Tensor, "N C"]
ClassWeights = Float[Tensor, "CK D"]
SampleWeights = Float[Tensor, " N"]

# The first distance of a centre from the mean of the unit embeddings of its class.
CENTER_NOISE = 0.1


class ClassificationLoss(MetricLoss):
    """Cross-entropy over classes that are weight vectors; subclasses write `logits(cosines, labels)`.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        class_fraction: f in (0, 1]. A step classifies among the batch's classes and a uniform sample of the others,
            max(classes in the batch, round(f num_classes)) in all (Zhai & Wu 2019, section 4.5).
        centers_per_class: K weight vectors for each class, class by class in `class_weights`.
        weight_init: start of each entry of the class weights: `normal`, N(0, 1), or `uniform` in +-1/sqrt(D) (Zhai &
            Wu's code). The directions are spread the same way. A step of plain or momentum SGD turns a weight of length
            l in proportion to 1/l^2. The lengths are sqrt(D) and sqrt(1/3), so `uniform` turns 3 D times as far.
            `class_means` starts with the means of the classes' embeddings, of length 1. A `MetricLearner` calls
            `start_at_class_means` when a fit begins; your own loop must do so too. Until then it is `normal`.

    With a miner, a sample's weight is how often `indices_tuple` names it, divided by the largest such count. If the
    miner chooses nothing, all samples weigh the same. With `weigh_anchors_only` only its count as an anchor matters.
    `ref_emb` has no meaning here and raises ValueError.
    """

    weigh_anchors_only = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        class_fraction: float = 1.0,
        centers_per_class: int = 1,
        weight_init: WeightInit = "normal",
    ) -> None:
        super().__init__()
        if num_classes < 1 or embedding_size < 1 or centers_per_class < 1:
            raise ValueError(
                f"num_classes={num_classes}, embedding_size={embedding_size} and centers_per_class={centers_per_class} "
                "must be at least 1"
            )
        if not 0 < class_fraction <= 1:
            raise ValueError(f"class_fraction={class_fraction} must lie in (0, 1]")
        if weight_init not in get_args(WeightInit):
            raise ValueError(f"weight_init={weight_init!r} must be one of {', '.join(get_args(WeightInit))}")
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.class_fraction = class_fraction
        self.centers_per_class = centers_per_class
        self.starts_at_class_means = weight_init == "class_means"
        self.class_weights = nn.Parameter(torch.randn(num_classes * centers_per_class, embedding_size))
        if weight_init == "uniform":
            bound = 1 / math.sqrt(embedding_size)
            nn.init.uniform_(self.class_weights, -bound, bound)

    @no_grad()
    def start_at_class_means(self, embeddings: Float[Tensor, "N D"], labels: Labels) -> None:
        """Make the weights of a class the direction of the mean of its unit embeddings.

        Of several centres, each is moved by `CENTER_NOISE` in its random initial direction. Otherwise all centres of a
        class would get the same gradient, or only the first would get any.

        Args:
            embeddings: those of all training samples.

        Raises:
            ValueError: a class without a sample, or a label out of range.
        """
        labels = checked_classes(labels, self.num_classes)[0]
        if missing := {*range(self.num_classes)} - {*labels.tolist()}:
            raise ValueError(f"weight_init='class_means': class {min(missing)} has no sample")
        sums_CD = torch.zeros(self.num_classes, self.embedding_size, dtype=torch.float64, device=embeddings.device)
        means = unit(sums_CD.index_add_(0, labels, unit(embeddings.double())))
        means = means.repeat_interleave(self.centers_per_class, 0)
        if self.centers_per_class > 1:
            means += CENTER_NOISE * unit(self.class_weights.to(means))
        self.class_weights.copy_(means)

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Float[Tensor, ""]:
        if ref_emb is not None:
            raise ValueError(f"{type(self).__name__} compares with class weights and takes no ref_emb")
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings have {embeddings.shape[1]} dimensions but the loss was made with "
                f"embedding_size={self.embedding_size}"
            )
        labels, unknown = checked_classes(labels, self.num_classes)
        weights_N = sample_weights(embeddings, indices_tuple, self.weigh_anchors_only)
        weights_CD = self.class_weights.to(embeddings.dtype)
        if self.class_fraction < 1:
            classes, labels = self._sample_classes(labels)
            weights_CD = weights_CD.unflatten(0, (self.num_classes, self.centers_per_class))[classes].flatten(0, 1)
        return where_known(unknown, self.class_loss(embeddings, weights_CD, labels, weights_N))

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Float[Tensor, ""]:
        """The loss over the classes of the step; `labels` are positions among them."""
        losses_N = self.losses(self.class_logits(embeddings, class_weights, labels), labels)
        return (losses_N * sample_weights).mean()

    def losses(self, logits: Logits, labels: Labels) -> Float[Tensor, " N"]:
        """Each sample's loss; by default the cross-entropy."""
        return functional.cross_entropy(logits, labels, reduction="none")

    def class_logits(self, embeddings: Points, class_weights: ClassWeights, labels: Labels) -> Logits:
        """Logits of the classes of the step; by default `logits` of the cosines."""
        directions, K = unit(class_weights), self.centers_per_class
        if K > 1:  # order by centre, so that a reduction over centres runs along whole rows of classes
            directions = directions.unflatten(0, (-1, K)).transpose(0, 1).flatten(0, 1)
        cosines = inner_products(unit(embeddings), directions)
        return self.logits(cosines if K == 1 else cosines.unflatten(1, (K, -1)), labels)

    def logits(self, cosines: Float[Tensor, "N *K C"], labels: Labels) -> Logits:
        """Logits from the cosines between embeddings and class weights; `labels` are the rows' own classes.

        `cosines` are (N, C), or (N, K, C) where a class has several centres.
        """
        raise NotImplementedError

    @no_grad()
    def _sample_classes(self, labels: Labels) -> tuple[Int[Tensor, " C"], Int[Tensor, " N"]]:
        """The classes of the step, ascending, and the labels as positions among them."""
        # Equal seeds draw the same classes on every process. float32: half precision, if torch's default, has ties.
        keys = torch.rand(self.num_classes, device=labels.device, dtype=torch.float32)
        keys.index_fill_(0, labels, -1.0)  # `keys[labels] = -1.0` waits for a GPU
        size = max(1, round(self.class_fraction * self.num_classes))
        if len(labels) > size:
            size = max(size, int((keys < 0).sum()))
        classes = keys.topk(size, largest=False).indices.sort().values
        return classes, torch.searchsorted(classes, labels)


def target_mask(cosines: Logits, labels: Labels) -> Logits:
    """1 at each row's own class, 0 elsewhere."""
    return torch.zeros_like(cosines).scatter_(1, labels[:, None], 1.0)


def checked_classes(labels: Labels, num_classes: int) -> tuple[Int[Tensor, " N"], Tensor | None]:
    """Labels that can index classes, and whether any was out of range; None if that was checked here.

    Raises:
        ValueError: a label outside 0..num_classes-1, on the CPU and not in compiled code.
    """
    labels = labels.long()
    if not can_look(labels):
        inside = labels.clamp(0, num_classes - 1)
        return inside, (labels != inside).any()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        position = int(((labels < 0) | (labels >= num_classes)).int().argmax())
        raise ValueError(
            f"label {int(labels[position])} at position {position} is not one of the {num_classes} classes "
            f"0..{num_classes - 1}"
        )
    return labels, None


def where_known(unknown: Tensor | None, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """The loss, or NaN if a label was out of range; `unknown` is from `checked_classes`."""
    return loss if unknown is None else loss.masked_fill(unknown, torch.nan)
