"""What the losses with class weights share: the sample of classes, label checks, weights."""

import pytest
import torch
from test_every_loss import CLASSES

from levelfield import losses
from levelfield.losses import NormalizedSoftmaxLoss
from levelfield.losses.classification import checked_classes
from levelfield.training.settings import class_parser


def taking(argument):
    """Those that the command line offers it for."""
    parsers = {name: class_parser(getattr(losses, name), "loss") for name in CLASSES}
    return [name for name in CLASSES if f"loss.{argument}" in parsers[name].get_defaults(skip_validation=True)]


def test_a_step_keeps_the_batchs_classes_and_a_seeded_sample_of_the_others():
    loss, y, samples = NormalizedSoftmaxLoss(100, 6, class_fraction=0.1), torch.tensor([7, 93, 7, 20]), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        kept, among = loss._sample_classes(y)
        assert len(kept) == len(kept.unique()) == 10
        assert torch.equal(kept[among], y)
        samples.append(kept.tolist())
    assert samples[0] == samples[1] != samples[2]


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


def test_class_means_are_of_unit_embeddings():
    """Class 0 has (1, 0) and (0, 1) as directions, whatever the lengths."""
    loss = NormalizedSoftmaxLoss(2, 2, weight_init="class_means")
    loss.start_at_class_means(torch.tensor([[10.0, 0.0], [0.0, 1.0], [30.0, 40.0]]), torch.tensor([0, 0, 1]))
    torch.testing.assert_close(loss.class_weights.detach(), torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


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


def test_a_default_draws_what_it_drew():
    """Without `weight_init` the weights are torch's N(0, 1) of the same generator, as checkpoints' seeds have it."""
    torch.manual_seed(3)
    expected = torch.randn(7, 5)
    torch.manual_seed(3)
    assert torch.equal(NormalizedSoftmaxLoss(7, 5).class_weights.detach(), expected)


def test_all_but_one_take_a_fraction_and_a_beginning():
    """The network of HIST has a fixed number of outputs, and its authors say how the weights begin."""
    assert set(CLASSES) - set(taking("class_fraction")) == set(CLASSES) - set(taking("weight_init")) == {"HISTLoss"}


def test_small_integers_name_classes_beyond_their_range_on_a_gpu(monkeypatch):
    monkeypatch.setattr("levelfield.losses.classification.can_look", lambda labels: False)
    labels, unknown = checked_classes(torch.tensor([3, 255], dtype=torch.uint8), 300)
    assert labels.tolist() == [3, 255]
    assert not unknown
