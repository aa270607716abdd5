"""Several losses with weights: the sum, what each is given, and how a learner makes them."""

import functools

import pytest
import torch
from loss_cases import LABELS, assert_same, batch
from refused import refused, succeeded
from test_label_sets import SETS

from levelfield.losses import (
    ArcFaceLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    NTXentLoss,
    PrototypicalLoss,
    SupConLoss,
    WeightedSum,
)
from levelfield.miners import MultiSimilarityMiner
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.learner import MetricLearner
from levelfield.training.loss_factory import make_loss, supplied_arguments
from levelfield.training.start import check_call

TOLD = "{pairs: NTXentLoss, classes: {class_path: ArcFaceLoss, init_args: {margin: 20}}}"


@pytest.mark.parametrize("situation", ["raw", "pairs", "triplets", "reference"])
@pytest.mark.parametrize("labels", [LABELS, SETS], ids=["integers", "sets"])
def test_is_the_sum(situation, labels):
    case = batch(situation, labels)
    loss = WeightedSum({"a": ContrastiveLoss(), "b": NTXentLoss(0.2)}, {"b": 0.3})
    expected = ContrastiveLoss()(*case.arguments()) + 0.3 * NTXentLoss(0.2)(*case.arguments())
    assert_same(loss(*case.arguments()), expected, case.x, case.ref, value=1e-12, gradient=1e-12)


def test_class_weights_of_its_losses_learn_by_their_weights():
    case = batch(labels=[0, 0, 1, 1, 2, 2])
    arcface = ArcFaceLoss(3, 5).double()
    loss = WeightedSum({"classes": arcface, "pairs": ContrastiveLoss()}, {"classes": 0.25})
    assert [name for name, _ in loss.named_parameters()] == ["losses.classes.class_weights"]
    (found,) = torch.autograd.grad(loss(case.x, case.y), arcface.class_weights)
    (alone,) = torch.autograd.grad(arcface(case.x, case.y), arcface.class_weights)
    torch.testing.assert_close(found, 0.25 * alone)


def test_takes_a_memory_and_a_plain_module_and_refuses_what_its_losses_refuse():
    case = batch()
    plain = torch.nn.Module()
    plain.forward = lambda embeddings, labels: embeddings.square().mean()
    loss = WeightedSum({"memory": CrossBatchMemory(ContrastiveLoss(), 5, 64).double(), "plain": plain}, {"plain": 2.0})
    expected = ContrastiveLoss()(case.x, case.y) + 2 * case.x.square().mean()
    torch.testing.assert_close(loss(case.x, case.y), expected)
    with pytest.raises(ValueError, match="no label sets are taken"):
        WeightedSum({"supcon": SupConLoss(), "arcface": ArcFaceLoss(5, 5)})(case.x, torch.tensor(SETS))
    with pytest.raises(ValueError, match="PrototypicalLoss"):
        WeightedSum({"a": PrototypicalLoss()})(case.x, case.y, MultiSimilarityMiner()(case.x, case.y))
    with pytest.raises(Exception, match=r"Module cannot use --model\.miner"):
        check_call(loss, MultiSimilarityMiner())


@pytest.mark.parametrize(
    ("losses", "weights", "message"),
    [
        ({}, None, "losses is empty"),
        ([NTXentLoss(), CrossBatchMemory(NTXentLoss(), 5)], None, "losses is a list: .* by name"),
        ({"a": NTXentLoss()}, {"b": 1.0}, "weights name 'b', which is none of the losses a"),
        ({"a": NTXentLoss()}, {"a": -1.0}, "weights a=-1.0 must be a number of at least 0"),
        ({"a": NTXentLoss()}, {"a": float("nan")}, "must be a number of at least 0"),
        ({"a": NTXentLoss}, None, "is no module"),
    ],
)
def test_bad_arguments_are_refused(losses, weights, message):
    with pytest.raises(ValueError, match=message) as caught:
        WeightedSum(losses, weights)
    assert "\n" not in str(caught.value)


def test_a_learner_makes_its_losses_and_asks_for_classes_only_where_one_does():
    pairs = functools.partial(WeightedSum, losses={"a": MultiSimilarityLoss, "b": NTXentLoss(0.3)})
    assert supplied_arguments(pairs) == []
    made = make_loss(pairs, None, 8)
    assert (type(made.losses["a"]), made.losses["b"].temperature) == (MultiSimilarityLoss, 0.3)
    both = functools.partial(WeightedSum, {"a": NTXentLoss(), "c": NormalizedSoftmaxLoss}, {"c": 0.5})
    assert supplied_arguments(both) == ["num_classes", "embedding_size"]
    learner = MetricLearner(ModuleTrunk(torch.nn.Identity(), 8), both, embedding_size=4)
    learner.build_loss(6)
    assert learner.loss.losses["c"].class_weights.shape == (6, 4)
    assert learner.loss.weights == {"a": 1.0, "c": 0.5}


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
