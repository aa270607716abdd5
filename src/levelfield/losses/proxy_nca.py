"""ProxyNCA loss."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.losses.base import check_above_0
from levelfield.losses.classification import ClassificationLoss, WeightInit, target_mask
from levelfield.losses.pairs import weighted_logsumexp


class ProxyNCALoss(ClassificationLoss):
    """Softmax classification by squared distance to one proxy a class.

        L = mean_i CE( -k norm(u_i - w_c)^2, y_i )

    u and w are unit vectors: without a miner this is the normalised softmax with temperature 1/(2k). With (N, D)
    embeddings and (N,) labels in 0..num_classes-1 it gives a scalar.

    Args:
        num_classes: C.
        embedding_size: D.
        softmax_scale: k, above 0. 1, the libraries' default, hardly trains; about 10 does.
        exclude_positive: only the other classes below the line, as the paper and Fehervari et al. (Eq 14) print it; the
            loss may then be below 0. Their vectors of length 3 are k = 9.
        class_fraction: share of the classes in play at each step (`ClassificationLoss`).
        weight_init: how the class weights begin (`ClassificationLoss`).

    Cost: B C. When: the normalised softmax with T = 1/(2k).
    Papers: Movshovitz-Attias et al. 2017, "No Fuss Distance Metric Learning using Proxies", arXiv:1703.07464; this form
    Musgrave et al. 2020, arXiv:2003.08505.
    """

    weigh_anchors_only = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        exclude_positive: bool = False,
        class_fraction: float = 1.0,
        weight_init: WeightInit = "normal",
    ) -> None:
        super().__init__(num_classes, embedding_size, class_fraction, weight_init=weight_init)
        check_above_0(softmax_scale=softmax_scale)
        self.softmax_scale = softmax_scale
        self.exclude_positive = exclude_positive

    def logits(self, cosines: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> Float[Tensor, "N C"]:
        return -self.softmax_scale * (2 - 2 * cosines)

    def losses(self, logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        if not self.exclude_positive:
            return cross_entropy(logits, labels, reduction="none")
        if logits.shape[1] == 1:
            return (logits * 0).sum(1)  # no other class to compare with
        others = weighted_logsumexp(logits, 1 - target_mask(logits, labels))
        return others - logits.gather(1, labels[:, None]).squeeze(1)
