import pytest
import torch
from pytorch_metric_learning import losses as peers

from levelfield.losses import (
    ArcFaceLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    FastAPLoss,
    LiftedStructureLoss,
    MultiSimilarityLoss,
    NTXentLoss,
    TripletMarginLoss,
)
from levelfield.miners import MultiSimilarityMiner, TripletMarginMiner

PAIRS = [
    (ContrastiveLoss, peers.ContrastiveLoss),
    (NTXentLoss, peers.NTXentLoss),
    (MultiSimilarityLoss, peers.MultiSimilarityLoss),
    (TripletMarginLoss, peers.TripletMarginLoss),
]


def batches(count, size=8, dim=5):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        yield x.requires_grad_(), torch.randint(4, (size,), generator=generator)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("miner", [None, MultiSimilarityMiner(), TripletMarginMiner()], ids=lambda m: type(m).__name__)
def test_equals_pytorch_metric_learning_through_a_memory_that_fills_and_wraps(ours, theirs, miner):
    memory = CrossBatchMemory(ours(), 5, memory_size=20, miner=miner).double()
    peer = peers.CrossBatchMemory(theirs(), 5, memory_size=20, miner=miner)
    for x, y in batches(6):
        value, expected = memory(x, y), peer(x, y)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in (value, expected)))


def test_a_sample_is_not_compared_with_itself_and_the_memory_has_no_gradient():
    memory = CrossBatchMemory(ContrastiveLoss(pos_margin=0, neg_margin=0), 5, memory_size=8).double()
    (x, _), *_ = batches(1, size=2)
    assert memory(x, torch.tensor([0, 1])) == 0  # the only positives would be the samples themselves
    again = x.detach().clone().requires_grad_()
    memory(again, torch.tensor([0, 1]))
    assert not memory.memory.requires_grad
    assert memory.entered == 4


def test_what_is_left_out_of_the_memory_is_the_oldest():
    memory = CrossBatchMemory(ContrastiveLoss(), 1, memory_size=3)
    for k in range(5):
        memory(torch.tensor([[float(k)]]), torch.tensor([k]))
    assert sorted(memory.memory.flatten().tolist()) == [2, 3, 4]


def test_in_evaluation_nothing_enters():
    memory = CrossBatchMemory(NTXentLoss(), 5, memory_size=16).double()
    for x, y in batches(2):
        memory(x, y)
    memory.eval()
    before = memory.memory.clone()
    for x, y in batches(1):
        assert memory(x, y).isfinite()
    assert torch.equal(before, memory.memory)
    assert CrossBatchMemory(NTXentLoss(), 5).eval()(torch.randn(2, 5), torch.tensor([0, 0])) == 0


def test_the_memory_is_part_of_the_state():
    memory, restored = (CrossBatchMemory(LiftedStructureLoss(), 5, memory_size=20).double() for _ in range(2))
    for x, y in batches(3):
        memory(x, y)
    restored.load_state_dict(memory.state_dict())
    for x, y in batches(2):
        assert memory(x, y) == restored(x, y)


def test_an_outside_choice_within_the_batch_adds_to_the_memorys():
    """Its indices mean the batch, wherever in the memory that lies (the peer takes them for places in the memory)."""
    memory, plain = (CrossBatchMemory(ContrastiveLoss(), 5, memory_size=20).double() for _ in range(2))
    for step, (x, y) in enumerate(batches(4)):
        a, p, n = TripletMarginMiner()(x, y)
        plain(x, y)
        places = (8 * step + torch.arange(8)) % 20
        size = min(8 * step + 8, 20)
        same = y[:, None] == plain.memory_labels[None, :size]
        positives = same.clone()
        positives[torch.arange(8), places] = False
        (a1, q), (a2, m) = positives.nonzero(as_tuple=True), (~same).nonzero(as_tuple=True)
        everything = (torch.cat([a1, a]), torch.cat([q, places[p]]), torch.cat([a2, a]), torch.cat([m, places[n]]))
        expected = ContrastiveLoss()(x, y, everything, plain.memory[:size], plain.memory_labels[:size])
        torch.testing.assert_close(memory(x, y, (a, p, n)), expected)


def test_what_it_cannot_hold_is_refused():
    for loss in (ArcFaceLoss(3, 5), FastAPLoss()):
        with pytest.raises(ValueError, match="is no loss of pairs or triplets"):
            CrossBatchMemory(loss, 5)
    memory = CrossBatchMemory(ContrastiveLoss(), 5, memory_size=4)
    with pytest.raises(ValueError, match="a batch of 8 does not fit into memory_size=4"):
        memory(torch.randn(8, 5), torch.arange(8))
    with pytest.raises(ValueError, match="takes no ref_emb"):
        memory(torch.randn(4, 5), torch.arange(4), None, torch.randn(4, 5), torch.arange(4))
