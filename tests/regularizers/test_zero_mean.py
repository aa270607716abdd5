import pytest
import torch
from pytorch_metric_learning.regularizers import ZeroMeanRegularizer
from regularizer_cases import points, same_as_loop

from levelfield.losses import SignalToNoiseRatioContrastiveLoss
from levelfield.regularizers import ZeroMean


def test_equals_the_equation_and_the_peer():
    x = points(7, 5).requires_grad_()
    same_as_loop(ZeroMean()(x), sum(abs(sum(row)) for row in x) / len(x), x)
    same_as_loop(ZeroMean()(x), ZeroMeanRegularizer()(x), x)


def test_is_what_the_signal_to_noise_ratio_loss_has_built_in():
    x, y = points(8, 5), torch.arange(8) // 2
    with_it = SignalToNoiseRatioContrastiveLoss(regularizer_weight=0.3)(x, y)
    assert float(with_it) == pytest.approx(float(SignalToNoiseRatioContrastiveLoss()(x, y) + 0.3 * ZeroMean()(x)))
