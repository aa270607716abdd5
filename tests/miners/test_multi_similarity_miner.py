import pytest
import torch
from pytorch_metric_learning import miners as peers

from levelfield.miners import MultiSimilarityMiner


def rule(x, y, epsilon, ref=None, ref_y=None):
    r, ry = (x, y) if ref is None else (ref, ref_y)
    s = (x / x.norm(dim=1, keepdim=True)) @ (r / r.norm(dim=1, keepdim=True)).T
    positives, negatives = set(), set()
    for i in range(len(x)):
        P = [j for j in range(len(r)) if y[i] == ry[j] and (ref is not None or i != j)]
        N = [j for j in range(len(r)) if y[i] != ry[j]]
        if P and N:
            positives |= {(i, j) for j in P if s[i, j] - epsilon < max(s[i, n] for n in N)}
            negatives |= {(i, j) for j in N if s[i, j] + epsilon > min(s[i, p] for p in P)}
    return positives, negatives


def pairs(rows, columns):
    return set(zip(rows.tolist(), columns.tolist(), strict=True))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("with_reference", [False, True])
def test_keeps_what_the_rule_says_and_what_the_peer_keeps(epsilon, with_reference):
    torch.manual_seed(0)
    x, y = torch.randn(20, 6, dtype=torch.float64), torch.tensor([0] * 5 + [4] * 6 + [2] * 8 + [9])
    ref = (torch.randn(30, 6, dtype=torch.float64), y[torch.randint(20, (30,))]) if with_reference else ()
    a1, p, a2, n = MultiSimilarityMiner(epsilon)(x, y, *ref)
    assert (pairs(a1, p), pairs(a2, n)) == rule(x, y, epsilon, *ref)
    b1, q, b2, m = peers.MultiSimilarityMiner(epsilon)(x, y, *ref)
    assert (pairs(a1, p), pairs(a2, n)) == (pairs(b1, q), pairs(b2, m))


def test_without_positives_or_without_negatives_it_keeps_nothing():
    for labels in ([0, 1, 2], [0, 0, 0]):
        assert [len(t) for t in MultiSimilarityMiner()(torch.randn(3, 4), torch.tensor(labels))] == [0, 0, 0, 0]


def test_shapes_that_do_not_fit_raise():
    with pytest.raises(ValueError, match=r"embeddings must be \(N, D\)"):
        MultiSimilarityMiner()(torch.randn(3, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="go together"):
        MultiSimilarityMiner()(torch.randn(3, 4), torch.zeros(3, dtype=torch.long), ref_emb=torch.randn(3, 4))
