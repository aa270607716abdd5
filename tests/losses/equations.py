"""The losses as plain loops over their papers' equations, in float64; arguments are named as those of the loss.

For sample i of a batch `P[i]` and `N[i]` list its positives and negatives, `s(i, j)` and `d(i, j)` are the cosine and
the distance of unit vectors, `others` and `other_y` what the batch is compared with: itself or the references.
`w(k)` is a class weight of length 1.
"""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from loss_cases import Batch, pairs_of
from torch import Tensor, sigmoid
from torch.nn.functional import batch_norm, leaky_relu, linear, logsigmoid, softplus
from torch.nn.functional import cross_entropy as softmax_losses

ZERO = torch.zeros((), dtype=torch.float64)


def mean(terms: list[Tensor]) -> Tensor:
    return sum(terms) / len(terms) if terms else ZERO


def nonzero_mean(terms: list[Tensor]) -> Tensor:
    return mean([t for t in terms if t > 0])


def cross_entropy(logits: list[Tensor], target: int) -> Tensor:
    return -(logits[target] - torch.stack(logits).logsumexp(0))


def degrees(angle: float) -> float:
    return angle * math.pi / 180


def log1p_exp(exponents: list[Tensor]) -> Tensor:
    """log(1 + sum of e^x)."""
    return torch.stack([ZERO, *exponents]).logsumexp(0)


def angular(case: Batch, alpha=40.0, normalize=True):
    t = math.tan(degrees(alpha)) ** 2
    a = [case.u(i) if normalize else case.x[i] for i in range(len(case.y))]
    b = [case.v(j) if normalize else case.others[j] for j in range(len(case.other_y))]
    terms = []
    for i, p in case.pairs:
        negatives = [n for n, label in enumerate(case.other_y) if label != int(case.y[i])]
        terms.append(log1p_exp([4 * t * (a[i] + b[p]) @ b[n] - 2 * (1 + t) * (a[i] @ b[p]) for n in negatives]))
    return mean(terms)


def centroid_triplet(case: Batch, margin=0.05, power=1, normalize_centroids=True):
    def centroid(members):
        middle = mean([case.v(j) for j in members])
        return middle / middle.norm() if normalize_centroids else middle

    terms = []
    for i, label in enumerate(case.y.tolist()):
        own = [j for j, y in enumerate(case.other_y) if y == label and (case.ref is not None or j != i)]
        if not own:
            continue
        near = (case.u(i) - centroid(own)).norm() ** power
        for other in set(case.other_y) - {label}:
            far = (case.u(i) - centroid([j for j, y in enumerate(case.other_y) if y == other])).norm() ** power
            terms.append((near - far + margin).clamp_min(0))
    return nonzero_mean(terms)


def circle(case: Batch, m, gamma):
    """The weights are constants for the gradient."""
    rows = []
    for i in range(len(case.y)):
        if case.P[i] and case.N[i]:
            pushes, pulls = ([case.s(i, j) for j in set(row)] for row in (case.N[i], case.P[i]))
            push = [gamma * (s.detach() + m).clamp_min(0) * (s - m) for s in pushes]
            pull = [gamma * (1 + m - s.detach()).clamp_min(0) * (1 - m - s) for s in pulls]
            rows.append(softplus(torch.stack(push).logsumexp(0) + torch.stack(pull).logsumexp(0)))
    return nonzero_mean(rows)


def contextual(case: Batch, k, epsilon, pos_margin, neg_margin, context_weight, similarity_weight, mean_similarity):
    N, y = len(case.y), case.y.tolist()
    s = [[case.s(i, j) for j in range(N)] for i in range(N)]
    d2 = [[2 - 2 * s[i][j] for j in range(N)] for i in range(N)]

    def is_in(neighbours):
        """Whether j is among i's nearest: 0 or 1, with the slope 10 with respect to -d^2."""
        found = []
        for i in range(N):
            farthest = sorted(d.detach() for d in d2[i])[neighbours - 1]
            hard = [float(d.detach() <= farthest + epsilon) for d in d2[i]]
            found.append([h - 10 * (d - d.detach()) for h, d in zip(hard, d2[i], strict=True)])
        return found

    near, nearer = is_in(k), is_in(k // 2)
    W = [[None] * N for _ in range(N)]
    for i in range(N):
        size = float(sum(near[i]).detach())
        for j in range(N):
            both = sum(near[i][m] * near[j][m] for m in range(N))
            neither = sum((1 - near[i][m]) * (1 - near[j][m]) for m in range(N))
            W[i][j] = (both / size + neither / max(N - size, 1)) / 2 * near[i][j]
    J = [[None] * N for _ in range(N)]
    for i in range(N):
        mutual = [nearer[i][m] * nearer[m][i] for m in range(N)]
        for j in range(N):
            J[i][j] = sum(mutual[m] * W[m][j] for m in range(N)) / sum(mutual)
    pairs = [(i, j) for i in range(N) for j in range(N) if i != j]
    context = sum((float(y[i] == y[j]) - (J[i][j] + J[j][i]) / 2) ** 2 for i, j in pairs)
    pull = nonzero_mean([pos_margin - s[i][j] for i, j in pairs if y[i] == y[j]])
    push = nonzero_mean([s[i][j] - neg_margin for i, j in pairs if y[i] != y[j]])
    spread = (sum(sum(row) for row in s) / N**2 - mean_similarity) ** 2
    rest = 1 - context_weight - similarity_weight
    return context_weight * context / N**2 + rest * (pull + push) + similarity_weight * spread


def hinges(case: Batch, distance: Callable[[int, int], Tensor], pos_margin: float, neg_margin: float, power: int = 1):
    pulls = [(distance(i, p) - pos_margin).clamp_min(0) ** power for i, p in case.pairs]
    pushes = [(neg_margin - distance(i, n)).clamp_min(0) ** power for i, n in pairs_of(case.N)]
    return nonzero_mean(pulls) + nonzero_mean(pushes)


def contrastive(case: Batch, pos_margin=0.0, neg_margin=1.0, hinge_power=1):
    return hinges(case, case.d, pos_margin, neg_margin, hinge_power)


def decoupled_contrastive(case: Batch, temperature):
    terms = []
    for i, p in case.pairs:
        if case.N[i]:
            terms.append(sum(((case.s(i, n) - case.s(i, p)) / temperature).exp() for n in case.N[i]).log())
    return mean(terms)


def fast_ap(case: Batch, num_bins):
    losses, weights = [], case.sample_weights()
    unit, other_unit = (t / t.norm(dim=1, keepdim=True) for t in (case.x, case.others))
    squares = (unit[:, None] - other_unit[None]).square().sum(2)
    for i in range(len(case.y)):
        others = [j for j in range(len(case.other_y)) if case.ref is not None or j != i]
        positives = [j for j in others if case.other_y[j] == int(case.y[i])]
        if not positives:
            continue
        cumulative = cumulative_positive = average = 0.0
        for k in range(num_bins + 1):
            share = {j: (1 - (squares[i, j] - 4 * k / num_bins).abs() * num_bins / 4).clamp_min(0) for j in others}
            h_positive = sum(share[j] for j in positives)
            cumulative = cumulative + sum(share.values())
            cumulative_positive = cumulative_positive + h_positive
            if cumulative > 0:
                average = average + h_positive * cumulative_positive / cumulative
        losses.append((1 - average / len(positives)) * weights[i])
    return mean(losses)


CURVATURE, CLIP_RADIUS = 0.1, 2.3  # Ermolov et al. 2022


def hyperbolic_distance(x: Tensor, y: Tensor) -> Tensor:
    """Of points that are clipped, mapped at the origin and subtracted by Moebius addition."""
    if torch.equal(x, y):
        return ZERO
    c, points = CURVATURE, []
    for each in (x, y):
        v = each * (CLIP_RADIUS / each.norm()).clamp(max=1)
        points.append(torch.tanh(math.sqrt(c) * v.norm()) * v / (math.sqrt(c) * v.norm()))
    u, z = -points[0], points[1]
    along, uu, zz = u @ z, u @ u, z @ z
    difference = ((1 + 2 * c * along + c * zz) * u + (1 - c * uu) * z) / (1 + 2 * c * along + c**2 * uu * zz)
    return 2 / math.sqrt(c) * torch.atanh(math.sqrt(c) * difference.norm())


def hyperbolic_cross_entropy(case: Batch, temperature):
    losses = []
    for i, p in case.pairs:
        logits = [-hyperbolic_distance(case.x[i], case.others[j]) / temperature for j in (p, *case.N[i])]
        losses.append(cross_entropy(logits, 0))
    return mean(losses)


def lifted_structure(case: Batch, neg_margin=1.0, pos_margin=0.0, normalize=True):
    def distance(a, b):
        return (a / a.norm() - b / b.norm() if normalize else a - b).norm()

    terms = []
    for i, p in case.pairs:
        of_p = case.N[p] if case.ref is None else [n for n, y in enumerate(case.other_y) if y != case.other_y[p]]
        pushes = [neg_margin - distance(case.x[i], case.others[n]) for n in case.N[i]]
        pushes += [neg_margin - distance(case.others[p], case.others[n]) for n in of_p]
        joined = torch.stack(pushes).logsumexp(0)
        terms.append((joined + distance(case.x[i], case.others[p]) - pos_margin).clamp_min(0) ** 2 / 2)
    return mean(terms)


def margin(case: Batch, margin=0.2, nu=0.0, beta=1.2, num_classes=None, pairs=False, **_):
    learnt = case.loss.beta if isinstance(case.loss.beta, Tensor) else torch.tensor([beta], dtype=torch.float64)
    b = [learnt[int(label)] if num_classes else learnt[0] for label in case.y]
    of_triplets = [(i, p) for i, p, _ in case.triplets], [(i, n) for i, _, n in case.triplets]
    chosen = (case.pairs, pairs_of(case.N)) if pairs else of_triplets
    terms = [case.d(i, p) - b[i] + margin for i, p in chosen[0]] + [b[i] - case.d(i, n) + margin for i, n in chosen[1]]
    active = sum(bool(term > 0) for term in terms)
    loss = sum(term for term in terms if term > 0) / active
    return loss + nu * (sum(b[i] for i, _ in chosen[0] + chosen[1] * pairs) / active if num_classes else b[0])


def multi_similarity(case: Batch, alpha, beta, base):
    rows = []
    for i in range(len(case.y)):
        pull = log1p_exp([-alpha * (case.s(i, p) - base) for p in set(case.P[i])])
        rows.append(pull / alpha + log1p_exp([beta * (case.s(i, n) - base) for n in set(case.N[i])]) / beta)
    return mean(rows)


def n_pairs(case: Batch, l2_reg=0.0, symmetric=False, normalize=True, temperature=1.0):
    first = {}
    for i in range(len(case.y)):
        for p in case.P[i]:
            first.setdefault(int(case.y[i]), (i, p))
    pairs = list(first.values())

    def logit(a, p):
        return (case.s(a, p) if normalize else case.x[a] @ case.others[p]) / temperature

    loss = mean([cross_entropy([logit(a, q) for _, q in pairs], k) for k, (a, _) in enumerate(pairs)])
    if symmetric:
        backward = [cross_entropy([logit(b, p) for b, _ in pairs], k) for k, (_, p) in enumerate(pairs)]
        loss = (loss + mean(backward)) / 2
    lengths = [case.x[a] @ case.x[a] + case.others[p] @ case.others[p] for a, p in pairs]
    return loss + l2_reg * mean(lengths)


def ntxent(case: Batch, temperature):
    return mean([cross_entropy([case.s(i, j) / temperature for j in (p, *case.N[i])], 0) for i, p in case.pairs])


PENALTIES = {
    "O": lambda R: R,
    "Ds": lambda R: (1 + R).log(),
    "Dq": lambda R: 1 - 1 / (1 + R) ** 4,
    "Iu": lambda R: (1 + R) * (1 + R).log() - R,
    "Ib": lambda R: (3 * R - (1 + 3 * R).log()) / 9,
}


def of_positives(case: Batch, term: Callable[[int, int, list[int], list[int]], Tensor]) -> Tensor:
    """Mean over the anchors of the mean over their positives."""
    return mean([mean([term(i, p, P, N) for p in P]) for i, P, N in case.anchors])


def pnp(case: Batch, b, alpha, anneal, variant):
    """`b` and `alpha` are those of the penalties: 3 and 4."""

    def penalty(i, p, _, negatives):
        before = sum((sigmoid((case.s(i, n) - case.s(i, p)) / anneal) for n in negatives), ZERO)
        return PENALTIES[variant](before)

    return of_positives(case, penalty)


def prototypical(case: Batch, num_support=None, squared=True, normalize=False):
    a = [case.u(i) if normalize else case.x[i] for i in range(len(case.y))]
    if case.ref is None:
        members = {c: [i for i, y in enumerate(case.y.tolist()) if y == c] for c in sorted(set(case.y.tolist()))}
        sizes = {c: len(m) // 2 if num_support is None else min(num_support, len(m) - 1) for c, m in members.items()}
        support = {c: [a[i] for i in m[: sizes[c]]] for c, m in members.items() if len(m) > 1}
        queries = [(i, c) for c, m in members.items() if len(m) > 1 for i in m[sizes[c] :]]
    else:
        b = [case.v(j) if normalize else case.ref[j] for j in range(len(case.other_y))]
        support = {c: [b[j] for j, y in enumerate(case.other_y) if y == c] for c in sorted(set(case.other_y))}
        queries = [(i, c) for i, c in enumerate(case.y.tolist()) if c in support]
    prototypes = {c: mean(points) for c, points in support.items()}
    order = list(prototypes)
    terms = []
    for i, c in queries:
        logits = [-((a[i] - prototypes[k]).norm() ** (2 if squared else 1)) for k in order]
        terms.append(cross_entropy(logits, order.index(c)))
    return mean(terms)


def ranked_list(case: Batch, margin, Tn, imbalance=0.5, alpha=None, Tp=0.0, reduction="mean"):
    alpha = 1 + margin / 2 if alpha is None else alpha
    rows = []
    for i in range(len(case.y)):
        pulls = [case.d(i, p) - (alpha - margin) for p in case.P[i] if case.d(i, p) > alpha - margin]
        pushes = [alpha - case.d(i, n) for n in case.N[i] if case.d(i, n) < alpha]
        row = ZERO
        for share, sharpness, violations in ((1 - imbalance, Tp, pulls), (imbalance, Tn, pushes)):
            weights = [(sharpness * v).exp() for v in violations]
            if violations:
                weighted = sum(w * v for w, v in zip(weights, violations, strict=True))
                row = row + share * weighted / sum(weights)
        rows.append(row)
    return mean([row for row in rows if row > 0 or reduction == "mean"])


def recall_at_k(case: Batch, recall_at, recall_temperature, rank_temperature, unit=True):
    def missed(i, p, positives, negatives):
        s = {j: case.s(i, j) if unit else case.x[i] @ case.x[j] for j in positives + negatives}
        rank = 1 + sum(sigmoid((s[j] - s[p]) / rank_temperature) for j in s if j != p)
        return mean([1 - sigmoid((k - rank) / recall_temperature) for k in recall_at])

    return of_positives(case, missed)


def roadmap(case: Batch, temperature, rho, delta, weight):
    def bound(x):
        if x <= 0:
            return sigmoid(x / temperature)
        at_delta = sigmoid(torch.tensor(delta / temperature, dtype=torch.float64))
        return sigmoid(x / temperature) + 0.5 if x <= delta else rho * (x - delta) + at_delta + 0.5

    losses = []
    for i, positives, negatives in case.anchors:
        s = {j: case.s(i, j) for j in positives + negatives}
        precision = pull = push = 0.0
        for p in positives:
            same = 1 + sum(1 for q in positives if q != p and s[q] >= s[p])
            precision = precision + same / (same + sum(bound(s[n] - s[p]) for n in negatives))
            pull = pull + (0.9 - s[p]).clamp_min(0) / len(positives)
        for n in negatives:
            push = push + (s[n] - 0.6).clamp_min(0) / len(negatives)
        losses.append((1 - weight) * (1 - precision / len(positives)) + weight * (pull + push))
    return mean(losses)


def sigmoid_pair(case: Batch, *_):
    t, b = case.loss.log_scale.exp(), case.loss.bias
    total = 0.0
    for i in range(len(case.y)):
        for z, others in ((1, case.P[i]), (-1, case.N[i])):
            for j in others:
                total = total - logsigmoid(z * (t * case.s(i, j) + b))
    return total / len(case.y)


def signal_to_noise_ratio(case: Batch, pos_margin=0.0, neg_margin=1.0, regularizer_weight=0.0):
    def snr(i, j):
        return (case.u(i) - case.v(j)).var() / case.u(i).var()

    return hinges(case, snr, pos_margin, neg_margin) + regularizer_weight * mean([abs(sum(row)) for row in case.x])


def smooth_ap(case: Batch, temperature):
    def lost_precision(i, p, positives, negatives):
        same = 1 + sum(sigmoid((case.s(i, q) - case.s(i, p)) / temperature) for q in positives if q != p)
        other = sum(sigmoid((case.s(i, n) - case.s(i, p)) / temperature) for n in negatives)
        return 1 - same / (same + other)

    return of_positives(case, lost_precision)


def soft_nearest_neighbor(case: Batch, temperature):
    rows = []
    for i in {i for i, _ in case.pairs}:
        same = torch.stack([case.s(i, p) for p in case.P[i]]) / temperature
        everything = torch.stack([case.s(i, j) for j in case.P[i] + case.N[i]]) / temperature
        rows.append(everything.logsumexp(0) - same.logsumexp(0))
    return mean(rows)


def supcon(case: Batch, temperature):
    rows = []
    for i, positives, negatives in case.anchors:
        everything = torch.stack([case.s(i, j) / temperature for j in positives + negatives]).logsumexp(0)
        rows.append(-mean([case.s(i, p) / temperature - everything for p in positives]))
    return nonzero_mean(rows)


def triplet_margin(case: Batch, margin=0.05, swap=False, smooth_loss=False, power=1, normalize=True):
    def distance(a, b):
        return (a / a.norm() - b / b.norm() if normalize else a - b).norm() ** power

    terms = []
    for i, p, n in case.triplets:
        far = distance(case.x[i], case.others[n])
        if swap:
            far = torch.minimum(far, distance(case.others[p], case.others[n]))
        violation = distance(case.x[i], case.others[p]) - far + margin
        terms.append(softplus(violation) if smooth_loss else violation.clamp_min(0))
    return nonzero_mean(terms)


def semihard(case: Batch, margin, triplets_per_anchor="semihard"):
    """FaceNet's rule: the nearest negative that is farther than the positive, else the farthest."""
    terms = []
    for i, p in case.pairs:
        farther = [n for n in case.N[i] if case.d(i, n) > case.d(i, p)]
        n = min(farther, key=lambda n: case.d(i, n)) if farther else max(case.N[i], key=lambda n: case.d(i, n))
        terms.append((case.d(i, p) - case.d(i, n) + margin).clamp_min(0))
    return mean(terms)


def tuplet_margin(case: Batch, margin, scale):
    terms = []
    for i, p in case.pairs:
        target = torch.cos(torch.acos(case.s(i, p)) - degrees(margin))
        terms.append(log1p_exp([scale * (case.s(i, n) - target) for n in case.N[i]]))
    return mean(terms)


def of_classes(case: Batch, logit: Callable[[int, int, bool], Tensor], anchors_only: bool = False) -> Tensor:
    """Mean of the samples' weighted cross-entropies; `logit(i, c, own)` is told whether c is the sample's class."""
    terms = []
    for i, (weight, label) in enumerate(zip(case.sample_weights(anchors_only), case.y.tolist(), strict=True)):
        logits = [logit(i, c, c == label) for c in range(case.loss.num_classes)]
        terms.append(weight * cross_entropy(logits, label))
    return mean(terms)


def turned(cos: Tensor, margin: Tensor) -> Tensor:
    """ArcFace's cosine of the angle and a margin; a line beyond 180 degrees."""
    theta = torch.acos(cos)
    return torch.cos(theta + margin) if theta <= math.pi - margin else cos - margin * torch.sin(margin)


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
    return subcenter_arcface(case, 1, margin, scale)


def cosface(case: Batch, margin, scale):
    return of_classes(case, lambda i, c, own: scale * (case.u(i) @ case.w(c) - margin * own))


def hist(case: Batch, tau=32.0, alpha=0.9, classification_weight=1.0, network_rate=0.01, **_):
    u = torch.stack([case.u(i) for i in range(len(case.y))])
    w = torch.stack([case.w(c) for c in range(case.loss.num_classes)])
    M = ((u[:, None] - w) ** 2 / case.loss.log_variances.clamp(0, 6).exp()).sum(2)
    z = hypergraph_network(case, M, alpha, network_rate)
    of_distances, of_network = (softmax_losses(logits, case.y, reduction="none") for logits in (-tau * M, z))
    return (case.x.new_tensor(case.sample_weights()) * (of_distances + classification_weight * of_network)).mean()


def hypergraph_network(case: Batch, M: Tensor, alpha: float, rate: float) -> Tensor:
    """z: two layers over D_v^-1/2 H D_e^-1 H^T D_v^-1/2, whose edges are the classes of the batch."""
    loss, edges = case.loss, case.y.unique()
    H = torch.where(case.y[:, None] == edges, 1.0, (-alpha * M[:, edges]).exp())
    of_nodes, of_edges = H.sum(1).rsqrt().diag(), (1 / H.sum(0)).diag()
    spread = of_nodes @ H @ of_edges @ H.T @ of_nodes
    hidden = spread @ linear(case.x, rate * loss.hidden.weight, rate * loss.hidden.bias)
    normed = batch_norm(hidden, None, None, rate * loss.norm.weight, rate * loss.norm.bias, training=True)
    return spread @ linear(leaky_relu(normed, 0.1), rate * loss.output.weight, rate * loss.output.bias)


def magface(
    case: Batch, lower_norm, upper_norm, lower_margin, upper_margin, scale, regularizer_weight, easy_margin=True
):
    a = [case.x[i].norm().clamp(lower_norm, upper_norm) for i in range(len(case.y))]

    def logit(i, c, own):
        cos = case.u(i) @ case.w(c)
        if own and not (easy_margin and cos <= 0):
            slope = (upper_margin - lower_margin) / (upper_norm - lower_norm)
            cos = turned(cos, degrees(slope * (a[i] - lower_norm) + lower_margin))
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
    angle = torch.tensor(degrees(margin), dtype=torch.float64)

    def logit(i, c, own):
        cos = torch.stack([case.u(i) @ case.w(c * sub_centers + k) for k in range(sub_centers)]).max()
        return scale * (turned(cos, angle) if own else cos)

    return of_classes(case, logit)
