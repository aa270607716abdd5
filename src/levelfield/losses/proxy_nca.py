"""ProxyNCA loss."""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits, target_mask
from levelfield.losses.pairs import weighted_logsumexp


class ProxyNCALoss(ClassificationLoss):
    """Softmax classification by squared distance to one proxy for each class.

        L = mean_i CE( -k norm(u_i - w_c)^2, y_i )

    u and w are unit vectors. Without a miner this is the normalised softmax with temperature 1/(2k).

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        softmax_scale: k, above 0. With 1, the libraries' default, it hardly trains; about 10 works.
        exclude_positive: only the other classes in the denominator, as the paper and Fehervari et al. (Eq 14) print it.
            The loss may then be below 0. Their vectors of length 3 correspond to k = 9.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: as the normalised softmax with T = 1/(2k).
    Papers: Movshovitz-Attias et al. 2017, "No Fuss Distance Metric Learning using Proxies", arXiv:1703.07464; this form
    Musgrave et al. 2020, arXiv:2003.08505.
    """

    weigh_anchors_only = True
    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "softmax_scale": {"start": 10.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        exclude_positive: bool = False,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_above_0(softmax_scale=softmax_scale)
        self.softmax_scale = softmax_scale
        self.exclude_positive = exclude_positive

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return -self.softmax_scale * (2 - 2 * cosines)

    def losses(self, logits: Logits, labels: Labels) -> Float[Tensor, " N"]:
        if not self.exclude_positive:
            return cross_entropy(logits, labels, reduction="none")
        if logits.shape[1] == 1:
            return (logits * 0).sum(1)  # no other class to compare with
        others = weighted_logsumexp(logits, 1 - target_mask(logits, labels))
        return others - logits.gather(1, labels[:, None]).squeeze(1)
