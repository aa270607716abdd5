"""Losses that hold others: a memory is a loop over its equation, mined or not; a sum is the sum."""

import equations
import pytest
import torch
from loss_cases import LABELS, assert_same, batch, in_memory
from refused import refused, succeeded
from test_label_sets import LOSSES, ONE_HOT, SETS

from levelfield import losses
from levelfield.losses import ContrastiveLoss, CrossBatchMemory, NTXentLoss, TripletMarginLoss, WeightedSum
from levelfield.miners import BatchEasyHardMiner, BatchHardMiner, MultiSimilarityMiner, TripletMarginMiner
from levelfield.training.learner import MetricLearner
from levelfield.training.start import check_call


def batches(count, size=8, dim=5):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        yield x.requires_grad_(), torch.randint(4, (size,), generator=generator)


@pytest.mark.parametrize(
    ("loss", "loop", "given", "num_labels"),
    [
        (losses.LiftedStructureLoss, equations.lifted_structure, (), None),
        *((*row, num_labels) for row in LOSSES for num_labels in (None, 5)),
    ],
)
def test_a_memory_equals_a_loop_and_is_part_of_the_state(loss, loop, given, num_labels):
    """No sample meets itself there, as positive or, with an empty set, as negative. Nothing there has a gradient."""
    memory, restored = (CrossBatchMemory(loss(*given), 5, 16, num_labels=num_labels).double() for _ in range(2))
    for step in range(4):
        case = batch("raw", SETS if num_labels else LABELS, seed=step)
        restored.load_state_dict(memory.state_dict())
        found = memory(case.x, case.y)
        assert torch.equal(restored(case.x, case.y), found)
        entered = 10 * step + 10
        assert memory.entered == entered
        assert not memory.memory.requires_grad
        held = memory.memory[: min(entered, 16)], memory.memory_labels[: min(entered, 16)]
        compared = in_memory(case.x, case.y, held, (10 * step + torch.arange(10)) % 16)
        assert_same(found, loop(compared, *given), case.x, value=1e-10, gradient=1e-9)


def test_an_outside_choice_within_the_batch_adds_to_the_memorys():
    """Its indices mean the batch, wherever in the memory that lies (the peer takes them for places in the memory)."""
    memory = CrossBatchMemory(ContrastiveLoss(), 5, memory_size=20).double()
    for step, (x, y) in enumerate(batches(4)):
        a, p, n = TripletMarginMiner()(x, y)
        value, places, size = memory(x, y, (a, p, n)), (8 * step + torch.arange(8)) % 20, min(8 * step + 8, 20)
        held = memory.memory[:size], memory.memory_labels[:size]
        compared = in_memory(x, y, held, places, (a, places[p], a, places[n]))
        torch.testing.assert_close(value, ContrastiveLoss()(*compared.arguments()))


def test_in_evaluation_nothing_enters_and_a_choice_within_the_batch_counts_too():
    """The batch is compared with the memory, and the chosen pairs of the batch among themselves."""
    assert CrossBatchMemory(NTXentLoss(), 5).eval()(torch.randn(2, 5), torch.tensor([0, 0])) == 0
    memory = CrossBatchMemory(ContrastiveLoss(), 5, memory_size=20).double()
    (x, y), (later, later_y), *_ = batches(2)
    a, p, n = choice = TripletMarginMiner()(later, later_y)
    memory.eval()
    torch.testing.assert_close(memory(later, later_y, choice), ContrastiveLoss()(later, later_y, choice))  # still empty
    memory.train()
    memory(x, y)
    memory.eval()
    before = memory.memory.clone()
    compared = in_memory(later, later_y, (x.detach(), y), None, (a, 8 + p, a, 8 + n))
    both = torch.cat([x.detach(), later.detach()]), torch.cat([y, later_y])
    expected = ContrastiveLoss()(later, later_y, compared.chosen, *both)
    torch.testing.assert_close(memory(later, later_y, choice), expected)
    assert torch.equal(memory.memory, before)
    assert memory(later, later_y) != expected


def test_triplets_of_the_miner_and_of_the_batch_stay_triplets():
    """As pairs, each anchor's positives would meet all of its negatives."""
    memory = CrossBatchMemory(TripletMarginLoss(0.5), 5, memory_size=8, miner=BatchHardMiner()).double()
    ((x, y),) = batches(1)
    chosen = tuple(torch.tensor([k]) for k in (0, int((y == y[0]).nonzero()[1]), int((y != y[0]).nonzero()[0])))
    hardest = BatchHardMiner()(x, y)
    both = tuple(torch.cat(parts) for parts in zip(hardest, chosen, strict=True))
    mined = BatchHardMiner()(x, y, x.detach(), y)  # farthest positives are never the sample itself
    assert all(torch.equal(ours, plain) for ours, plain in zip(mined, hardest, strict=True))
    torch.testing.assert_close(memory(x, y, chosen), TripletMarginLoss(0.5)(x, y, both))


def held(num_labels, labels, *more):
    CrossBatchMemory(NTXentLoss(), 5, 4, num_labels=num_labels)(torch.randn(len(labels), 5), labels, *more)


SEMIHARD, RANDOM = TripletMarginLoss(triplets_per_anchor="semihard"), losses.MarginLoss(triplets_per_anchor=3)
OTHERS = losses.ArcFaceLoss(3, 5), losses.FastAPLoss()
REFUSED = [
    *((CrossBatchMemory, (loss, 5), "leave it at 'all' or give the memory a miner") for loss in (SEMIHARD, RANDOM)),
    *((CrossBatchMemory, (loss, 5), "is no loss of pairs or triplets") for loss in OTHERS),
    (CrossBatchMemory, (losses.CircleLoss(), 5, 1024, None, 5), "num_labels=5: CircleLoss takes no label sets"),
    (held, (None, torch.arange(8)), "a batch of 8 does not fit into memory_size=4"),
    (held, (None, torch.arange(4), (torch.arange(4),) * 2), "indices_tuple must be"),
    (held, (None, torch.arange(4), None, torch.randn(4, 5), torch.arange(4)), "takes no ref_emb"),
    (held, (None, ONE_HOT[:4]), r"sets of 12 labels but those of the memory \(num_labels\) are integers"),
    (held, (5, ONE_HOT[:4]), "sets of 12 labels but those of the memory .* sets of 5"),
    (held, (5, torch.arange(4)), "integers but those of the memory"),
    (WeightedSum, ({},), "losses is empty"),
    (WeightedSum, ([NTXentLoss(), CrossBatchMemory(NTXentLoss(), 5)],), "losses is a list: .* by name"),
    (WeightedSum, ({"a": NTXentLoss()}, {"b": 1.0}), "weights name 'b', which is none of the losses a"),
    (WeightedSum, ({"a": NTXentLoss()}, {"a": -1.0}), "weights a=-1.0 must be a number of at least 0"),
    (WeightedSum, ({"a": NTXentLoss()}, {"a": float("nan")}), "must be a number of at least 0"),
    (WeightedSum, ({"a": NTXentLoss},), "is no module"),
]


@pytest.mark.parametrize(("call", "given", "key"), REFUSED)
def test_what_they_do_not_take_is_refused(call, given, key):
    with pytest.raises(ValueError, match=key) as caught:
        call(*given)
    assert "\n" not in str(caught.value)
    if "give the memory a miner" in key:
        CrossBatchMemory(*given, miner=TripletMarginMiner())


@pytest.mark.parametrize("miner", [BatchEasyHardMiner(), BatchEasyHardMiner(neg_strategy="hard"), BatchHardMiner()])
def test_no_miner_takes_a_sample_as_its_own_positive(miner):
    """The first batch fills the memory, so it is compared as without one."""
    memory = CrossBatchMemory(TripletMarginLoss(0.5), 5, memory_size=64, miner=miner).double()
    ((x, y),) = batches(1)
    expected = TripletMarginLoss(0.5)(x, y, miner(x, y))
    assert expected > 0
    torch.testing.assert_close(memory(x, y), expected)


class ForeignMiner(torch.nn.Module):
    """Chooses everything, like a miner of another package: it knows no `places`, so each sample is its own positive."""

    def __init__(self, of_triplets):
        super().__init__()
        self.of_triplets = of_triplets

    def forward(self, embeddings, labels, ref_emb, ref_labels):
        same = labels[:, None] == ref_labels[None, :]
        if self.of_triplets:
            return (same[:, :, None] & ~same[:, None, :]).nonzero(as_tuple=True)
        return *same.nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True)


@pytest.mark.parametrize("of_triplets", [True, False])
def test_what_a_foreign_miner_chooses_loses_each_sample_paired_with_itself(of_triplets):
    loss = TripletMarginLoss(0.5)
    mined = CrossBatchMemory(loss, 5, memory_size=20, miner=ForeignMiner(of_triplets)).double()
    everything = CrossBatchMemory(loss, 5, memory_size=20).double()
    for x, y in batches(4):
        torch.testing.assert_close(mined(x, y), everything(x, y))


TOLD = "{pairs: NTXentLoss, classes: {class_path: ArcFaceLoss, init_args: {margin: 20}}}"


@pytest.mark.parametrize("situation", ["raw", "pairs", "triplets", "reference"])
@pytest.mark.parametrize("labels", [LABELS, SETS], ids=["integers", "sets"])
def test_is_the_sum(situation, labels):
    case = batch(situation, labels)
    loss = WeightedSum({"a": ContrastiveLoss(), "b": NTXentLoss(0.2)}, {"b": 0.3})
    expected = ContrastiveLoss()(*case.arguments()) + 0.3 * NTXentLoss(0.2)(*case.arguments())
    assert_same(loss(*case.arguments()), expected, case.x, case.ref, value=1e-12, gradient=1e-12)


def test_takes_a_memory_and_a_plain_module_and_refuses_what_its_losses_refuse():
    case = batch()
    plain = torch.nn.Module()
    plain.forward = lambda embeddings, labels: embeddings.square().mean()
    loss = WeightedSum({"memory": CrossBatchMemory(ContrastiveLoss(), 5, 64).double(), "plain": plain}, {"plain": 2.0})
    expected = ContrastiveLoss()(case.x, case.y) + 2 * case.x.square().mean()
    torch.testing.assert_close(loss(case.x, case.y), expected)
    with pytest.raises(ValueError, match="no label sets are taken"):
        WeightedSum({"supcon": losses.SupConLoss(), "arcface": losses.ArcFaceLoss(5, 5)})(case.x, torch.tensor(SETS))
    with pytest.raises(ValueError, match="PrototypicalLoss"):
        WeightedSum({"a": losses.PrototypicalLoss()})(case.x, case.y, MultiSimilarityMiner()(case.x, case.y))
    with pytest.raises(Exception, match=r"Module cannot use --model\.miner"):
        check_call(loss, MultiSimilarityMiner())


@pytest.mark.slow
def test_the_command_line_makes_them_and_a_checkpoint_brings_them_back(tiny, run, tmp_path):
    words = ["fit", *tiny, "--output", tmp_path, "--model.loss", "WeightedSum", "--model.loss.losses"]
    succeeded(run(*words, TOLD, "--model.loss.weights", "{classes: 0.5}"))
    learner = MetricLearner.load_from_checkpoint(tmp_path / "fit/Glyphs-WeightedSum/0/best.ckpt")
    assert isinstance(learner.loss.losses["pairs"], NTXentLoss)
    assert learner.loss.losses["classes"].margin == 20
    assert learner.loss.weights == {"pairs": 1.0, "classes": 0.5}
    refused(run(*words, TOLD, "--model.loss.weights", "{clases: 0.5}"), "weights name 'clases'", "pairs, classes")
    refused(run(*words, "{pairs: NTXentLos}"), "NTXentLos")
