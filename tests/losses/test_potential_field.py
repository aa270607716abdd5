import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, class_batch, sample_weights

from levelfield.losses import PotentialFieldLoss, potential_field


def loop(case, weights, M, delta, alpha):
    """Equations 1 to 6: every point in the field of each other one; charges by how often a miner names a sample."""
    N = len(case.y)
    points = [case.u(i) for i in range(N)] + [w / w.norm() for w in weights]
    classes = case.y.tolist() + [k // M for k in range(len(weights))]
    charges = sample_weights(case) + [1.0] * len(weights)

    def psi(a, b):
        distance = (points[a] - points[b]).norm() if (points[a] != points[b]).any() else 0.0
        if classes[a] == classes[b]:
            return -(delta**-alpha) if distance < delta else -(distance**-alpha)
        return max(distance, 0.002) ** -alpha if distance < delta else delta**-alpha

    n = len(points)
    return sum(charges[a] * charges[b] * psi(a, b) for a in range(n) for b in range(n) if a != b)


ARGUMENTS = [(2, 0.2, 4.0), (1, 0.9, 1.0), (3, 1.3, 2.5)]


@pytest.mark.parametrize("held", [potential_field.CACHED_VALUES, 100])  # whole, or some rows at a time
@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_equals_the_equation(situation, arguments, held, monkeypatch):
    monkeypatch.setattr(potential_field, "CACHED_VALUES", held)
    loss = PotentialFieldLoss(6, 5, *arguments).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, *arguments), class_batch(situation), weights)


def test_it_attracts_beyond_delta_and_repels_within_it_alone():
    """On a circle: two samples of class 0, 0.1 apart, then one of class 1, 0.15 from the second, and far proxies."""
    loss = PotentialFieldLoss(2, 2, centers_per_class=1, delta=0.2, alpha=3.0)
    loss.class_weights.data = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    angles = torch.tensor([0.0, 0.1, 0.25], requires_grad=True)
    loss(torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 0, 1])).backward()
    # The first is within delta of its own class's other sample and beyond it of class 1: only its proxy draws it.
    assert -50 < angles.grad[0] < 0
    # The second and the third are driven apart, by far more.
    assert angles.grad[1] > 1e4
    assert angles.grad[2] < -1e4


def test_a_sample_that_no_miner_names_neither_feels_the_field_nor_makes_any():
    loss = PotentialFieldLoss(3, 4).double()
    x, y = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 0, 1, 1, 2])
    first, second, fourth = (torch.tensor([i]) for i in (0, 1, 3))
    chosen = loss(x, y, (first, second, fourth))
    torch.testing.assert_close(chosen, loss(x[[0, 1, 3]], y[[0, 1, 3]]))
    chosen.backward()
    assert (x.grad[[2, 4]] == 0).all()
    assert (x.grad[[0, 1, 3]] != 0).any(1).all()


def test_samples_of_two_classes_at_one_place_keep_it_finite_at_the_greatest_alpha():
    loss = PotentialFieldLoss(2, 3, alpha=potential_field.GREATEST_ALPHA)
    x = torch.ones(4, 3, requires_grad=True)
    value = loss(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("name", "value"), [("delta", 0.0), ("alpha", 0.0), ("alpha", 10.5)])
def test_bad_arguments_raise_one_line(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        PotentialFieldLoss(3, 4, **{name: value})
