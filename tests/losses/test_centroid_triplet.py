import pytest
import torch
from loss_cases import assert_equals_loop, batch, nonzero_mean

from levelfield.losses import CentroidTripletLoss


def loop(case, margin=0.05, power=1, normalize=True):
    ref_y = (case.y if case.ref is None else case.ref_y).tolist()

    def centroid(members):
        mean = sum(case.v(j) for j in members) / len(members)
        return mean / mean.norm() if normalize else mean

    terms = []
    for i, label in enumerate(case.y.tolist()):
        own = [j for j in range(len(ref_y)) if ref_y[j] == label and (case.ref is not None or j != i)]
        if not own:
            continue
        near = (case.u(i) - centroid(own)).norm() ** power
        for other in set(ref_y) - {label}:
            far = (case.u(i) - centroid([j for j in range(len(ref_y)) if ref_y[j] == other])).norm() ** power
            terms.append((near - far + margin).clamp_min(0))
    return nonzero_mean(terms)


@pytest.mark.parametrize("situation", ["unit", "raw", "reference"])
@pytest.mark.parametrize(
    "arguments", [{}, {"margin": 0.5, "power": 2, "normalize_centroids": False}, {"margin": 1.0, "power": 2}]
)
def test_equals_the_equation(situation, arguments):
    named = {"normalize" if k == "normalize_centroids" else k: v for k, v in arguments.items()}
    assert_equals_loop(CentroidTripletLoss(**arguments), lambda case: loop(case, **named), batch(situation))


def test_a_class_of_one_sample_is_no_anchor_but_repels():
    case = batch("raw", labels=[0, 0, 1])
    expected = sum(case.d(i, 1 - i) - case.d(i, 2) + 5 for i in (0, 1)) / 2
    torch.testing.assert_close(CentroidTripletLoss(margin=5)(case.x, case.y), expected)


def test_a_miner_is_refused():
    case = batch("triplets")
    with pytest.raises(ValueError, match="takes no miner"):
        CentroidTripletLoss()(*case.arguments())
    with pytest.raises(ValueError, match="power=3"):
        CentroidTripletLoss(power=3)
    assert torch.isfinite(CentroidTripletLoss()(case.x, case.y))
