"""Losses with class weights as plain loops over their equations; `case.w(k)` is a class weight of length 1."""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from loss_cases import Batch, cross_entropy, degrees, mean, nonzero_mean
from torch import Tensor


def of_classes(case: Batch, logit: Callable[[int, int, bool], Tensor], anchors_only: bool = False) -> Tensor:
    """Mean of the samples' weighted cross-entropies; `logit(i, c, own)` is told whether c is the sample's class."""
    terms = []
    for i, (weight, label) in enumerate(zip(case.sample_weights(anchors_only), case.y.tolist(), strict=True)):
        logits = [logit(i, c, c == label) for c in range(case.loss.num_classes)]
        terms.append(weight * cross_entropy(logits, label))
    return mean(terms)


def turned(cos: Tensor, margin: float | Tensor) -> Tensor:
    """ArcFace's cosine of the angle and a margin; a line beyond 180 degrees."""
    theta = torch.acos(cos)
    return torch.cos(theta + margin) if theta <= math.pi - margin else cos - margin * math.sin(margin)


def adaface(case: Batch, margin, scale, concentration, mean_norm=None, deviation=None):
    norms = case.x.detach().norm(dim=1)
    middle, spread = (norms.mean(), norms.std()) if mean_norm is None else (mean_norm, deviation)

    def logit(i, c, own):
        cos = case.u(i) @ case.w(c)
        if own:
            z = float(((norms[i] - middle) / (spread + 0.001) * concentration).clamp(-1, 1))
            cos = torch.cos((torch.acos(cos) - margin * z).clamp(0, math.pi)) - (margin * z + margin)
        return scale * cos

    return of_classes(case, logit)


def arcface(case: Batch, margin, scale):
    def logit(i, c, own):
        cos = case.u(i) @ case.w(c)
        return scale * (turned(cos, degrees(margin)) if own else cos)

    return of_classes(case, logit)


def cosface(case: Batch, margin, scale):
    return of_classes(case, lambda i, c, own: scale * (case.u(i) @ case.w(c) - margin * own))


def hist(case: Batch, tau=32.0, alpha=0.9, classification_weight=1.0, network_rate=0.01, **_):
    variances = [s.clamp(0, 6).exp() for s in case.loss.log_variances]
    M = [
        [((case.u(i) - case.w(c)) ** 2 / variances[c]).sum() for c in range(case.loss.num_classes)]
        for i in range(len(case.y))
    ]
    z = hypergraph_network(case, M, alpha, network_rate)
    terms = [
        cross_entropy([-tau * m for m in M[i]], y) + classification_weight * cross_entropy(list(z[i]), y)
        for i, y in enumerate(case.y.tolist())
    ]
    return mean([w * term for w, term in zip(case.sample_weights(), terms, strict=True)])


def hypergraph_network(case: Batch, M: list[list[Tensor]], alpha: float, rate: float) -> list[Tensor]:
    """z by sums over the edges, which are the classes of the batch."""
    loss, y, N = case.loss, case.y.tolist(), len(case.y)
    edges = sorted(set(y))
    H = [[1.0 if y[i] == e else (-alpha * M[i][e]).exp() for e in edges] for i in range(N)]
    of_nodes = [sum(H[i]) for i in range(N)]
    of_edges = [sum(H[i][e] for i in range(N)) for e in range(len(edges))]

    def between(i, j):
        shared = sum(H[i][e] * H[j][e] / of_edges[e] for e in range(len(edges)))
        return shared / (of_nodes[i] * of_nodes[j]) ** 0.5

    def spread(rows):
        return [sum(between(i, j) * rows[j] for j in range(N)) for i in range(N)]

    hidden = spread([rate * loss.hidden.weight @ case.x[i] + rate * loss.hidden.bias for i in range(N)])
    middle = mean(hidden)
    variance = mean([(h - middle) ** 2 for h in hidden])
    normed = [rate * loss.norm.weight * (h - middle) / (variance + 1e-5).sqrt() + rate * loss.norm.bias for h in hidden]
    leaky = [torch.where(h > 0, h, 0.1 * h) for h in normed]
    return spread([rate * loss.output.weight @ h + rate * loss.output.bias for h in leaky])


def magface(
    case: Batch, lower_norm, upper_norm, lower_margin, upper_margin, scale, regularizer_weight, easy_margin=True
):
    a = [case.x[i].norm().clamp(lower_norm, upper_norm) for i in range(len(case.y))]

    def logit(i, c, own):
        cos = case.u(i) @ case.w(c)
        if own and not (easy_margin and cos <= 0):
            slope = (upper_margin - lower_margin) / (upper_norm - lower_norm)
            margin = degrees(slope * (a[i] - lower_norm) + lower_margin)
            theta = torch.acos(cos)
            cos = torch.cos(theta + margin) if theta + margin <= math.pi else cos - margin * torch.sin(margin)
        return scale * cos

    pulls = [w * (1 / a_i + a_i / upper_norm**2) for w, a_i in zip(case.sample_weights(), a, strict=True)]
    return of_classes(case, logit) + regularizer_weight * mean(pulls)


def normalized_softmax(case: Batch, temperature, label_smoothing=0.0):
    """Smoothing mixes in the mean over the classes."""

    def logit(i, c, own):
        return case.u(i) @ case.w(c) / temperature

    plain, C = of_classes(case, logit), case.loss.num_classes
    logits = [torch.stack([logit(i, c, False) for c in range(C)]) for i in range(len(case.y))]
    smooth = mean([-w * row.log_softmax(0).mean() for w, row in zip(case.sample_weights(), logits, strict=True)])
    return (1 - label_smoothing) * plain + label_smoothing * smooth


def potential_field(case: Batch, centers_per_class, delta, alpha):
    """Equations 1 to 6: every point in the field of each other one; charges by how often a miner names a sample."""
    N, proxies = len(case.y), len(case.loss.class_weights)
    points = [case.u(i) for i in range(N)] + [case.w(k) for k in range(proxies)]
    classes = case.y.tolist() + [k // centers_per_class for k in range(proxies)]
    charges = case.sample_weights() + [1.0] * proxies

    def psi(a, b):
        distance = (points[a] - points[b]).norm() if (points[a] != points[b]).any() else 0.0
        if classes[a] == classes[b]:
            return -(delta**-alpha) if distance < delta else -(distance**-alpha)
        return max(distance, 0.002) ** -alpha if distance < delta else delta**-alpha

    return sum(2 * charges[a] * charges[b] * psi(a, b) for a, b in combinations(range(len(points)), 2))


def proxy_anchor(case: Batch, margin, alpha):
    shares = case.sample_weights()
    pull, push, present = 0.0, 0.0, 0
    for c in range(case.loss.num_classes):
        cos = [case.u(i) @ case.w(c) for i in range(len(case.y))]
        own = [-alpha * (cos[i] - margin) + shares[i] - 1 for i in range(len(cos)) if int(case.y[i]) == c]
        others = [alpha * (cos[i] + margin) + shares[i] - 1 for i in range(len(cos)) if int(case.y[i]) != c]
        if own:
            present += 1
            pull = pull + torch.log1p(sum(z.exp() for z in own))
        push = push + torch.log1p(sum(z.exp() for z in others))
    return pull / present + push / case.loss.num_classes


def proxy_nca(case: Batch, softmax_scale, exclude_positive=False):
    """Teh et al. 2020's later form too: e^(-d / T) over that of all proxies, T one over the scale."""
    if not exclude_positive:
        return of_classes(case, lambda i, c, _: -softmax_scale * (case.u(i) - case.w(c)).square().sum(), True)
    terms = []
    for i, own in enumerate(case.y.tolist()):
        scaled = [softmax_scale * (case.u(i) - case.w(c)).square().sum() for c in range(case.loss.num_classes)]
        terms.append(scaled[own] + torch.stack([-d for c, d in enumerate(scaled) if c != own]).logsumexp(0))
    return mean(terms)


def proxy_triplet(case: Batch, margin, reduction):
    terms = []
    for i, (own, weight) in enumerate(zip(case.y.tolist(), case.sample_weights(), strict=True)):
        squares = [(case.u(i) - case.w(c)).square().sum() for c in range(case.loss.num_classes)]
        terms += [weight * (squares[own] - d + margin).clamp_min(0) for c, d in enumerate(squares) if c != own]
    return nonzero_mean(terms) if reduction == "nonzero" else mean(terms)


def soft_triple(case: Batch, centers_per_class, la, gamma, margin, reg_weight):
    K, C = centers_per_class, case.loss.num_classes

    def logit(i, c, own):
        cos = torch.stack([case.u(i) @ case.w(c * K + k) for k in range(K)])
        return la * (((cos / gamma).softmax(0) * cos).sum() - margin * own)

    pairs = [(c * K + a, c * K + b) for c in range(C) for a, b in combinations(range(K), 2)]
    spread = mean([(2 + 1e-5 - 2 * case.w(a) @ case.w(b)).sqrt() for a, b in pairs])
    return of_classes(case, logit) + reg_weight * spread


def sphereface(case: Batch, margin, scale):
    def logit(i, c, own):
        cos = case.u(i) @ case.w(c)
        if own:
            theta = torch.acos(cos)
            k = int(margin * theta / math.pi)
            cos = (-1) ** k * torch.cos(margin * theta) - 2 * k
        return scale * case.x[i].norm() * cos

    return of_classes(case, logit)


def subcenter_arcface(case: Batch, sub_centers, margin, scale):
    def logit(i, c, own):
        cos = torch.stack([case.u(i) @ case.w(c * sub_centers + k) for k in range(sub_centers)]).max()
        return scale * (turned(cos, degrees(margin)) if own else cos)

    return of_classes(case, logit)
