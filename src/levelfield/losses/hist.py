"""HIST loss: learnt distributions of classes, and a network over the hypergraph of a batch."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, Scalar, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, Logits, SampleWeights

LEAKAGE = 0.1
# Epsilon of the batch normalization, as in torch.
LEAST_VARIANCE = 1e-5
# The largest logarithm of a variance.
GREATEST_LOG_VARIANCE = 6.0


class HISTLoss(ClassificationLoss):
    """Classifies samples by their distances to learnt distributions, and by a network over the batch's hypergraph.

        L = mean_i [ CE( -tau M_ic, y_i ) + lambda_s CE( z_ic, y_i ) ]    M_ic = sum_d (u_id - mu_cd)^2 / v_cd
        z = G phi( G (x theta_1 + b_1) ) theta_2 + G b_2    G = D_v^-1/2 H D_e^-1 H^T D_v^-1/2
        H_ie = 1 for the own class, e^(-alpha M_ie) else

    mu_c is the unit vector of a class weight. v_cd = e^(s_cd) is a variance, with s learnt and clipped to [0, 6]. Each
    class of the batch is an edge e of the hypergraph H; D_v and D_e are its row and column sums. x are embeddings with
    their norms (`normalize: false` in the learner). phi is batch normalization, always by the current batch, and a
    leaky ReLU of slope 0.1. The network belongs to the loss and learns with it; retrieval does not use it. A miner's
    weights apply to both parts; all samples are in the hypergraph. The authors shuffle, so a batch has many classes
    with one sample each. They put layer norm after the embedder (`LinearEmbedder(layer_norm=True)`): it fixes norms.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        tau: scale of the distances, above 0.
        alpha: how fast the share of other classes' samples in an edge falls, above 0.
        classification_weight: lambda_s, at least 0; with 0 the network does not learn.
        hidden_size: T, width of the network.
        network_rate: learning rate of the network relative to the loss's (`model.loss_lr`, that of the distributions),
            above 0. The network's weights are stored divided by it, which is exact for Adam and similar optimizers
            without weight decay.

    Class weights and s start with a standard deviation of sqrt(2/C), as in the authors' code.

    Cost: B C D + B min(B, C) (D + T) + B T C. When: batches of many classes.
    Paper: Lim et al. 2022, "Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning",
    https://openaccess.thecvf.com/content/CVPR2022/html/Lim_Hypergraph-Induced_Semantic_Tuplet_Loss_for_Deep_Metric_Learning_CVPR_2022_paper.html.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        tau: float = 32.0,
        alpha: float = 0.9,
        classification_weight: float = 1.0,
        hidden_size: int = 512,
        network_rate: float = 0.01,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        check_above_0(tau=tau, alpha=alpha, hidden_size=hidden_size, network_rate=network_rate)
        if classification_weight < 0:
            raise ValueError(f"classification_weight={classification_weight} must be at least 0")
        self.tau = tau
        self.alpha = alpha
        self.classification_weight = classification_weight
        self.network_rate = network_rate
        begin = partial(nn.init.normal_, std=math.sqrt(2 / num_classes))
        begin(self.class_weights)
        self.log_variances = nn.Parameter(begin(torch.empty(num_classes, embedding_size)))
        self.hidden = nn.Linear(embedding_size, hidden_size)
        self.norm = nn.BatchNorm1d(hidden_size, eps=LEAST_VARIANCE, track_running_stats=False)
        self.output = nn.Linear(hidden_size, num_classes)
        with torch.no_grad():
            for layer in (self.hidden, self.norm, self.output):
                for weight in layer.parameters():
                    weight.div_(network_rate).requires_grad_(classification_weight > 0)  # else it has no gradient

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Scalar:
        distances = self.distances(embeddings, class_weights)
        losses = cross_entropy(-self.tau * distances, labels, reduction="none")
        if self.classification_weight:
            logits = self.network_logits(embeddings, distances, labels)
            losses = losses + self.classification_weight * cross_entropy(logits, labels, reduction="none")
        return (losses * sample_weights).mean()

    def distances(self, embeddings: Float[Tensor, "N D"], class_weights: Float[Tensor, "C D"]) -> Logits:
        """M, the squared Mahalanobis distances of directions."""
        points, means = unit(embeddings), unit(class_weights)
        inverse = (-self.log_variances.to(points.dtype).clamp(0, GREATEST_LOG_VARIANCE)).exp()
        cross = inner_products(points, means * inverse)
        return inner_products(points.square(), inverse) - 2 * cross + (means.square() * inverse).sum(1)

    def network_logits(self, embeddings: Float[Tensor, "N D"], distances: Logits, labels: Labels) -> Logits:
        """z; its shapes do not depend on the labels. Each class is an edge, of weight 0 without samples. With fewer
        samples than classes, each sample is an edge of its class instead: the k edges of a class weigh 1 / k each."""
        if self.num_classes <= len(labels):
            own = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
            shares = own.any(0).to(distances.dtype)
        else:
            own = labels[:, None] == labels
            shares = 1 / own.sum(0, dtype=distances.dtype)
            distances = distances[:, labels]
        incidence = torch.where(own, 1.0, (-self.alpha * distances).exp())
        of_nodes = inner_products(incidence, shares[None]).rsqrt()
        of_edges = incidence.sum(0).where(shares > 0, 1.0)  # the sum of an edge that weighs 0 may underflow
        nodes = of_nodes * incidence
        edges = nodes * (shares / of_edges)

        def spread(points: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
            return inner_products(nodes, inner_products(points.mT, edges.mT))

        def weight_and_bias(layer: nn.Linear | nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
            weight, bias = (self.network_rate * part.to(embeddings.dtype) for part in (layer.weight, layer.bias))
            return weight, bias

        ones = spread(embeddings.new_ones(len(embeddings), 1))
        weight, bias = weight_and_bias(self.hidden)
        hidden = inner_products(spread(embeddings), weight) + ones * bias
        variances, means = torch.var_mean(hidden, 0, correction=0)
        weight, bias = weight_and_bias(self.norm)
        hidden = leaky_relu((hidden - means) * (variances + LEAST_VARIANCE).rsqrt() * weight + bias, LEAKAGE)
        weight, bias = weight_and_bias(self.output)
        if len(weight) < hidden.shape[1]:
            return spread(inner_products(hidden, weight) + bias)
        return inner_products(spread(hidden), weight) + ones * bias
