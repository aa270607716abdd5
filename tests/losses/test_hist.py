import math

import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, class_batch, cross_entropy, sample_weights

from levelfield.losses import HISTLoss


def mahalanobis(case, loss):
    """M of each sample and class."""
    means = [w / w.norm() for w in loss.class_weights]
    variances = [s.clamp(0, 6).exp() for s in loss.log_variances]
    return [
        [
            sum((case.u(i)[d] - mu[d]) ** 2 / v[d] for d in range(len(mu)))
            for mu, v in zip(means, variances, strict=True)
        ]
        for i in range(len(case.y))
    ]


def network(case, loss, M):
    """z by sums over the edges, which are the classes of the batch."""
    y, N, C = case.y.tolist(), len(case.y), loss.num_classes
    edges = sorted(set(y))
    H = [[1.0 if y[i] == e else (-loss.alpha * M[i][e]).exp() for e in edges] for i in range(N)]
    of_nodes = [sum(H[i]) for i in range(N)]
    of_edges = [sum(H[i][e] for i in range(N)) for e in range(len(edges))]

    def spread(rows):
        return [
            sum(
                sum(H[i][e] * H[j][e] / of_edges[e] for e in range(len(edges)))
                / (of_nodes[i] * of_nodes[j]) ** 0.5
                * rows[j]
                for j in range(N)
            )
            for i in range(N)
        ]

    rate = loss.network_rate
    hidden = spread([rate * loss.hidden.weight @ case.x[i] + rate * loss.hidden.bias for i in range(N)])
    mean = sum(hidden) / N
    variance = sum((h - mean) ** 2 for h in hidden) / N
    normed = [rate * loss.norm.weight * (h - mean) / (variance + 1e-5).sqrt() + rate * loss.norm.bias for h in hidden]
    leaky = [torch.where(h > 0, h, 0.1 * h) for h in normed]
    logits = spread([rate * loss.output.weight @ h + rate * loss.output.bias for h in leaky])
    assert logits[0].shape == (C,)
    return logits


def loop(case, loss):
    M, weights = mahalanobis(case, loss), sample_weights(case)
    z = network(case, loss, M)
    terms = [
        cross_entropy([-loss.tau * m for m in M[i]], y) + loss.classification_weight * cross_entropy(list(z[i]), y)
        for i, y in enumerate(case.y.tolist())
    ]
    return sum(w * term for w, term in zip(weights, terms, strict=True)) / len(terms)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden_size": 4, "network_rate": 1.0},  # fewer than classes, or more: the cheaper order of products
        {"hidden_size": 9, "tau": 3.0, "alpha": 2.0, "classification_weight": 0.4, "network_rate": 0.2},
        {"classification_weight": 0.0},
        {"num_classes": 40, "hidden_size": 9},  # more than samples, whose edges are then made another way
    ],
)
def test_equals_the_equation(situation, arguments):
    loss = HISTLoss(**{"num_classes": 6, "embedding_size": 5, **arguments}).double()
    learnt = [] if arguments.get("classification_weight") == 0 else [
        loss.hidden.weight, loss.hidden.bias, loss.norm.weight, loss.norm.bias, loss.output.weight, loss.output.bias
    ]  # fmt: skip
    case = class_batch(situation)
    assert_equals_loop(loss, lambda case: loop(case, loss), case, loss.class_weights, loss.log_variances, *learnt)


def test_variances_learn_within_their_bounds_alone():
    loss = HISTLoss(3, 4).double()
    loss.log_variances.data[:] = torch.tensor([-0.5, 0.5, 5.5, 6.5])
    loss(torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2])).backward()
    assert (loss.log_variances.grad[:, [0, 3]] == 0).all()
    assert (loss.log_variances.grad[:, [1, 2]] != 0).all()


def test_the_network_begins_alike_and_moves_by_its_own_rate():
    """A step of Adam at 0.1 moves the network's weights by 0.01 x 0.1, and those of the distributions by 0.1."""
    starts, moves = [], []
    for rate in (1.0, 0.01):
        torch.manual_seed(0)
        loss = HISTLoss(3, 4, hidden_size=8, network_rate=rate).double()
        starts.append(rate * loss.output.weight.detach())
        before = {name: weight.detach().clone() for name, weight in loss.named_parameters()}
        optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
        torch.manual_seed(1)
        loss(torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2])).backward()
        optimizer.step()
        moves.append({name: (weight.detach() - before[name]).abs().max() for name, weight in loss.named_parameters()})
    torch.testing.assert_close(*starts)
    assert float(moves[1]["class_weights"]) == pytest.approx(0.1, rel=1e-3)
    assert 0.01 * float(moves[1]["output.weight"]) == pytest.approx(0.001, rel=1e-3)
    assert float(moves[0]["output.weight"]) == pytest.approx(0.1, rel=1e-3)


def test_it_begins_with_the_spread_of_the_authors_code():
    torch.manual_seed(0)
    loss = HISTLoss(50, 400)
    for weights in (loss.class_weights, loss.log_variances):
        assert float(weights.detach().std()) == pytest.approx(math.sqrt(2 / 50), rel=0.02)


def test_a_class_of_no_sample_makes_no_edge_however_far_it_is():
    """e^(-alpha M) of such a class is 0 in float32; its edge weighs nothing, and is no 0/0."""
    x, y = torch.randn(8, 4, requires_grad=True), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    loss = HISTLoss(5, 4, alpha=1e6, hidden_size=8)
    value = loss(x, y)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert loss.log_variances.grad.isfinite().all()


def test_one_sample_has_a_loss():
    loss = HISTLoss(3, 4)
    x = torch.randn(1, 4, requires_grad=True)
    value = loss(x, torch.tensor([2]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("tau", 0.0), ("alpha", 0.0), ("hidden_size", 0), ("network_rate", 0.0), ("classification_weight", -1.0)],
)
def test_bad_arguments_raise_one_line(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        HISTLoss(3, 4, **{name: value})
