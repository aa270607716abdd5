"""Start of a fit: build the loss, check the parts, and set weights that are initialized from the data."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.training.checks import check_parts, warn_of_traps, with_class_weights
from levelfield.training.embed import embed
from levelfield.training.embedder_start import start_embedder
from levelfield.training.initial_weights import check_trained_classes
from levelfield.training.make_loss import of_loss
from levelfield.training.weight_averaging import average_whole

ROWS = 4096  # features per batch of the embedder


def start_fit(learner: Any, datamodule: Any) -> None:
    """Prepare a `MetricLearner` for its first step, except for weights that start at the data.

    Args:
        datamodule: datamodule of the Trainer; None for loaders.

    Raises:
        UserError: a part does not fit the others or the data, or the weights have seen a test class.
    """
    _train_again(learner)
    _prepare_processes(learner)
    for name, reason in learner._left_out.items():
        rank_zero_warn(
            f"'{learner.checkpoint_path}' does not have its {name}: {reason}; the fit goes on without it unless you "
            f"give it, MetricLearner.load_from_checkpoint(..., {name}={name})",
            category=UserWarning,
        )
    learner.trunk.check_takes(getattr(datamodule, "dataset", None))
    if isinstance(datamodule, MetricDataModule):
        check_trained_classes(learner, datamodule)
        learner.trained_on = datamodule.identity()
        if datamodule.samples_per_class is None:
            made_of = learner.loss or learner.loss_factory
            datamodule.usual_samples_per_class = of_loss(made_of, "data.samples_per_class")
    learner.build_loss(getattr(datamodule, "num_train_classes", None))
    check_parts(learner)
    if not learner.has_weights:
        warn_of_traps(learner, datamodule)
    learner.checkpoint_path, learner._left_out = None, {}
    average_whole(learner)


def _prepare_processes(learner: Any) -> None:
    """Have DDP broadcast no buffers in each step unless batch norm trains, and keep gradients in its buckets.

    Raises:
        UserError: FSDP2 or tensor parallelism.
    """
    strategy = learner.trainer.strategy
    if isinstance(strategy, ModelParallelStrategy):
        raise UserError(
            "--trainer.strategy ModelParallelStrategy: a metric loss needs the whole batch and whole weights, and a "
            "trunk of this size fits one GPU: give ddp, and for memory --config trainer/low_memory"
        )
    if isinstance(strategy, DDPStrategy):
        trains = any(isinstance(part, _BatchNorm) and part.training for part in learner.modules())
        strategy._ddp_kwargs = {
            **{"broadcast_buffers": trains, "gradient_as_bucket_view": True},
            **strategy._ddp_kwargs,
        }


def _train_again(learner: Any) -> None:
    """Put a loaded learner into training mode, except parts that do not train, such as a teacher."""
    if not learner.training:
        for module in learner._trains_when_fitted:
            module.training = True
        for part in learner.children():
            weights = list(part.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                part.eval()
    learner._trains_when_fitted = ()


class StartAtData(Callback):
    """Sets the weights that start at the training data, unless the learner has others by now.

    Lightning has restored a checkpoint then. The learner's own hook of this name is left to its subclasses.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if isinstance(trainer.strategy, DDPStrategy):  # which then leaves buffers alone
            for buffer in pl_module.buffers():
                torch.distributed.broadcast(buffer, 0)
        if not pl_module.has_weights:
            start_at_data(pl_module)
        pl_module.has_weights = True


def start_at_data(learner: Any) -> None:
    """Initialize the embedder from the training features, then class weights from class means.

    Every process sees all training samples, and takes the weights of the first.

    Raises:
        UserError: the data are not a MetricDataModule, or the projection cannot be computed from the features.
    """
    datamodule: Any = getattr(learner.trainer, "datamodule", None)
    losses = [each for each in with_class_weights(learner.loss) if each.starts_at_class_means]
    if learner.embedder_init == "random" and not losses:
        return
    if not isinstance(datamodule, MetricDataModule):
        option = "--model.loss.weight_init" if learner.embedder_init == "random" else "--model.embedder_init"
        raise UserError(f"{option} needs the training samples without augmentation: fit with a MetricDataModule")
    device = learner.trainer.strategy.root_device
    features, labels, _ = embed(learner.trunk, datamodule.train_samples(), device=device)
    if learner.embedder_init != "random":
        start_embedder(learner.embedder, learner.embedder_init, features, labels)
    if losses:
        parts = zip(features.split(ROWS), labels.split(ROWS), strict=True)
        batches: Any = [{"features": some, "labels": their} for some, their in parts]
        embeddings = embed(learner, DataLoader(batches, batch_size=None), device=device).embeddings
        for loss in losses:
            loss.start_at_class_means(embeddings, labels)
    for part in (learner.embedder, learner.loss):
        for weight in (*part.parameters(), *part.buffers()):
            weight.data.copy_(learner.trainer.strategy.broadcast(weight.data.cpu()))
    average_whole(learner)
