"""What the losses with class weights share: the sample of classes, label checks, weights."""

import pytest
import torch
from test_every_loss import CLASSES
from torch.nn.functional import normalize

from levelfield import losses
from levelfield.losses import NormalizedSoftmaxLoss
from levelfield.training.settings import class_parser


def taking(argument):
    """Those that the command line offers it for."""
    parsers = {name: class_parser(getattr(losses, name), "loss") for name in CLASSES}
    return [name for name in CLASSES if f"loss.{argument}" in parsers[name].get_defaults(skip_validation=True)]


@pytest.mark.parametrize(
    ("classes", "fraction", "labels", "kept"),
    [
        (100, 0.29, [7, 93], 29),  # 0.29 of 100 is 28.999999999999996 in floating point
        (20, 0.1, [0, 3, 5, 7, 9, 9], 5),  # a batch of more classes keeps them all
    ],
)
def test_how_many_classes_a_step_keeps(classes, fraction, labels, kept):
    loss = NormalizedSoftmaxLoss(classes, 3, class_fraction=fraction)
    assert len(loss._sample_classes(torch.tensor(labels))[0]) == kept


@pytest.mark.parametrize("name", taking("weight_init"))
def test_class_means_are_of_unit_embeddings(name):
    loss = getattr(losses, name)(4, 6, weight_init="class_means")
    embeddings, labels = torch.randn(20, 6), torch.arange(20) % 4
    loss.start_at_class_means(embeddings, labels)
    means = normalize(torch.stack([normalize(embeddings)[labels == c].mean(0) for c in range(4)]))
    away = (loss.class_weights.detach().unflatten(0, (4, -1)) - means[:, None]).norm(dim=2)
    assert away.max().item() == pytest.approx(0.1 if loss.centers_per_class > 1 else 0.0, abs=1e-6)
    with pytest.raises(ValueError, match="class_means"):
        loss.start_at_class_means(embeddings[1:3], labels[1:3])


def test_the_others_are_drawn_evenly():
    loss = NormalizedSoftmaxLoss(20, 3, class_fraction=0.5)
    y = torch.tensor([4, 5])
    torch.manual_seed(0)
    counts = torch.zeros(20)
    for _ in range(300):
        counts[loss._sample_classes(y)[0]] += 1
    assert counts[4] == counts[5] == 300
    others = torch.cat([counts[:4], counts[6:]])
    chi_square = ((others - 300 * 8 / 18) ** 2 / (300 * 8 / 18 * (10 / 18))).sum() * (17 / 18)
    assert chi_square < 33.4  # 99% of 17 degrees of freedom


@pytest.mark.parametrize("name", taking("class_fraction"))
def test_a_step_is_the_loss_of_a_smaller_problem(name):
    """With a fraction, the loss is that of a loss which only ever knew the kept classes."""
    cls = getattr(losses, name)
    loss = cls(20, 6, class_fraction=0.4).double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.tensor([2, 2, 9, 11, 19, 0, 0, 3])
    torch.manual_seed(0)
    classes, labels = loss._sample_classes(y)
    small = cls(8, 6).double()
    per_class = loss.class_weights.detach().unflatten(0, (20, -1))
    small.class_weights.data = per_class[classes].flatten(0, 1)
    torch.manual_seed(0)
    torch.testing.assert_close(loss(x, y), small(x, labels))


@pytest.mark.parametrize("name", taking("weight_init"))
def test_class_weights_begin_normal_or_uniform(name):
    """The variances are 1 and (2 / sqrt(D))^2 / 12; that of 4,000 numbers is within 10% of them."""
    cls = getattr(losses, name)
    for init, variance in (("normal", 1.0), ("uniform", 1 / 30)):
        torch.manual_seed(0)
        numbers = cls(400, 10, weight_init=init).class_weights.detach()
        assert numbers.var().item() == pytest.approx(variance, rel=0.1)
        if init == "uniform":
            assert 0.95 / 10**0.5 < numbers.abs().max() <= 1 / 10**0.5
