"""Losses by hand: their borders, and what a paper says of them."""

from itertools import combinations

import equations
import pytest
import torch
from loss_cases import LABELS, Batch, assert_same, batch, class_batch, value_and_gradients
from pytorch_metric_learning import losses as peers
from sklearn.metrics import normalized_mutual_info_score
from torch.nn.functional import normalize

from levelfield import losses
from levelfield.losses import potential_field, triplets

CLIQUES = torch.arange(5).repeat_interleave(4).tolist()
TWICE = torch.eye(2)[[0, 0, 1, 1]]
MIXED = losses.RecallAtKLoss(similarity_mixup=True)
NO_TERM = {"margin": 0.1, "nu": 10.0, "beta": 0.8, "learn_beta": True, "num_classes": 2}
SEMIHARD = losses.TripletMarginLoss(1.0, triplets_per_anchor="semihard")
ON_A_LINE = losses.TripletMarginLoss(3.0, triplets_per_anchor="semihard", normalize=False)
ARCFACE = losses.ArcFaceLoss(2, 3)
ON_AND_OPPOSITE = torch.stack([ARCFACE.class_weights[0], -ARCFACE.class_weights[1]]).detach()


# fmt: off
# Loss, embeddings, labels, the value (None: finite), references.
BY_HAND = [
    (MIXED, torch.eye(3)[:1], [0], 0),  # there is nothing to mix
    (MIXED, torch.eye(3), [0, 1, 2], 0),
    (MIXED, torch.eye(3)[:2], [4, 4], None),
    # Each sample's four neighbours are its class: all Jaccard similarities are 0 or 1.
    (losses.ContextualLoss(context_weight=1.0, similarity_weight=0.0), torch.eye(5)[CLIQUES], CLIQUES, 0),
    # Semihard: the negative at -1 is as far from 0 as the positive at 1, so that at 3 is taken.
    (ON_A_LINE, torch.tensor([[0.0], [1], [-1], [3]]), [0, 0, 1, 2], ((1 - 3 + 3) + (1 - 2 + 3)) / 2),
    (SEMIHARD, torch.eye(4)[:3], [0, 0, 0], 0),  # anchors without negatives are left out
    (SEMIHARD, torch.eye(4)[:3], [0, 0, 1], 0, (torch.eye(4)[1:], torch.tensor([0, 0, 0]))),
    # The regulariser of each class is divided by the number of active terms, of which there are none.
    (losses.MarginLoss(**NO_TERM), TWICE, [0, 0, 1, 1], 0),
    (losses.RankedListLoss(margin=0.4, Tn=1000.0), batch("raw").x.detach().float(), LABELS, None),
    (losses.TupletMarginLoss(), TWICE[:3], [0, 0, 1], None),  # the peer's gradient is NaN
    (ARCFACE, ON_AND_OPPOSITE, [0, 1], None),
    (losses.PotentialFieldLoss(2, 3, alpha=potential_field.GREATEST_ALPHA), torch.ones(4, 3), [0, 0, 1, 1], None),
    # e^(-alpha M) of a class of no sample is 0 in float32: its edge weighs nothing, and is no 0/0.
    (losses.HISTLoss(5, 5, alpha=1e6, hidden_size=8), batch("raw").x[:8].detach().float(), [0, 0, 1, 1, 1, 2, 2, 2],
     None),
]
# fmt: on


@pytest.mark.parametrize("row", BY_HAND, ids=lambda row: type(row[0]).__name__)
def test_a_loss_is_its_value_by_hand_and_its_gradient_is_finite(row):
    loss, points, labels, expected, *references = row
    x = points.clone().requires_grad_()
    value = loss(x, torch.tensor(labels), None, *(references[0] if references else ()))
    value.backward()
    assert value.isfinite()
    assert all(each.grad.isfinite().all() for each in (x, *loss.parameters()) if each.grad is not None)
    if expected is not None:
        assert value.item() == pytest.approx(expected, abs=1e-6)


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


def test_the_floor_replays_the_saturation():
    """-log(p + 1e-20) cannot pass 46.05, and a pair that hopeless has next to no gradient."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    value, (gradient,) = value_and_gradients(losses.NTXentLoss(0.001, probability_floor=1e-20)(x, y), x)
    assert float(value) == pytest.approx(46.05, abs=0.01)
    assert gradient.abs().max() < 1e-6
    case = batch("raw")
    floored = losses.NTXentLoss(0.5, probability_floor=1e-20)(case.x, case.y)
    torch.testing.assert_close(floored, equations.ntxent(case, 0.5), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [3, 128, 511])
def test_equal_coordinates_have_no_signal_whatever_their_rounding(size):
    x = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    x[0] = 0.3
    loss, labels = losses.SignalToNoiseRatioContrastiveLoss(), torch.arange(8) // 4
    torch.testing.assert_close(loss(x, labels), loss(x.double(), labels).float())


def clustering_score(case, medoids, gamma):
    """F(S) + gamma (1 - NMI)."""

    def distance(i, j):
        return case.d(i, j) if i != j else equations.ZERO

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


def test_mixed_samples_stand_in_the_batch_with_mixtures_of_similarities():
    """Whose vectors are a u_i + (1 - a) u_j for each two of a class, a the draws in their order."""
    case = batch("raw", [7, 7, 7, 2, 2, 5], seed=2)
    loss = losses.RecallAtKLoss((1, 2), 1.0, 0.1, similarity_mixup=True)
    torch.manual_seed(4)
    value = loss(case.x, case.y)
    torch.manual_seed(4)
    shares = torch.rand(4, 1, dtype=torch.float64).flatten()
    rows, labels = [case.u(i) for i in range(6)], case.y.tolist()
    for a, (i, j) in zip(shares, [(0, 1), (0, 2), (1, 2), (3, 4)], strict=True):
        rows.append(a * case.u(i) + (1 - a) * case.u(j))
        labels.append(labels[i])
    expected = equations.recall_at_k(Batch(torch.stack(rows), torch.tensor(labels)), (1, 2), 1.0, 0.1, unit=False)
    assert_same(value, expected, case.x, value=1e-10, gradient=1e-9)
    for rest in ((tuple(torch.tensor([[0], [1], [3]])),), (None, case.x, case.y)):
        with pytest.raises(ValueError, match="takes no miner and no ref_emb"):
            loss(case.x, case.y, *rest)


def test_duplicates_equal_roadmap_s_equation():
    """Exact cosines: points on a grid of quarters of a turn and of 60 degrees, several of a class alike."""
    half, high = 0.5, 0.75**0.5
    points = torch.tensor([[1, 0], [1, 0], [half, high], [1, 0], [half, high], [-1, 0.0]], dtype=torch.float64)
    case = batch("raw", [0, 0, 0, 1, 1, 1], dim=2)
    case.x = points
    cosines = points @ points.T
    case.s = lambda i, j: cosines[i, j]
    expected = float(equations.roadmap(case, 0.02, 70.0, 0.08, 0.5))
    assert float(losses.ROADMAPLoss(0.02, 70.0, 0.08)(case.x, case.y)) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "instead"), [("COMPARED", 2**16), ("COMPARED", 0), ("can_look", lambda _: False)])
def test_terms_at_the_hinge_do_not_count(name, instead, monkeypatch):
    """Axis vectors are all sqrt(2) apart: every triplet ties, and a margin of 0 leaves none active."""
    monkeypatch.setattr(triplets, name, instead)
    points, labels = torch.eye(6), torch.tensor([0, 0, 0, 1, 1, 1])
    assert losses.TripletMarginLoss(margin=0.0)(points, labels) == 0
    torch.testing.assert_close(losses.TripletMarginLoss(margin=0.25)(points, labels), torch.tensor(0.25))


def test_adaface_s_mean_and_deviation_of_the_norms_run_over_the_batches_in_training_alone():
    loss = losses.AdaFaceLoss(6, 5, momentum=0.9).double()
    mean = std = None
    for seed in range(3):
        case = class_batch("raw", seed=seed)
        norms = case.x.detach().norm(dim=1)
        now = norms.mean(), norms.std()
        mean, std = now if mean is None else (0.9 * mean + 0.1 * now[0], 0.9 * std + 0.1 * now[1])
        value = loss(case.x, case.y)
    case.loss = loss
    expected = equations.adaface(case, 0.4, 64.0, 0.333, mean, std)
    torch.testing.assert_close(value, expected)
    again = losses.AdaFaceLoss(6, 5).double().eval()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(case.x, case.y), expected)
    broken = case.x.detach().clone()
    broken[0, 0] = torch.inf
    assert not loss(broken, case.y).isfinite()
    torch.testing.assert_close(loss.eval()(case.x, case.y), expected)


def test_outliers_are_those_of_the_peer():
    loss = losses.SubCenterArcFaceLoss(3, 4, sub_centers=2).double()
    peer = peers.SubCenterArcFaceLoss(num_classes=3, embedding_size=4, sub_centers=2).double()
    peer.W.data = loss.class_weights.data.T.clone()
    x = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    outliers, centers = loss.get_outliers(x, y)
    their_outliers, their_centers = peer.get_outliers(x, y)
    assert 0 < len(outliers) < 60
    assert sorted(outliers.tolist()) == sorted(their_outliers.tolist())
    torch.testing.assert_close(centers, their_centers.T)
