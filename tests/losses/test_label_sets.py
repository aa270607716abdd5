"""Label sets: samples match that share a label; a loop over pairs, one-hot rows, empty rows, what is refused."""

import equations
import pytest
import torch
from loss_cases import Batch, assert_equals_loop, assert_same, batch
from pytorch_metric_learning import losses as peers

from levelfield import losses, miners
from levelfield.losses import CrossBatchMemory

# The third and the last are empty, the first two share two labels, and one label is of a single sample.
SETS = [[k in labels for k in range(5)] for labels in ([0, 1], [0, 1], [], [1, 2], [2], [4], [0, 2], [1], [2, 3], [])]
LOSSES = [
    (losses.ContrastiveLoss, equations.contrastive, (0.9, 1.2)),
    (losses.MultiSimilarityLoss, equations.multi_similarity, (2.0, 50.0, 0.5)),
    (losses.NTXentLoss, equations.ntxent, (0.07,)),
    (losses.SupConLoss, equations.supcon, (0.1,)),
]
ONE_HOT = torch.eye(12, dtype=torch.bool)


@pytest.mark.parametrize("situation", ["unit", "raw", "pairs", "triplets", "repeats", "reference"])
@pytest.mark.parametrize(("loss", "loop", "given"), LOSSES)
def test_label_sets_equal_a_loop_over_pairs(loss, loop, given, situation):
    assert_equals_loop(loss(*given), lambda case: loop(case, *given), batch(situation, SETS))


@pytest.mark.parametrize(("loss", "loop", "given"), LOSSES)
@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner(), miners.TripletMarginMiner()])
def test_one_hot_rows_give_the_bits_of_integers(loss, loop, given, miner):
    memories = [CrossBatchMemory(loss(*given), 5, 20, miner, num_labels=n).double() for n in (None, 12)]
    for seed in range(4):  # the memory fills and wraps
        case = batch("reference", seed=seed)
        x, y, ref, ref_y = case.x, case.y, case.ref, case.ref_y
        kinds = [(y, ref_y), (ONE_HOT[y], ONE_HOT[ref_y])]
        chosen = [miner and miner(x, own) for own, _ in kinds]
        pairs = [[loss(*given)(x, own, choice) for (own, _), choice in zip(kinds, chosen, strict=True)]]
        pairs += [[loss(*given)(x, own, None, ref, others) for own, others in kinds]]
        pairs += [[memory(x, own) for memory, (own, _) in zip(memories, kinds, strict=True)]]
        for values in pairs:
            assert torch.equal(*values)
            assert torch.equal(*(torch.autograd.grad(value, x)[0] for value in values))


def test_empty_sets_match_nothing_and_are_not_their_own_negatives():
    x, none = torch.randn(6, 5), torch.zeros(6, 3, dtype=torch.bool)
    for positives_alone in (losses.ContrastiveLoss(neg_margin=-1.0), losses.NTXentLoss(), losses.SupConLoss()):
        assert positives_alone(x, none) == 0
    apart = torch.eye(6)[:, :5] + torch.eye(6)[:, 1:]
    assert losses.ContrastiveLoss(neg_margin=0.1)(apart, none) == 0  # a sample is at distance 0 from itself
    memory = CrossBatchMemory(losses.ContrastiveLoss(neg_margin=0.1), 5, 6, num_labels=3)
    assert memory(apart, none) == 0
    assert [len(part) for part in miners.MultiSimilarityMiner(epsilon=9.0)(x, none)] == [0, 0, 0, 0]


def multi_supcon(case: Batch, temperature: float = 0.1, threshold: float = 0.5) -> torch.Tensor:
    """MultiSupConLoss as version 3 of pytorch-metric-learning documents it: positives weigh by their Jaccard index."""
    rows = []
    sets = [set(row.nonzero().flatten().tolist()) for row in case.y]
    for i in range(len(sets)):
        jaccard = {j: len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for j in range(len(sets)) if j != i}
        near = [j for j in jaccard if jaccard[j] >= threshold]
        everything = torch.stack([case.s(i, j) / temperature for j in jaccard]).logsumexp(0)
        if near:
            rows.append(-sum(jaccard[p] * (case.s(i, p) / temperature - everything) for p in near) / len(near))
    return equations.nonzero_mean(rows)


def test_it_is_multi_supcon_where_sets_are_equal_or_apart():
    """There each match has Jaccard index 1; elsewhere theirs is a threshold, and ours one shared label."""
    case = batch("raw", [[k in labels for k in range(6)] for labels in ([0, 1], [0, 1], [2], [3, 4], [3, 4], [2], [5])])
    ours = losses.SupConLoss()
    assert_same(ours(case.x, case.y), multi_supcon(case), case.x, value=1e-10, gradient=1e-9)
    if hasattr(peers, "MultiSupConLoss"):  # from version 3 on
        assert_same(ours(case.x, case.y), peers.MultiSupConLoss()(case.x, case.y), case.x, value=1e-5, gradient=1e-4)
    case = batch("raw", [[k in labels for k in range(3)] for labels in ([0, 1, 2], [0], [1], [1, 2])])
    assert ours(case.x, case.y) != multi_supcon(case)


@pytest.mark.parametrize(
    ("labels", "ref_labels", "key"),
    [
        (torch.ones(4, 3), None, "float32 of shape"),
        (torch.ones(4, 3, dtype=torch.long), None, "int64 of shape"),
        (torch.ones(4, dtype=torch.bool), None, "bool of shape"),
        (torch.ones(3, 3, dtype=torch.bool), None, "3 labels for 4 embeddings"),
        (ONE_HOT[:4], ONE_HOT[:4, :5], "ref_labels are sets of 5 labels but labels are sets of 12 labels"),
        (torch.arange(4), ONE_HOT[:4], "ref_labels are sets of 12 labels but labels are integers"),
    ],
)
def test_shapes_that_do_not_fit_raise_one_line(labels, ref_labels, key):
    x = torch.randn(4, 5)
    references = () if ref_labels is None else (x, ref_labels)
    for call, choice in ((losses.SupConLoss(), [None]), (miners.MultiSimilarityMiner(), [])):
        with pytest.raises(ValueError, match=key) as caught:
            call(x, labels, *choice, *references)
        assert "\n" not in str(caught.value)
