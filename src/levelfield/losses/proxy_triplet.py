"""Proxy triplet loss."""

from typing import Any, Literal

from torch.nn.functional import relu

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, Scalar
from levelfield.losses.classification import ClassificationLoss, ClassWeights, SampleWeights, target_mask
from levelfield.losses.pairs import mean_over, nonzero_mean


class ProxyTripletLoss(ClassificationLoss):
    """Each sample must be nearer to its class's proxy than to other proxies, by a margin.

        L = NZ_{(i, c != y_i)} [ norm(u_i - w_{y_i})^2 - norm(u_i - w_c)^2 + m ]+

    u and w are unit vectors, so a term is [2 (cos_ic - cos_iy) + m]+.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in units of squared distance.
        reduction: "nonzero" is the mean over the terms above 0, "mean" over all, as Fehervari et al. do.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: comparison with older work.
    Papers: Movshovitz-Attias et al. 2017, arXiv:1703.07464; Fehervari et al. 2019, arXiv:1911.12528 (section 2.9).
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "margin": {"start": 1.0, "low": 0.0, "high": 2.0, "scale": "linear"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 1.0,
        reduction: Literal["nonzero", "mean"] = "nonzero",
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        if reduction not in ("nonzero", "mean"):
            raise ValueError(f"reduction={reduction!r} must be 'nonzero' or 'mean'")
        self.margin = margin
        self.reduction = reduction

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Scalar:
        cosines = inner_products(unit(embeddings), unit(class_weights))
        own = cosines.gather(1, labels[:, None])
        terms = relu(2 * (cosines - own) + self.margin)
        counted = 1 - target_mask(cosines, labels)
        average = nonzero_mean if self.reduction == "nonzero" else mean_over
        return average(terms * sample_weights[:, None], counted)
