import math

import pytest
import torch
from matmul_precision import Products, coarse_by_the_older_name, coarse_on_cuda, coarse_on_the_cpu, made
from pytorch_metric_learning import miners as peers

from levelfield import miners
from levelfield.losses import TripletMarginLoss
from levelfield.miners import (
    AngularMiner,
    BatchEasyHardMiner,
    BatchHardMiner,
    DistanceWeightedMiner,
    HDCMiner,
    TripletMarginMiner,
    UniformHistogramMiner,
)


def batch(with_reference=False):
    torch.manual_seed(0)
    x, y = torch.randn(20, 6, dtype=torch.float64), torch.tensor([0] * 5 + [4] * 6 + [2] * 8 + [9])
    if not with_reference:
        return x, y
    return x, y, torch.randn(30, 6, dtype=torch.float64), y[torch.randint(20, (30,))]


def rows(*indices):
    return sorted(zip(*(t.tolist() for t in indices), strict=True))


@pytest.mark.parametrize("kind", ["all", "hard", "semihard", "easy"])
@pytest.mark.parametrize("with_reference", [False, True])
def test_triplet_margin_keeps_what_the_rule_says(kind, with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    d = torch.cdist(x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True))
    expected = []
    for i in range(len(x)):
        for p in range(len(r)):
            if y[i] != ry[p] or (not reference and i == p):
                continue
            for n in range(len(r)):
                t = float(d[i, n] - d[i, p])
                kept = {"all": t <= 0.2, "hard": t <= 0, "semihard": 0 < t <= 0.2, "easy": t > 0.2}[kind]
                if y[i] != ry[n] and kept:
                    expected.append((i, p, n))
    chosen = TripletMarginMiner(0.2, kind)(x, y, *reference)
    assert rows(*chosen) == sorted(expected)
    assert rows(*chosen) == rows(*peers.TripletMarginMiner(0.2, kind)(x, y, *reference))


def test_triplet_margin_of_all_leaves_the_triplet_loss_as_it_is():
    x, y = batch()
    chosen = TripletMarginMiner(margin=0.1)(x, y)
    loss = TripletMarginLoss(margin=0.1)
    torch.testing.assert_close(loss(x, y, chosen), loss(x, y))


@pytest.mark.parametrize("with_reference", [False, True])
def test_batch_hard_takes_the_farthest_positive_and_the_nearest_negative(with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    d = torch.cdist(x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True))
    expected = []
    for i in range(len(x)):
        P = [j for j in range(len(r)) if y[i] == ry[j] and (reference or i != j)]
        N = [j for j in range(len(r)) if y[i] != ry[j]]
        if P and N:
            expected.append((i, max(P, key=lambda j: d[i, j]), min(N, key=lambda j: d[i, j])))
    assert rows(*BatchHardMiner()(x, y, *reference)) == expected
    assert rows(*peers.BatchHardMiner()(x, y, *reference)) == expected


@pytest.mark.parametrize(
    ("positive", "negative"), [("easy", "semihard"), ("hard", "semihard"), ("easy", "hard"), ("hard", "easy")]
)
@pytest.mark.parametrize("with_reference", [False, True])
def test_easy_positives_come_with_the_negative_that_is_asked_for(positive, negative, with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    d = torch.cdist(x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True))
    expected = []
    for i in range(len(x)):
        P = [j for j in range(len(r)) if y[i] == ry[j] and (reference or i != j)]
        p = P and (min if positive == "easy" else max)(P, key=lambda j: d[i, j])
        N = [j for j in range(len(r)) if P and y[i] != ry[j] and (negative != "semihard" or d[i, j] > d[i, p])]
        if N:
            expected.append((i, p, i, (max if negative == "easy" else min)(N, key=lambda j: d[i, j])))
    assert rows(*BatchEasyHardMiner(positive, negative)(x, y, *reference)) == expected
    assert rows(*peers.BatchEasyHardMiner(positive, negative)(x, y, *reference)) == expected


@pytest.mark.parametrize("angle", [20, 35])
@pytest.mark.parametrize("with_reference", [False, True])
def test_angular_keeps_triplets_whose_negative_sees_a_wide_pair(angle, with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    u, v = x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True)
    expected = []
    for i in range(len(x)):
        for p in range(len(r)):
            if y[i] == ry[p] and (reference or i != p):
                centre = (u[i] + v[p]) / 2
                expected += [
                    (i, p, n)
                    for n in range(len(r))
                    if y[i] != ry[n]
                    and math.atan(float((u[i] - v[p]).norm() / (2 * (v[n] - centre).norm()))) > math.radians(angle)
                ]
    found = rows(*AngularMiner(angle)(x, y, *reference))
    assert found == sorted(expected)
    assert found == rows(*peers.AngularMiner(angle)(u, y, *([v, ry] if reference else [])))
    assert 0 < len(found) < len(rows(*TripletMarginMiner(10.0)(x, y, *reference)))


@pytest.mark.parametrize("with_reference", [False, True])
def test_uniform_histogram_draws_as_many_of_each_bin(with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    d = torch.cdist(x / x.norm(dim=1, keepdim=True), r / r.norm(dim=1, keepdim=True))
    torch.manual_seed(0)
    chosen = UniformHistogramMiner(num_bins=7, pos_per_bin=200, neg_per_bin=600)(x, y, *reference)
    for (a, other), same, count in ((chosen[:2], True, 200), (chosen[2:], False, 600)):
        pairs = [
            (i, j)
            for i in range(len(x))
            for j in range(len(r))
            if (y[i] == ry[j]) == same and (reference or not same or i != j)
        ]
        least, largest = (find(float(d[pair]) for pair in pairs) for find in (min, max))
        bin_of = {pair: min(6, int((float(d[pair]) - least) / (largest - least) * 7)) for pair in pairs}
        found = [bin_of[pair] for pair in rows(a, other)]
        assert {each: found.count(each) for each in set(bin_of.values())} == dict.fromkeys(bin_of.values(), count)
        drawn = set(rows(a, other))
        assert len(drawn) > 0.9 * len(pairs), "every pair of a bin may be drawn"
    torch.manual_seed(0)
    again = UniformHistogramMiner(num_bins=7, pos_per_bin=200, neg_per_bin=600)(x, y, *reference)
    assert all(torch.equal(ours, first) for ours, first in zip(again, chosen, strict=True))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("with_reference", [False, True])
def test_hdc_keeps_the_hardest_pairs_of_the_batch(fraction, with_reference):
    x, y, *reference = batch(with_reference)
    r, ry = reference or (x, y)
    s = (x / x.norm(dim=1, keepdim=True)) @ (r / r.norm(dim=1, keepdim=True)).T
    P = [(i, j) for i in range(len(x)) for j in range(len(r)) if y[i] == ry[j] and (reference or i != j)]
    N = [(i, j) for i in range(len(x)) for j in range(len(r)) if y[i] != ry[j]]
    keep_p, keep_n = math.ceil(fraction * len(P)), math.ceil(fraction * len(N))
    a1, p, a2, n = HDCMiner(fraction)(x, y, *reference)
    # the similarities, for of (i, j) and (j, i) either may be the one that is kept
    hardest_p = sorted(round(float(s[i, j]), 12) for i, j in P)[:keep_p]
    hardest_n = sorted(round(float(s[i, j]), 12) for i, j in N)[-keep_n:]
    assert sorted(round(v, 12) for v in s[a1, p].tolist()) == hardest_p
    assert sorted(round(v, 12) for v in s[a2, n].tolist()) == hardest_n
    assert set(rows(a1, p)) <= set(P)
    assert set(rows(a2, n)) <= set(N)
    assert len(set(rows(a1, p))) == keep_p


def test_distance_weighted_draws_one_near_negative_for_each_positive_pair():
    x, y = batch()
    a, p, n = DistanceWeightedMiner()(x, y)
    d = torch.cdist(x / x.norm(dim=1, keepdim=True), x / x.norm(dim=1, keepdim=True))
    near = (d < 1.4) & (y[:, None] != y[None, :])
    usable = [(i, j) for i in range(20) for j in range(20) if i != j and y[i] == y[j] and near[i].any()]
    assert rows(a, p) == usable
    assert (y[a] != y[n]).all()
    assert (d[a, n] < 1.4).all()


def test_distance_weighted_draws_by_the_inverse_of_the_density_of_distances():
    """Chi-square of the drawn negatives of one anchor against P(n) ~ 1/q(d)."""
    D, draws = 6, 20000
    torch.manual_seed(1)
    points = torch.randn(30, D, dtype=torch.float64)
    points[1:6] = points[0] + 0.1 * points[1:6]  # some nearer than the cutoff
    points = points / points.norm(dim=1, keepdim=True)
    d = (points[1:] - points[0]).norm(dim=1)
    clamped = d.clamp_min(0.5)
    q = clamped ** (D - 2) * (1 - clamped**2 / 4) ** ((D - 3) / 2)
    law = torch.where(d < 1.4, 1 / q, 0.0)
    law = law / law.sum()
    labels = torch.cat([torch.zeros(1), torch.ones(29)]).long()  # the reference at 0 is every anchor's one positive
    torch.manual_seed(2)
    _, _, n = DistanceWeightedMiner()(points[:1].repeat(draws, 1), torch.zeros(draws).long(), points, labels)
    counts = torch.bincount(n - 1, minlength=29).double()
    assert counts.sum() == draws
    expected = draws * law
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 3 * math.sqrt(2 * freedom)


def test_distance_weighted_is_seeded_and_works_in_a_plane():
    x, y = batch()
    torch.manual_seed(3)
    first = DistanceWeightedMiner()(x, y)
    torch.manual_seed(3)
    assert rows(*first) == rows(*DistanceWeightedMiner()(x, y))
    plane = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [-1.0, 0.0]])
    a, _, _ = DistanceWeightedMiner()(plane, torch.tensor([0, 0, 1, 1]))
    assert a.tolist() == [0, 1, 2]  # the last has no near negative


MINERS = [getattr(miners, name)() for name in miners.__all__ if name != "Miner"]


@pytest.mark.parametrize("miner", MINERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 5, 5], [7], [2**40, 2**40 + 1, 2**40, -3]])
def test_awkward_batches_give_indices_that_fit(miner, labels):
    for x in (torch.randn(len(labels), 4), torch.ones(len(labels), 4), torch.zeros(len(labels), 4)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            chosen = miner(x.to(dtype).requires_grad_(), torch.tensor(labels))
            assert len(chosen) in (3, 4)
            assert all(t.dtype == torch.long and not t.requires_grad for t in chosen)
            pairs = [(chosen[0], chosen[1], True), (chosen[-2] if len(chosen) == 4 else chosen[0], chosen[-1], False)]
            for a, other, same in pairs:
                assert all((labels[i] == labels[j]) == same for i, j in zip(a.tolist(), other.tolist(), strict=True))


@pytest.mark.parametrize("miner", MINERS, ids=lambda m: type(m).__name__)
def test_autocast_changes_nothing(miner):
    x, y = batch()
    torch.manual_seed(0)
    plain = miner(x.float(), y)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = miner(x.float(), y)
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="type_of_triplets='medium'"):
        TripletMarginMiner(type_of_triplets="medium")
    with pytest.raises(ValueError, match="filter_percentage=2"):
        HDCMiner(2)
    with pytest.raises(ValueError, match="angle=90"):
        AngularMiner(90)
    with pytest.raises(ValueError, match="pos_strategy='all'"):
        BatchEasyHardMiner("all")
    with pytest.raises(ValueError, match="neg_strategy='all'"):
        BatchEasyHardMiner(neg_strategy="all")
    with pytest.raises(ValueError, match="neg_per_bin=0"):
        UniformHistogramMiner(neg_per_bin=0)
    with pytest.raises(ValueError, match="cutoff=3"):
        DistanceWeightedMiner(cutoff=3)


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_a_miner_takes_embeddings_of_any_scale_and_none_that_is_not_finite_stops_it(miner):
    embeddings = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(16) // 4
    torch.manual_seed(0)
    expected = miner(embeddings, labels)
    for scale in (2.0**-100, 2.0**60, 2.0**100):
        torch.manual_seed(0)
        assert all(
            torch.equal(ours, plain) for ours, plain in zip(miner(embeddings * scale, labels), expected, strict=True)
        )
    for broken in (embeddings.index_fill(0, torch.tensor([3, 9]), torch.nan), torch.full((16, 8), torch.inf)):
        for indices in miner(broken, labels):
            assert indices.dtype == torch.int64
            assert ((indices >= 0) & (indices < 16)).all()


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_a_miners_products_are_true_float32_whatever_torch_was_told(miner):
    for coarse in (coarse_by_the_older_name, coarse_on_cuda, coarse_on_the_cpu):
        with made(coarse), Products() as products:
            miner(torch.randn(16, 8), torch.arange(16) // 4)
        assert products.guarded == 1
        assert not products.seen


def test_distances_of_embeddings_that_coincide_are_zero():
    """Rounding makes no negative that coincides with the anchor farther than a positive that does."""
    embeddings = torch.randn(1, 128, generator=torch.Generator().manual_seed(0)).repeat(48, 1)
    labels = torch.arange(48) // 16
    for kind, count in (("hard", 48 * 15 * 32), ("semihard", 0), ("easy", 0)):
        assert len(TripletMarginMiner(margin=0.0, type_of_triplets=kind)(embeddings, labels)[0]) == count
