"""Losses of pairs by hand: their borders, what a paper says of them, and where pytorch-metric-learning differs."""

import math
from itertools import combinations

import pair_loops
import pytest
import torch
from loss_cases import LABELS, assert_equals_loop, batch, value_and_gradients
from pytorch_metric_learning import losses as peers
from sklearn.metrics import normalized_mutual_info_score
from torch.nn.functional import normalize

from levelfield import losses
from levelfield.losses import contextual
from levelfield.losses.pairs import distances


@pytest.mark.parametrize("situation", ["unit", "pairs", "triplets"])
def test_angular_equals_the_peer_on_unit_vectors(situation):
    """Its gradient has a part along the embeddings, for it does not normalise the negatives: compare the rest."""
    case = batch(situation)
    case.x = normalize(case.x.detach()).requires_grad_()
    value, (gradient,) = value_and_gradients(losses.AngularLoss()(*case.arguments()), case.x)
    peer_value, (peer_gradient,) = value_and_gradients(peers.AngularLoss()(*case.arguments()), case.x)
    x = case.x.detach()
    torch.testing.assert_close(value, peer_value, rtol=1e-5, atol=0)
    along = x * (x * peer_gradient).sum(1, keepdim=True)
    torch.testing.assert_close(gradient, peer_gradient - along, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equal_points_that_are_not_normalized_have_no_distance_and_no_gradient(scale):
    points = scale * torch.randn(64, 100)
    anchors, others = points.clone().requires_grad_(), points.clone().requires_grad_()
    apart = distances(anchors, others)
    assert (apart.diag() == 0).all()
    assert (apart + torch.eye(64) > 0).all()
    for gradient in torch.autograd.grad(apart.diag().sum(), (anchors, others)):
        assert not gradient.any()


def test_classes_that_are_cliques_of_their_own_lose_nothing_in_context():
    """Each sample's four neighbours are its class: all Jaccard similarities are 0 or 1."""
    points = torch.eye(5, dtype=torch.float64).repeat_interleave(4, dim=0)
    labels = torch.arange(5).repeat_interleave(4)
    matrix = points @ points.T
    alike = contextual.contextual_similarities(matrix, *losses.ContextualLoss().neighbours(matrix))
    torch.testing.assert_close(alike, (labels[:, None] == labels[None]).double())
    loss = losses.ContextualLoss(context_weight=1.0, similarity_weight=0.0)
    assert loss(points, labels) == pytest.approx(0)


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 2), (torch.float32, 128), (torch.float64, 128)])
def test_pairs_that_coincide_are_not_active(dtype, dim):
    """Half of the positive pairs are duplicates: the mean is over the other half."""
    directions = normalize(torch.randn(3, dim, generator=torch.Generator().manual_seed(1)), dim=1)
    points = directions[[0, 0, 1, 2]].to(dtype)
    apart = (points[2] - points[3]).double().norm()
    loss = losses.ContrastiveLoss(neg_margin=0.0)(points, torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(loss.double(), apart, rtol=1e-5, atol=0)


def test_margin_s_number_of_classes_may_be_told_later():
    loss = losses.MarginLoss(beta=0.7, learn_beta=True, beta_per_class=True)
    loss.set_num_classes(max(LABELS) + 1)
    assert [name for name, _ in loss.named_parameters()] == ["beta"]
    torch.testing.assert_close(loss.beta.detach(), torch.full((12,), 0.7))
    with torch.no_grad():
        loss.beta[3] = 0.5
    loss.set_num_classes(12)
    assert loss.beta.tolist()[3] == 0.5, "learnt ones stay"
    plain = losses.MarginLoss(learn_beta=True)
    plain.set_num_classes(12)
    assert plain.beta.shape == (1,)
    assert not losses.MarginLoss().state_dict()


def test_without_an_active_term_the_regulariser_of_each_class_is_nothing():
    """Its divisor counts active terms; the reference library gives 0 as well."""
    points, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    arguments = {"margin": 0.1, "nu": 10.0, "beta": 0.8, "learn_beta": True, "num_classes": 2}
    assert losses.MarginLoss(**arguments)(points, labels) == 0
    assert peers.MarginLoss(**arguments)(points, labels) == 0


def test_the_floor_replays_the_saturation():
    """-log(p + 1e-20) cannot pass 46.05, and a pair that hopeless has next to no gradient."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    value, (gradient,) = value_and_gradients(losses.NTXentLoss(0.001, probability_floor=1e-20)(x, y), x)
    assert float(value) == pytest.approx(46.05, abs=0.01)
    assert gradient.abs().max() < 1e-6
    case = batch("raw")
    floored = losses.NTXentLoss(0.5, probability_floor=1e-20)(case.x, case.y)
    torch.testing.assert_close(floored, pair_loops.ntxent(case, 0.5), rtol=1e-12, atol=0)


@pytest.mark.parametrize("situation", ["unit", "raw"])
def test_the_peers_ranked_list_is_the_equation_with_1e_5_a_column_below_the_line(situation):
    case = batch(situation)
    peer = peers.RankedListLoss(margin=0.4, Tn=4)(case.x, case.y)
    torch.testing.assert_close(peer, pair_loops.ranked_list(case, 0.4, 4.0, epsilon=1e-5), rtol=1e-10, atol=0)
    torch.testing.assert_close(losses.RankedListLoss(0.4, 4.0)(case.x, case.y), peer, rtol=1e-2, atol=0)


def test_sharp_weights_do_not_overflow():
    case = batch("raw")
    x = case.x.detach().float().requires_grad_()
    loss = losses.RankedListLoss(margin=0.4, Tn=1000.0)(x, case.y)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_a_miner_may_repeat_a_pair_many_times():
    """Weights of e^(Tn v) are compared among pairs, however often each counts."""
    case = batch("raw", labels=[0] * 4 + [1] * 4, seed=4)
    a, p, n = torch.tensor(case.triplets).T
    often = 1 + 15 * (torch.arange(len(a)) % 7 == 0)
    case.chosen = tuple(indices.repeat_interleave(often) for indices in (a, p, n))
    case.__post_init__()
    arguments = {"margin": 0.4, "Tn": 40.0, "Tp": 30.0}
    assert_equals_loop(losses.RankedListLoss(**arguments), lambda case: pair_loops.ranked_list(case, **arguments), case)


def test_sigmoid_pair_begins_at_the_papers_scale_and_bias():
    loss = losses.SigmoidPairLoss()
    assert loss.log_scale.item() == pytest.approx(math.log(10))
    assert loss.bias.item() == -10
    half = losses.SigmoidPairLoss(1.0, 0.0)(torch.eye(4), torch.arange(4))  # 12 pairs at z (t s + b) = 0, four anchors
    assert half.item() == pytest.approx(3 * math.log(2))


@pytest.mark.parametrize("size", [3, 128, 511])
def test_equal_coordinates_have_no_signal_whatever_their_rounding(size):
    x = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    x[0] = 0.3
    loss, labels = losses.SignalToNoiseRatioContrastiveLoss(), torch.arange(8) // 4
    torch.testing.assert_close(loss(x, labels), loss(x.double(), labels).float())


def test_coinciding_embeddings_have_a_finite_gradient_where_the_peers_is_nan():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    assert value_and_gradients(losses.TupletMarginLoss()(x, y), x)[1][0].isfinite().all()
    assert value_and_gradients(peers.TupletMarginLoss()(x, y), x)[1][0].isnan().any()


def clustering_score(case, medoids, gamma):
    """F(S) + gamma (1 - NMI)."""

    def distance(i, j):
        return case.d(i, j) if i != j else pair_loops.ZERO

    N = len(case.y)
    which = [min(medoids, key=lambda j: float(distance(i, j).detach())) for i in range(N)]
    nmi = normalized_mutual_info_score(case.y.tolist(), which, average_method="geometric")
    return gamma * (1 - nmi) - sum(distance(i, which[i]) for i in range(N))


def of_true_classes(case):
    total = 0.0
    for c in set(case.y.tolist()):
        members = [i for i, y in enumerate(case.y.tolist()) if y == c]
        total = total + max(-sum(case.d(i, j) for i in members if i != j) for j in members)
    return total


@pytest.mark.parametrize(
    ("labels", "seed", "gamma"),
    [
        ([0, 0, 1, 1, 2, 2], 0, 0.0),
        ([5, 5, 5, 1, 1, 1, 9], 1, 1.0),
        ([0, 0, 0, 0, 3, 3, 3, 3], 2, 5.0),
        ([0, 0, 1, 1, 2, 2], 0, 5.0),
    ],
)
def test_the_search_of_clusters_is_no_better_than_the_best_and_the_loss_is_its_excess(labels, seed, gamma):
    case = batch("raw", labels, dim=3, seed=seed)
    sets = combinations(range(len(labels)), len(set(labels)))
    best = max(float(clustering_score(case, medoids, gamma).detach()) for medoids in sets)
    loss, unit = losses.StructuredClusteringLoss(gamma), normalize(case.x.detach())
    medoids = loss.search(torch.cdist(unit, unit), case.y.unique(return_inverse=True)[1]).tolist()
    assert len(set(medoids)) == len(set(labels))
    found = clustering_score(case, medoids, gamma)
    assert best - 0.35 * abs(best) <= float(found.detach()) <= best + 1e-9
    expected, value = (found - of_true_classes(case)).clamp_min(0), loss(case.x, case.y)
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)
    (ours,), (theirs,) = (torch.autograd.grad(each, case.x) for each in (value, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


def test_gamma_decays_every_so_many_training_steps_and_a_checkpoint_goes_on():
    """0.94 every 3 steps: after 7 steps gamma is 2 x 0.94^2; the loss is that of a constant gamma of this size."""
    case = batch("raw", [0, 0, 1, 1, 2, 2], dim=3)
    decaying = losses.StructuredClusteringLoss(2.0, gamma_decay=0.94, decay_steps=3)
    plain = [losses.StructuredClusteringLoss(2.0 * 0.94 ** (step // 3))(case.x, case.y) for step in range(8)]
    assert len({float(loss.detach()) for loss in plain}) == 3
    assert [decaying(case.x, case.y) for _ in range(7)] == plain[:7]
    resumed = losses.StructuredClusteringLoss(2.0, gamma_decay=0.94, decay_steps=3)
    resumed.load_state_dict(decaying.state_dict())
    assert resumed(case.x, case.y) == plain[7]
    resumed.eval()
    assert resumed(case.x, case.y) == resumed(case.x, case.y)
    assert not losses.StructuredClusteringLoss().state_dict()
