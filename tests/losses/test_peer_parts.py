"""Every loss and miner of pytorch-metric-learning 2.9 trains in our learner, or stands here with the reason."""

import warnings
from functools import partial

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer
from pytorch_metric_learning import losses, miners
from torch import nn

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.training.learner import MetricLearner

EMBEDDING_SIZE = 8
NO_LOSS = {  # of no use by themselves
    "BaseMetricLossFunction": "a base class",
    "BaseLossWrapper": "a base class",
    "GenericPairLoss": "a base class",
    "EmbeddingRegularizerMixin": "a base class",
    "WeightRegularizerMixin": "a base class",
    "SelfSupervisedLoss": "compares with ref_emb, a second view of the batch, which our batches do not have",
    "VICRegLoss": "compares with ref_emb, a second view of the batch, which our batches do not have",
    "ManifoldLoss": "takes no labels, and a metric loss is called with them",
    "DynamicSoftMarginLoss": "keeps its histogram's graph from step to step: no loop's second backward works",
}
NO_MINER = {
    "BaseMiner": "a base class",
    "EmbeddingsAlreadyPackagedAsTriplets": "takes batches that are lists of triplets; ours are M of a class",
}
ARGUMENTS = {  # of configurations
    "P2SGradLoss": {"descriptors_dim": EMBEDDING_SIZE},
    "RankedListLoss": {"margin": 0.4, "Tn": 1},
    "IntraPairVarianceLoss": {"pos_eps": 0.0, "neg_eps": 0.0},  # at its defaults it is 0 at first
}
WRAPPERS = {  # of other losses, which only Python can give
    "CrossBatchMemory": partial(losses.CrossBatchMemory, loss=losses.ContrastiveLoss()),
    "MultipleLosses": losses.MultipleLosses([losses.ContrastiveLoss(), losses.NTXentLoss()]),
}
WEIGHTS = {  # have a weight for each class
    "ArcFaceLoss", "CosFaceLoss", "LargeMarginSoftmaxLoss", "NormalizedSoftmaxLoss", "P2SGradLoss", "ProxyAnchorLoss",
    "ProxyNCALoss", "SoftTripleLoss", "SphereFaceLoss", "SubCenterArcFaceLoss",
}  # fmt: skip


class ConvTrunk(nn.Module):
    """Somebody's module, of a few numbers."""

    num_features = 12

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 12, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images):
        return self.layers(images)


@pytest.fixture(scope="module")
def data() -> MetricDataModule:
    transforms = ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False)
    return MetricDataModule(
        Glyphs(num_classes=40, image_size=32), batch_size=16, steps_per_epoch=5, transforms=transforms
    )


def configured(**parts) -> MetricLearner:
    """The learner as a configuration makes it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MetricLearner, "model", fail_untyped=False)
    trunk = {"class_path": f"{__name__}.ConvTrunk"}
    config = {"model": {"trunk": trunk, "embedding_size": EMBEDDING_SIZE, **parts}}
    return parser.instantiate(parser.parse_object(config)).model


def train(learner: MetricLearner, data: MetricDataModule) -> set[str]:
    """Train five steps; the parts of the learner whose parameters moved."""
    data.setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice, and the peer's
        learner.build_loss(data.num_train_classes)
        before = {name: value.detach().clone() for name, value in learner.named_parameters()}
        trainer = Trainer(
            accelerator="cpu", max_steps=5, limit_val_batches=0, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(learner, datamodule=data)
    assert trainer.global_step == 5
    assert all(torch.isfinite(value).all() for value in learner.parameters())
    return {
        name.partition(".")[0] for name, value in learner.named_parameters() if not torch.equal(value, before[name])
    }


def names(module) -> list[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, type))


@pytest.mark.parametrize("name", [name for name in names(losses) if name not in NO_LOSS])
def test_every_loss_trains(name: str, data: MetricDataModule) -> None:
    if name in WRAPPERS:
        learner = MetricLearner(ConvTrunk(), WRAPPERS[name], embedding_size=EMBEDDING_SIZE)
    else:
        spec = {"class_path": f"pytorch_metric_learning.losses.{name}", "init_args": ARGUMENTS.get(name, {})}
        learner = configured(loss=spec)
    moved = train(learner, data)
    assert isinstance(learner.loss, getattr(losses, name))
    assert moved == {"trunk", "embedder", *(["loss"] if name in WEIGHTS else [])}
    if name in WEIGHTS:
        sizes = {size for weight in learner.loss.parameters() for size in weight.shape}
        assert EMBEDDING_SIZE in sizes
        assert any(size % 15 == 0 for size in sizes)  # 20 of the 40 letters are for training, a fourth validates


@pytest.mark.parametrize("name", [name for name in names(miners) if name not in NO_MINER])
def test_every_miner_trains(name: str, data: MetricDataModule) -> None:
    learner = configured(
        loss={"class_path": "levelfield.losses.ContrastiveLoss"},
        miner={"class_path": f"pytorch_metric_learning.miners.{name}"},
    )
    assert train(learner, data) == {"trunk", "embedder"}
    assert isinstance(learner.miner, getattr(miners, name))


def test_dynamic_soft_margin_fails_in_the_peers_own_loop() -> None:
    torch.manual_seed(2)  # some draws fail in its histogram already
    loss, layer, labels = losses.DynamicSoftMarginLoss(), nn.Linear(4, 3), torch.arange(8) % 2
    loss(layer(torch.randn(8, 4)), labels).backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss(layer(torch.randn(8, 4)), labels).backward()


def test_what_is_left_out_is_there() -> None:
    assert set(NO_LOSS) | set(ARGUMENTS) | set(WRAPPERS) | WEIGHTS <= set(names(losses))
    assert set(NO_MINER) <= set(names(miners))
