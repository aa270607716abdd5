"""Center invariance regularizer."""

from jaxtyping import Float
from torch import Tensor

from levelfield.regularizers.base import Regularizer


class CenterInvariance(Regularizer):
    """Gives all class weights the same length, however many samples their classes have.

        R = mean_c 1/4 (norm(w_c)^2 - m)^2
        m = mean_c norm(w_c)^2

    w are the class weights as learnt. Losses of cosines use only their directions. A step of SGD turns a direction in
    proportion to 1 / norm(w)^2, so weights of equal length turn equally. The paper sums over the classes of the batch's
    samples; the mean over all classes is pytorch-metric-learning's form.

    Cost: C D. When: classes of very different sizes.
    Paper: Wu et al. 2017, "Deep Face Recognition with Center Invariant Loss", https://doi.org/10.1145/3126686.3126693.
    """

    of = "class_weights"

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        squares = points.square().sum(1)
        return (squares - squares.mean()).square().mean() / 4
