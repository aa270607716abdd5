"""Zero mean regularizer."""

from jaxtyping import Float
from torch import Tensor

from levelfield.regularizers.base import Regularizer


class ZeroMean(Regularizer):
    """Pulls the mean of each embedding's numbers to 0, as for a signal.

        R = mean_i abs(sum_k x_ik)

    x are the embeddings as the loss gets them.

    Cost: B D. When: with `SignalToNoiseRatioContrastiveLoss`, whose variances are then lengths.
    Paper: Yuan et al. 2019, "Signal-To-Noise Ratio: A Robust Distance Metric for Deep Metric Learning",
    arXiv:1904.02616.
    """

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        return points.sum(1).abs().mean()
