import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, nonzero_mean
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import regularizers

from levelfield.losses import SignalToNoiseRatioContrastiveLoss


def loop(case, pos_margin=0.0, neg_margin=1.0, weight=0.0):
    def snr(i, j):
        return (case.u(i) - case.v(j)).var() / case.u(i).var()

    pulls = [(snr(i, p) - pos_margin).clamp_min(0) for i, row in enumerate(case.P) for p in row]
    pushes = [(neg_margin - snr(i, n)).clamp_min(0) for i, row in enumerate(case.N) for n in row]
    regularizer = sum(abs(sum(row)) for row in case.x) / len(case.x)
    return nonzero_mean(pulls) + nonzero_mean(pushes) + weight * regularizer


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [(0.0, 1.0, 0.0), (0.5, 2.5, 0.3)])
def test_equals_the_equation(situation, arguments):
    loss = SignalToNoiseRatioContrastiveLoss(*arguments)
    assert_equals_loop(loss, lambda case: loop(case, *arguments), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    ours = SignalToNoiseRatioContrastiveLoss(0.1, 1.5)
    assert_equals_peer(ours, peers.SignalToNoiseRatioContrastiveLoss(pos_margin=0.1, neg_margin=1.5), batch(situation))


def test_the_regulariser_is_the_peers_zero_mean_one_on_raw_embeddings():
    peer = peers.SignalToNoiseRatioContrastiveLoss(
        embedding_regularizer=regularizers.ZeroMeanRegularizer(), embedding_reg_weight=0.4
    )
    assert_equals_peer(SignalToNoiseRatioContrastiveLoss(regularizer_weight=0.4), peer, batch("raw"))


def test_the_anchor_and_the_other_are_not_exchangeable():
    case = batch("raw")
    matrix = SignalToNoiseRatioContrastiveLoss.matrix(case.x, case.x)
    assert not torch.allclose(matrix, matrix.T)


@pytest.mark.parametrize("size", [3, 6, 128, 511])
def test_equal_coordinates_have_no_signal_whatever_their_rounding(size):
    x = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    x[0] = 0.3
    labels = torch.arange(8) // 4
    torch.testing.assert_close(
        SignalToNoiseRatioContrastiveLoss()(x, labels), SignalToNoiseRatioContrastiveLoss()(x.double(), labels).float()
    )
