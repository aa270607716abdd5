"""Losses with class weights by hand: borders, what a paper says of them, where pytorch-metric-learning differs."""

import math

import class_loops
import pytest
import torch
from loss_cases import class_batch
from pytorch_metric_learning import losses as peers

from levelfield import losses
from levelfield.losses import potential_field


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
    expected = class_loops.adaface(case, 0.4, 64.0, 0.333, mean, std)
    torch.testing.assert_close(value, expected)
    again = losses.AdaFaceLoss(6, 5).double().eval()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(case.x, case.y), expected)
    broken = case.x.detach().clone()
    broken[0, 0] = torch.inf
    assert not loss(broken, case.y).isfinite()
    torch.testing.assert_close(loss.eval()(case.x, case.y), expected)


def test_an_embedding_on_its_class_weight_or_opposite_to_it_has_a_finite_gradient():
    loss = losses.ArcFaceLoss(2, 3)
    embeddings = torch.stack([loss.class_weights[0], -loss.class_weights[1]]).detach().requires_grad_()
    loss(embeddings, torch.tensor([0, 1])).backward()
    assert embeddings.grad.isfinite().all()
    assert loss.class_weights.grad.isfinite().all()


def test_the_target_logit_jumps_where_the_angle_would_pass_180_degrees():
    """From cos 180 = -1 to cos(180 - m) - m sin m = -1.117 at the default margin."""
    loss = losses.ArcFaceLoss(1, 2).double()
    angle = torch.deg2rad(torch.tensor([180 - 28.6 - 1e-6, 180 - 28.6 + 1e-6], dtype=torch.float64))
    logits = loss.logits(angle.cos()[:, None], torch.tensor([0, 0])) / 64
    torch.testing.assert_close(logits[:, 0], torch.tensor([-1.0, -1.1169], dtype=torch.float64), rtol=0, atol=1e-4)


def test_magface_s_pull_is_up_to_the_upper_norm():
    """1/a + a/u^2 has its least at a = u."""
    for norm in (2.0, 8.0):
        x = torch.tensor([[norm, 0.0]], requires_grad=True)
        loss = losses.MagFaceLoss(1, 2, 1.0, 9.0)  # one class: no other to be told from
        loss(x, torch.tensor([0])).backward()
        assert x.grad[0, 0].item() == pytest.approx(35 * (1 / 81 - 1 / norm**2), rel=1e-4)


def test_a_large_gamma_is_the_mean_of_the_centres_and_a_small_one_the_nearest():
    cosines = torch.tensor([[[0.9], [0.1], [-0.4]]], dtype=torch.float64)
    for gamma, expected in ((1e6, 0.2), (1e-3, 0.9)):
        similarity = losses.SoftTripleLoss(1, 2, 3, la=1, gamma=gamma, margin=0).logits(cosines, torch.tensor([0]))
        assert float(similarity) == pytest.approx(expected, abs=1e-5)


def test_psi_falls_from_1_to_minus_7_without_a_jump():
    loss = losses.SphereFaceLoss(1, 2).double()
    angles = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    psi = loss.logits(angles.cos()[:, None], torch.zeros(1001, dtype=torch.long))[:, 0]
    assert psi[0] == pytest.approx(1)
    assert psi[-1] == pytest.approx(-7)
    steps = psi.diff()
    assert (steps < 1e-12).all()
    assert (steps > -0.02).all()


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


def test_samples_of_two_classes_at_one_place_keep_the_field_finite_at_the_greatest_alpha():
    loss = losses.PotentialFieldLoss(2, 3, alpha=potential_field.GREATEST_ALPHA)
    x = torch.ones(4, 3, requires_grad=True)
    value = loss(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


def test_hist_s_variances_learn_within_their_bounds_alone():
    loss = losses.HISTLoss(3, 4).double()
    loss.log_variances.data[:] = torch.tensor([-0.5, 0.5, 5.5, 6.5])
    loss(torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2])).backward()
    assert (loss.log_variances.grad[:, [0, 3]] == 0).all()
    assert (loss.log_variances.grad[:, [1, 2]] != 0).all()


def test_hist_s_network_begins_alike_and_moves_by_its_own_rate():
    """A step of Adam at 0.1 moves the network's weights by 0.01 x 0.1, and those of the distributions by 0.1."""
    starts, moves = [], []
    for rate in (1.0, 0.01):
        torch.manual_seed(0)
        loss = losses.HISTLoss(3, 4, hidden_size=8, network_rate=rate).double()
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


def test_hist_begins_with_the_spread_of_the_authors_code():
    torch.manual_seed(0)
    loss = losses.HISTLoss(50, 400)
    for weights in (loss.class_weights, loss.log_variances):
        assert float(weights.detach().std()) == pytest.approx(math.sqrt(2 / 50), rel=0.02)


def test_a_class_of_no_sample_makes_no_edge_however_far_it_is():
    """e^(-alpha M) of such a class is 0 in float32; its edge weighs nothing, and is no 0/0."""
    x, y = torch.randn(8, 4, requires_grad=True), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    loss = losses.HISTLoss(5, 4, alpha=1e6, hidden_size=8)
    value = loss(x, y)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert loss.log_variances.grad.isfinite().all()
