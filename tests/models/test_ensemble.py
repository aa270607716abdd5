"""DREML's ensemble: training members side by side is training them apart."""

import copy
import functools

import pytest
import torch
from torch import nn

from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, MetaClassLoss
from levelfield.models import LayerNormLinearEmbedder, LinearEmbedder, TimmTrunk
from levelfield.models.ensemble import EnsembleEmbedder, EnsembleTrunk
from levelfield.training.learner import MetricLearner

CLASSES, MEMBERS, META_CLASSES = 10, 2, 4
# AdamW would divide rounding errors by small gradients; both change each parameter by its own gradient alone.
SGD = functools.partial(torch.optim.SGD, momentum=0.9)


def ensemble() -> MetricLearner:
    torch.manual_seed(0)
    trunk = TimmTrunk("test_resnet", weights=None).double()
    learner = MetricLearner(
        trunk,
        loss=functools.partial(MetaClassLoss, members=MEMBERS),
        embedding_size=MEMBERS * META_CLASSES,
        members=MEMBERS,
        optimizer=SGD,
        trunk_lr=1e-2,
    )
    learner.double().build_loss(CLASSES)
    return learner


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.rand(8, 3, 32, 32, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (8,), generator=generator),
        )
        for _ in range(2)
    ]


@pytest.mark.parametrize("frozen", [True, False])
def test_members_trained_side_by_side_are_members_trained_apart(frozen):
    together = ensemble()
    together.freeze_batch_norm = frozen
    together.train()
    apart = []
    for number in range(MEMBERS):
        # A learner of one member: its trunk, its embedder, its map of the classes.
        torch.manual_seed(0)
        alone = MetricLearner(
            copy.deepcopy(together.trunk.members[number]),
            loss=functools.partial(MetaClassLoss, members=1),
            embedding_size=META_CLASSES,
            optimizer=SGD,
            trunk_lr=1e-2,
            freeze_batch_norm=frozen,
        )
        alone.embedder = copy.deepcopy(together.embedder.members[number])
        alone.double().build_loss(CLASSES)
        alone.loss.meta_classes = together.loss.meta_classes[number : number + 1]
        apart.append(alone.train())
    for learner in (together, *apart):
        optimizer = learner.configure_optimizers()
        for images, labels in batches():
            loss = learner.compute_loss(learner(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for number, alone in enumerate(apart):
        for mine, theirs in ((together.trunk, alone.trunk), (together.embedder, alone.embedder)):
            trained = mine.members[number].state_dict()
            for name, tensor in theirs.state_dict().items():
                torch.testing.assert_close(trained[name], tensor, rtol=1e-8, atol=1e-10)
    joint = together.eval()(batches()[0][0]).detach()
    separate = torch.cat([alone.eval()(batches()[0][0]).detach() for alone in apart], dim=1)
    torch.testing.assert_close(joint, separate / MEMBERS**0.5, rtol=1e-8, atol=1e-10)
    # They do differ from each other, and from where they began.
    assert not torch.allclose(joint[:, :META_CLASSES], joint[:, META_CLASSES:])
    first = together.trunk.members[0].state_dict()
    assert not torch.allclose(first["model.conv1.0.weight"], ensemble().trunk.members[0].model.conv1[0].weight)


def test_an_ensemble_has_a_copy_and_an_embedder_for_each_member():
    trunk = TimmTrunk("test_resnet", weights=None)
    trunk.licence = "of somebody"
    members = EnsembleTrunk(trunk, 3)
    one, three = (sum(p.numel() for p in module.parameters()) for module in (trunk, members))
    assert three == 3 * one
    assert (members.num_features, members.licence) == (3 * trunk.num_features, "of somebody")
    embedder = EnsembleEmbedder(trunk.num_features, 12, LayerNormLinearEmbedder, 3)
    embeddings = embedder(members(torch.rand(2, 3, 32, 32))).unflatten(1, (3, 4))
    torch.testing.assert_close(embeddings.norm(dim=2), torch.ones(2, 3))
    with torch.no_grad():
        members.members[1].model.conv1[0].weight.zero_()
    assert trunk.model.conv1[0].weight.abs().sum() > 0


def test_contradictory_numbers_are_one_clear_line():
    trunk = TimmTrunk("test_resnet", weights=None)
    with pytest.raises(UserError, match=r"--model\.embedding_size 128 must be a multiple of --model\.members 12"):
        MetricLearner(trunk, loss=MetaClassLoss, members=12)
    learner = MetricLearner(trunk, loss=functools.partial(MetaClassLoss, members=3), embedding_size=12, members=2)
    with pytest.raises(UserError, match=r"--model\.members 2 and --model\.loss\.members 3 must be one number"):
        learner.build_loss(5)
    with pytest.raises(UserError, match=r"--model\.members 0: give 1 or more"):
        MetricLearner(trunk, loss=ArcFaceLoss, members=0)


def test_dreml_stacks_on_any_trunk_and_its_checkpoint_loads_alone(run, tmp_path, tiny):
    words = [*tiny, "--config", "configs/method/dreml.yaml", "--model.members", "2", "--model.loss.members", "2"]
    code, printed, complaint = run("fit", *words, "--model.embedding_size", "8", "--output", tmp_path)
    assert code == 0, complaint
    assert "trunk: EnsembleTrunk, " in printed
    best = next(tmp_path.rglob("best.ckpt"))
    learner = MetricLearner.load_from_checkpoint(best)
    assert (len(learner.trunk.members), learner.loss.meta_classes.shape[0]) == (2, 2)
    code, _, complaint = run("validate", "--ckpt_path", best, "--model.members", "3")
    assert code == 2
    assert "members" in complaint


def test_a_chunk_of_zeros_stays_zero_in_half_precision():
    embedder = EnsembleEmbedder(4, 8, members=2, embedder=LinearEmbedder)
    nn.init.zeros_(embedder.members[0].linear.bias)
    features = torch.zeros(3, 8)
    features[:, 4:] = 1.0
    embeddings = embedder.half()(features.half())
    assert (embeddings[:, :4] == 0).all()
    torch.testing.assert_close(embeddings[:, 4:].norm(dim=1), torch.ones(3))
