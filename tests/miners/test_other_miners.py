"""Every miner keeps what pytorch-metric-learning's keeps, or what its rule says by a loop; draws follow their law."""

import math

import pytest
import torch
from matmul_precision import Products, coarse_on_the_cpu, made
from pretended_gpu import any_device
from pytorch_metric_learning import miners as peers
from scipy.stats import chisquare

from levelfield import miners

device = any_device
MINERS = [getattr(miners, name)() for name in miners.__all__ if name != "Miner"]
DRAWN = (miners.DistanceWeightedMiner, miners.UniformHistogramMiner)


class Mined:
    """A batch of classes of 5, 6, 8 and 1, with references or without; distances; and P and N of each sample."""

    def __init__(self, with_reference: bool) -> None:
        torch.manual_seed(0)
        x, y = torch.randn(20, 6, dtype=torch.float64), torch.tensor([0] * 5 + [4] * 6 + [2] * 8 + [9])
        reference = [torch.randn(30, 6, dtype=torch.float64), y[torch.randint(20, (30,))]] if with_reference else []
        r, self.ry = reference or (x, y)
        self.given, self.y = [x, y, *reference], y
        self.u, self.v = x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True)
        self.d, self.s = torch.cdist(self.u, self.v), self.u @ self.v.T
        of_class = [[j for j in range(len(r)) if y[i] == self.ry[j]] for i in range(20)]
        self.P = [[j for j in row if with_reference or i != j] for i, row in enumerate(of_class)]
        self.N = [sorted({*range(len(r))} - {*row}) for row in of_class]

    @property
    def triplets(self) -> list[tuple[int, int, int]]:
        return [(i, p, n) for i in range(20) for p in self.P[i] for n in self.N[i]]

    def pairs(self, chosen: list[list[int]]) -> list[tuple[int, int]]:
        return [(i, j) for i in range(20) for j in chosen[i]]


@pytest.fixture(params=[False, True], ids=["batch", "reference"])
def mined(request) -> Mined:
    return Mined(request.param)


def rows(*indices: torch.Tensor) -> list[tuple[int, ...]]:
    return sorted(zip(*(t.tolist() for t in indices), strict=True))


def there(given: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    return [each.to(device, torch.float32) if each.is_floating_point() else each.to(device) for each in given]


def halves(chosen: tuple[torch.Tensor, ...]) -> list[list[tuple[int, ...]]]:
    """The triplets, or the positive pairs and the negative ones."""
    return [rows(*chosen)] if len(chosen) == 3 else [rows(*chosen[:2]), rows(*chosen[2:])]


EASY_OR_HARD = [("easy", "semihard"), ("hard", "semihard"), ("easy", "hard"), ("hard", "easy")]
RULES = [
    *((miners.TripletMarginMiner, (0.2, kind)) for kind in ("all", "hard", "semihard", "easy")),
    (miners.BatchHardMiner, ()),
    *((miners.BatchEasyHardMiner, words) for words in EASY_OR_HARD),
    *((miners.AngularMiner, (angle,)) for angle in (20, 35)),
    *((miners.MultiSimilarityMiner, (epsilon,)) for epsilon in (0.0, 0.1, 0.7)),
]


@pytest.mark.parametrize(("miner", "arguments"), RULES)
def test_keeps_what_the_peer_keeps(miner, arguments, mined):
    found = halves(miner(*arguments)(*mined.given))
    given = [mined.u, mined.y, *([mined.v, mined.ry] if len(mined.given) > 2 else [])]  # whose angles are of any length
    assert found == halves(getattr(peers, miner.__name__)(*arguments)(*given))
    assert 0 < len(found[0]) < (len(mined.triplets) if len(found) == 1 else len(mined.pairs(mined.P)) + 1)


def test_uniform_histogram_draws_as_many_of_each_bin(mined):
    miner = miners.UniformHistogramMiner(num_bins=7, pos_per_bin=200, neg_per_bin=600)
    torch.manual_seed(0)
    chosen = miner(*mined.given)
    for drawn, listed, count in zip(halves(chosen), (mined.P, mined.N), (200, 600), strict=True):
        pairs = mined.pairs(listed)
        least, largest = (find(float(mined.d[pair]) for pair in pairs) for find in (min, max))
        bin_of = {pair: min(6, int((float(mined.d[pair]) - least) / (largest - least) * 7)) for pair in pairs}
        found = [bin_of[pair] for pair in drawn]
        assert {each: found.count(each) for each in set(bin_of.values())} == dict.fromkeys(bin_of.values(), count)
        assert len(set(drawn)) > 0.9 * len(pairs), "every pair of a bin may be drawn"
    torch.manual_seed(0)
    assert all(torch.equal(ours, first) for ours, first in zip(miner(*mined.given), chosen, strict=True))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_hdc_keeps_the_hardest_pairs_of_the_batch(fraction, mined):
    """Compared by similarity, for of (i, j) and (j, i) either may be the one that is kept."""
    chosen = halves(miners.HDCMiner(fraction)(*mined.given))
    for found, listed, hardest in zip(chosen, (mined.P, mined.N), (1, -1), strict=True):
        pairs = mined.pairs(listed)
        expected, kept = (sorted(hardest * round(float(mined.s[pair]), 12) for pair in some) for some in (pairs, found))
        assert kept == expected[: math.ceil(fraction * len(pairs))]
        assert {*found} <= {*pairs}
        assert len({*found}) == len(found)


def test_distance_weighted_draws_one_near_negative_for_each_positive_pair(mined, device):
    given = there(mined.given, device)
    torch.manual_seed(1)
    a, p, n = miners.DistanceWeightedMiner()(*given)
    near = [[j for j in mined.N[i] if mined.d[i, j] < 1.4] for i in range(20)]
    assert rows(a, p) == [(i, p) for i, p in mined.pairs(mined.P) if near[i]]
    assert {*rows(a, n)} <= {*mined.pairs(near)}
    torch.manual_seed(1)
    assert rows(a, p, n) == rows(*miners.DistanceWeightedMiner()(*given))


def test_distance_weighted_draws_by_the_inverse_of_the_density_of_distances():
    """The drawn negatives of one anchor against P(n) ~ 1/q(d)."""
    D, draws = 6, 20000
    torch.manual_seed(1)
    points = torch.randn(30, D, dtype=torch.float64)
    points[1:6] = points[0] + 0.1 * points[1:6]  # some nearer than the cutoff
    points = points / points.norm(dim=1, keepdim=True)
    d = (points[1:] - points[0]).norm(dim=1)
    clamped = d.clamp_min(0.5)
    q = clamped ** (D - 2) * (1 - clamped**2 / 4) ** ((D - 3) / 2)
    law = torch.where(d < 1.4, 1 / q, 0.0)
    labels = torch.cat([torch.zeros(1), torch.ones(29)]).long()  # the reference at 0 is every anchor's one positive
    torch.manual_seed(2)
    _, _, n = miners.DistanceWeightedMiner()(points[:1].repeat(draws, 1), torch.zeros(draws).long(), points, labels)
    counts = torch.bincount(n - 1, minlength=29).double()
    assert not counts[law == 0].any()
    assert chisquare(counts[law > 0], draws * law[law > 0] / law.sum()).pvalue > 0.02


def test_distance_weighted_works_in_a_plane():
    plane = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [-1.0, 0.0]])
    a, _, _ = miners.DistanceWeightedMiner()(plane, torch.tensor([0, 0, 1, 1]))
    assert a.tolist() == [0, 1, 2]  # the last has no near negative


every_miner = pytest.mark.parametrize("miner", MINERS, ids=lambda m: type(m).__name__)


@every_miner
def test_chooses_in_float32_on_a_device_what_it_chooses_in_float64_on_the_cpu(miner, mined, device):
    found = miner(*there(mined.given, device))
    assert all(indices.device.type == device and indices.dtype == torch.long for indices in found)
    assert all(len(indices) > 0 for indices in found)
    for ours, right in [] if isinstance(miner, DRAWN) else zip(halves(found), halves(miner(*mined.given)), strict=True):
        if isinstance(miner, miners.HDCMiner):  # which keeps either of (i, j) and (j, i)
            ours, right = (sorted(tuple(sorted(pair)) for pair in pairs) for pairs in (ours, right))
        assert ours == right


@every_miner
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 5, 5], [7], [2**40, 2**40 + 1, 2**40, -3]])
def test_awkward_batches_give_indices_that_fit(miner, labels):
    for x in (torch.randn(len(labels), 4), torch.ones(len(labels), 4), torch.zeros(len(labels), 4)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            chosen = miner(x.to(dtype).requires_grad_(), torch.tensor(labels))
            assert all(t.dtype == torch.long and not t.requires_grad for t in chosen)
            pairs = [(chosen[0], chosen[1], True), (chosen[-2] if len(chosen) == 4 else chosen[0], chosen[-1], False)]
            for a, other, same in pairs:
                assert all((labels[i] == labels[j]) == same for i, j in zip(a.tolist(), other.tolist(), strict=True))


@every_miner
def test_scale_autocast_and_what_is_not_finite_change_nothing_and_products_are_true_float32(miner):
    x, y = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) // 4

    def chosen(embeddings):
        torch.manual_seed(0)
        return miner(embeddings, y)

    expected = chosen(x)
    with torch.autocast("cpu", torch.bfloat16):
        cast = chosen(x)
    for found in (cast, *(chosen(x * scale) for scale in (2.0**-100, 2.0**60, 2.0**100))):
        assert all(torch.equal(ours, plain) for ours, plain in zip(found, expected, strict=True))
    for broken in (x.index_fill(0, torch.tensor([3, 9]), torch.nan), torch.full((16, 8), torch.inf)):
        for indices in chosen(broken):
            assert indices.dtype == torch.int64
            assert ((indices >= 0) & (indices < 16)).all()
    with made(coarse_on_the_cpu), Products() as products:
        chosen(x)
    assert (products.guarded, products.seen) == (1, [])


OUT_OF_RANGE = [
    ("AngularMiner", "angle", 90),
    ("BatchEasyHardMiner", "pos_strategy", "all"),
    ("BatchEasyHardMiner", "neg_strategy", "all"),
    ("DistanceWeightedMiner", "cutoff", 3),
    ("HDCMiner", "filter_percentage", 2),
    ("TripletMarginMiner", "type_of_triplets", "medium"),
    ("UniformHistogramMiner", "neg_per_bin", 0),
]


@pytest.mark.parametrize(("name", "argument", "value"), OUT_OF_RANGE)
def test_an_argument_out_of_range_is_refused(name, argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value!r}"):
        getattr(miners, name)(**{argument: value})


def test_shapes_that_do_not_fit_raise():
    x, y = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    for given, said in (((x[0], y), r"must be \(N, D\)"), ((x, y[:2]), "2 labels for 3"), ((x, y, x), "go together")):
        with pytest.raises(ValueError, match=said):
            miners.MultiSimilarityMiner()(*given)


def test_distances_of_embeddings_that_coincide_are_zero():
    """Rounding makes no negative that coincides with the anchor farther than a positive that does."""
    embeddings = torch.randn(1, 128, generator=torch.Generator().manual_seed(0)).repeat(24, 1)
    labels = torch.arange(24) // 8
    for kind, count in (("hard", 24 * 7 * 16), ("semihard", 0), ("easy", 0)):
        assert len(miners.TripletMarginMiner(margin=0.0, type_of_triplets=kind)(embeddings, labels)[0]) == count
