"""What the losses with class weights share: the sample of classes, label checks, weights."""

import inspect

import pytest
import torch
from test_every_loss import CLASSES

from levelfield import losses
from levelfield.losses import NormalizedSoftmaxLoss
from levelfield.losses.classification import checked_classes
from levelfield.numerics import unit


def taking(argument):
    return [name for name in CLASSES if argument in inspect.signature(getattr(losses, name)).parameters]


@pytest.mark.parametrize("name", taking("class_fraction"))
def test_a_fraction_of_1_is_the_plain_loss(name):
    cls = getattr(losses, name)
    torch.manual_seed(0)
    plain, whole = cls(20, 6), cls(20, 6, class_fraction=1.0)
    whole.load_state_dict(plain.state_dict())
    x, y = torch.randn(8, 6), torch.randint(20, (8,))
    assert plain(x, y) == whole(x, y)


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


def degrees_turned(weight_init, classes=100, a_class=25, steps=78, lr=0.001, D=512):
    """How far class weights turn in all of Zhai and Wu's steps, embeddings held fixed: a direction a class, with noise
    of the same length. Batches of 75 hold `a_class` of each class; the defaults are CUB-200's."""
    draw = torch.Generator().manual_seed(1)
    centres = unit(torch.randn(classes, D, generator=draw))
    loss = NormalizedSoftmaxLoss(classes, D, weight_init=weight_init)
    before = unit(loss.class_weights.detach().clone())
    optimizer = torch.optim.SGD(loss.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [16], 0.1)
    for _ in range(31):
        for _ in range(steps):
            y = torch.randperm(classes, generator=draw)[: 75 // a_class].repeat_interleave(a_class)
            x = unit(centres[y] + unit(torch.randn(75, D, generator=draw)))
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
        schedule.step()
    return (unit(loss.class_weights.detach()) * before).sum(1).clamp(-1, 1).acos().rad2deg().mean().item()


@pytest.mark.full
def test_normal_class_weights_stand_still_under_zhai_and_wus_rates():
    """For CUB-200 by hand: a class is in 3 of 100 batches of 1,248 steps before the drop, and of a tenth of the rest.
    Its third of the batch pulls by at most 1 / (3 T) = 6.7, times 0.01 for rate and momentum, over |w|^2 = 512: 0.31
    degrees. What all other samples push, 1 / (100 T) a step, is at most as much again. Uniform weights begin 1,536
    times as fast."""
    assert 0.1 < degrees_turned("normal") < 0.62
    assert 30 < degrees_turned("uniform") < 60
    assert degrees_turned("normal", classes=98, steps=107, lr=0.01) < 0.62 * 10 * 107 / 78
    assert 50 < degrees_turned("uniform", classes=98, steps=107, lr=0.01) < 70


def test_all_but_one_take_a_fraction_and_a_beginning():
    """The network of HIST has a fixed number of outputs, and its authors say how the weights begin."""
    assert set(CLASSES) - set(taking("class_fraction")) == set(CLASSES) - set(taking("weight_init")) == {"HISTLoss"}


def test_small_integers_name_classes_beyond_their_range_on_a_gpu(monkeypatch):
    monkeypatch.setattr("levelfield.losses.classification.can_look", lambda labels: False)
    labels, inside = checked_classes(torch.tensor([3, 255], dtype=torch.uint8), 300)
    assert labels.tolist() == [3, 255]
    assert inside


def test_class_means_are_directions_of_the_mean_of_unit_embeddings():
    loss = NormalizedSoftmaxLoss(2, 3, weight_init="class_means")
    loss.start_at_class_means(torch.tensor([[4.0, 0, 0], [0, 1, 0], [0, 0, 2]]), torch.tensor([0, 0, 1]))
    torch.testing.assert_close(loss.class_weights.detach(), torch.tensor([[0.5**0.5, 0.5**0.5, 0], [0, 0, 1]]))
