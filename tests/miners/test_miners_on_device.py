"""Every miner in float32 on a device against itself in float64 on the CPU."""

import pytest
import torch

from levelfield import miners
from levelfield.miners import DistanceWeightedMiner, HDCMiner, TripletMarginMiner
from levelfield.miners.distance_weighted import draw

DRAWN = ("DistanceWeightedMiner", "UniformHistogramMiner")
MINERS = [getattr(miners, name)() for name in miners.__all__ if name not in ("Miner", *DRAWN)]
MINERS += [TripletMarginMiner(type_of_triplets=kind) for kind in ("hard", "semihard", "easy")]


def batch(with_reference: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(24, 6, dtype=torch.float64), torch.arange(24) // 4
    return [x, y, torch.randn(30, 6, dtype=torch.float64), y[torch.randint(24, (30,))]] if with_reference else [x, y]


def there(given: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    return [each.to(device, torch.float32) if each.is_floating_point() else each.to(device) for each in given]


def rows(*indices: torch.Tensor) -> list[tuple[int, ...]]:
    return sorted(zip(*(each.tolist() for each in indices), strict=True))


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("with_reference", [False, True])
def test_a_miner_chooses_what_it_chooses_in_float64_on_the_cpu(miner, with_reference, device):
    given = batch(with_reference)
    expected, found = miner(*given), miner(*there(given, device))
    assert all(indices.device.type == device and indices.dtype == torch.long for indices in found)
    assert len(expected[0]) > 0
    halves = [slice(0, 2), slice(2, 4)] if len(expected) == 4 else [slice(0, 3)]
    for half in halves:
        ours, right = rows(*found[half]), rows(*expected[half])
        if isinstance(miner, HDCMiner):  # which keeps either of (i, j) and (j, i)
            ours, right = ([tuple(sorted(pair)) for pair in pairs] for pairs in (ours, right))
        assert set(ours) == set(right)
        assert len(ours) == len(right)


@pytest.mark.parametrize("with_reference", [False, True])
def test_distance_weighted_draws_a_near_negative_for_each_positive_pair(with_reference, device):
    given = batch(with_reference)
    x, y, *reference = given
    others, labels = reference or (x, y)
    torch.manual_seed(1)
    a, p, n = DistanceWeightedMiner()(*there(given, device))
    torch.manual_seed(1)
    again = DistanceWeightedMiner()(*there(given, device))
    assert rows(a, p, n) == rows(*again)
    torch.manual_seed(1)
    assert rows(a, p) == rows(*DistanceWeightedMiner()(*given)[:2])
    distances = torch.cdist(x / x.norm(dim=1, keepdim=True), others / others.norm(dim=1, keepdim=True))
    a, n = a.cpu(), n.cpu()
    assert (y[a] != labels[n]).all()
    assert (distances[a, n] < 1.4).all()


def test_a_draw_by_arrival_follows_the_weights(device):
    """Chi-square against the weights, of which one is 0."""
    weights = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3], dtype=torch.float64)
    drawn = draw(weights.log().to(device).repeat(20_000, 1)).cpu()
    counts = torch.bincount(drawn, minlength=5).double()
    assert counts[1] == 0
    kept = weights > 0
    value = ((counts - 20_000 * weights)[kept] ** 2 / (20_000 * weights)[kept]).sum()
    assert value < 3 + 3 * 6**0.5
