"""DREML's ensemble: training members side by side is training them apart; its loss by a loop over its equation."""

import copy
import functools
import math
from pathlib import Path

import pytest
import torch
from refused import succeeded
from tiny_fit import REPOSITORY
from torch import nn

from levelfield.models import TimmTrunk
from levelfield.training.learner import MetricLearner
from papers.fehervari.dreml import EnsembleEmbedder, EnsembleTrunk, MetaClassLoss

CLASSES, MEMBERS, META_CLASSES = 10, 2, 4


def learner_of(trunk: nn.Module, members: int, **arguments: object) -> MetricLearner:
    learner = MetricLearner(
        trunk,
        loss=functools.partial(MetaClassLoss, members=members),
        embedder=functools.partial(EnsembleEmbedder, members=members),
        embedding_size=members * META_CLASSES,
        # AdamW would divide rounding errors by small gradients; this changes each weight by its own gradient only.
        optimizer=functools.partial(torch.optim.SGD, momentum=0.9),
        trunk_lr=1e-2,
        **arguments,
    )
    learner.double().build_loss(CLASSES)
    return learner


def ensemble(**arguments: object) -> MetricLearner:
    torch.manual_seed(0)
    return learner_of(EnsembleTrunk(TimmTrunk("test_resnet", weights=None), MEMBERS), MEMBERS, **arguments)


def test_members_trained_side_by_side_are_members_trained_apart() -> None:
    together = ensemble(freeze_batch_norm=False)
    apart = []
    for number in range(MEMBERS):
        alone = learner_of(EnsembleTrunk(copy.deepcopy(together.trunk.members[number]), 1), 1, freeze_batch_norm=False)
        alone.embedder.members[0] = copy.deepcopy(together.embedder.members[number])
        alone.loss.meta_classes = together.loss.meta_classes[number : number + 1]
        apart.append(alone)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 8, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (2, 8), generator=generator)
    for learner in (together, *apart):
        optimizer = learner.train().configure_optimizers()
        for batch, of_batch in zip(images, labels, strict=True):
            optimizer.zero_grad()
            learner.compute_loss(learner(batch), of_batch).backward()
            optimizer.step()
    for number, alone in enumerate(apart):
        for mine, theirs in ((together.trunk, alone.trunk), (together.embedder, alone.embedder)):
            trained = mine.members[number].state_dict()
            for name, tensor in theirs.members[0].state_dict().items():
                torch.testing.assert_close(trained[name], tensor, rtol=1e-8, atol=1e-10)
    joint = together.eval()(images[0]).detach()
    separate = torch.cat([alone.eval()(images[0]).detach() for alone in apart], dim=1)
    torch.testing.assert_close(joint, separate / MEMBERS**0.5, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(joint[:, :META_CLASSES], joint[:, META_CLASSES:])


def test_the_loss_is_its_equation() -> None:
    embeddings, labels = 3 * torch.randn(14, 12, dtype=torch.float64), torch.randint(6, (14,))
    loss = MetaClassLoss(num_classes=6, embedding_size=12, members=4, softmax_scale=7.0)
    total = 0.0
    for embedding, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        for member in range(4):
            part = embedding[3 * member : 3 * member + 3]
            unit = [number / math.hypot(*part) for number in part]
            logits = [-7.0 * sum((unit[k] - (k == c)) ** 2 for k in range(3)) for c in range(3)]
            meta_class = int(loss.meta_classes[member, label])
            total += math.log(sum(map(math.exp, logits))) - logits[meta_class]
    assert float(loss(embeddings, labels)) == pytest.approx(total / 14, rel=1e-12)


@pytest.mark.full
def test_its_method_file_trains_and_its_checkpoint_loads_alone(run, tiny: list[str], tmp_path: Path) -> None:
    words = [*tiny, "--config", str(REPOSITORY / "papers/fehervari/dreml.yaml"), "--output", tmp_path]
    trunk = "{class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}"
    words += ["--model.trunk.trunk", trunk, "--model.embedding_size", "8"]
    for part in ("trunk", "embedder", "loss"):
        words += [f"--model.{part}.members", "2"]
    succeeded(run("fit", *words))
    best = next(tmp_path.rglob("best.ckpt"))
    learner = MetricLearner.load_from_checkpoint(best, trust=["papers"])
    assert (len(learner.trunk.members), learner.loss.meta_classes.shape[0]) == (2, 2)
    assert run("validate", "--ckpt_path", best, "--trust", "papers")[0] == 0
