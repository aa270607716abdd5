"""Sub-centre ArcFace loss."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, no_grad

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.arcface import add_angle, check_angle
from levelfield.losses.base import Labels
from levelfield.losses.classification import ClassificationLoss, Logits


class SubCenterArcFaceLoss(ClassificationLoss):
    """ArcFace with several centres for each class, of which the nearest counts.

        L = mean_i CE( S cos(theta_ic + m [c = y_i]), y_i )    cos theta_ic = max_k u_i . w_ck

    Noisy samples gather at the minor centres. Beyond 180 degrees as in `ArcFaceLoss`.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        sub_centers: centres for each class.
        margin: m, in degrees, in [0, 180].
        scale: S, above 0.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: noisy labels; `get_outliers` finds them.
    Paper: Deng et al. 2020, "Sub-center ArcFace: Boosting Face Recognition by Large-Scale Noisy Web Faces",
    https://doi.org/10.1007/978-3-030-58621-8_43.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        sub_centers: int = 3,
        margin: float = 28.6,
        scale: float = 64.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=sub_centers, **class_weights)
        check_angle(margin, scale)
        self.sub_centers = sub_centers
        self.margin = margin
        self.scale = scale

    def logits(self, cosines: Float[Tensor, "N *K C"], labels: Labels) -> Logits:
        nearest = cosines if self.sub_centers == 1 else cosines.max(1).values
        return self.scale * add_angle(nearest, labels, math.radians(self.margin))

    @no_grad()
    def get_outliers(
        self, embeddings: Float[Tensor, "N D"], labels: Labels, threshold: float = 75.0
    ) -> tuple[Int[Tensor, " outliers"], Float[Tensor, "C D"]]:
        """Samples farther than `threshold` degrees from their class's dominant centre, and those centres.

        The dominant centre of a class is the one that is nearest to most of its samples, the first of a tie.
        """
        weights_CKD = self.class_weights.to(embeddings.dtype).unflatten(0, (self.num_classes, self.sub_centers))
        cosines_NK = inner_products(unit(weights_CKD)[labels], unit(embeddings)[:, None]).squeeze(2)
        votes_CK = torch.zeros(self.num_classes, self.sub_centers, dtype=torch.long, device=labels.device)
        ones = torch.ones_like(labels, dtype=torch.long)
        votes_CK.index_put_((labels, cosines_NK.argmax(1)), ones, accumulate=True)
        dominant_C = votes_CK.argmax(1)
        own = cosines_NK.gather(1, dominant_C[labels][:, None]).squeeze(1)
        outliers = (own < math.cos(math.radians(threshold))).nonzero().squeeze(1)
        return outliers, weights_CKD[torch.arange(self.num_classes, device=labels.device), dominant_C]
