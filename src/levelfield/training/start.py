"""The start of a fit: build the loss, check the parts, and set the weights that are initialized from the data."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses.base import pass_num_classes
from levelfield.losses.classification import ClassificationLoss
from levelfield.losses.weighted_sum import WeightedSum
from levelfield.models.embedder_init import OPTION, start_embedder
from levelfield.models.embedders import check_embedder
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.initial_weights import check_seen_classes, check_trained_classes, has_same_classes
from levelfield.training.loss_factory import loss_attribute, make_loss
from levelfield.training.weight_averaging import average_whole

ROWS = 4096  # features per batch of the embedder
# Callbacks of Lightning that do not suit a learner, and why.
UNSUITABLE = {
    "BackboneFinetuning": "a learner has no backbone; HeadFirst trains embedder and loss before the trunk",
    "BatchSizeFinder": "the loss depends on the batch; give --data.batch_size, and GradientCaching to save memory",
    "LearningRateFinder": "it finds one rate; give --model.trunk_lr, --model.embedder_lr and --model.loss_lr",
}


def prepare(learner: Any, stage: str) -> None:
    """Prepare a `MetricLearner` for a stage of its Trainer, except for weights that start at the data.

    Raises:
        UserError: a part does not fit the others or the data, the weights have seen a test class, or the strategy
            shards the weights (FSDP2, tensor parallelism).
    """
    datamodule: Any = getattr(learner.trainer, "datamodule", None)
    if stage != "predict" and isinstance(datamodule, MetricDataModule) and datamodule.features:
        check_features(learner)
        datamodule.use_features(TrunkExtractor(learner.trunk, learner.trainer.strategy.root_device))
    if stage == "validate" and learner.trained_on is not None:
        check_seen_classes(learner.trained_on, datamodule, learner.checkpoint_path or "the learner")
    if stage != "fit":
        return
    for module in learner._trains_when_fitted if not learner.training else ():  # of a loaded learner
        module.training = True
    learner._trains_when_fitted = ()
    strategy = learner.trainer.strategy
    if isinstance(strategy, ModelParallelStrategy):
        raise UserError("--trainer.strategy ModelParallelStrategy: a metric loss needs the whole batch; give ddp")
    if isinstance(strategy, DDPStrategy):  # buffers need no broadcast in each step unless batch norm trains
        trains = any(isinstance(part, _BatchNorm) and part.training for part in learner.modules())
        usual = {"broadcast_buffers": trains, "gradient_as_bucket_view": True}
        strategy._ddp_kwargs = {**usual, **strategy._ddp_kwargs}
    for name, reason in learner._left_out.items():
        rank_zero_warn(f"the fit goes on without the {name} of '{learner.checkpoint_path}': {reason}")
    learner.trunk.check_takes(getattr(datamodule, "dataset", None))
    if isinstance(datamodule, MetricDataModule):
        check_trained_classes(learner, datamodule)
        learner.trained_on = datamodule.identity()
        if datamodule.samples_per_class is None:
            made_of = learner.loss or learner.loss_factory
            datamodule.usual_samples_per_class = loss_attribute(made_of, "data.samples_per_class")
    learner.build_loss(getattr(datamodule, "num_train_classes", None))
    check_parts(learner)
    if not learner.has_weights:
        _warn_of_traps(learner, datamodule)
    learner.checkpoint_path, learner._left_out = None, {}
    average_whole(learner)


def build_loss(learner: Any, num_classes: int | None) -> None:
    """Build a learner's loss for this number of training classes, unless it is already built.

    Raises:
        UserError: the loss needs the number, and it is unknown.
    """
    if learner.num_classes is not None or (num_classes is None and learner.loss is not None):
        return
    if num_classes is None:
        raise UserError("this loss needs the number of classes: fit with a MetricDataModule, or call build_loss first")
    learner.num_classes = num_classes
    if learner.loss is None:
        with torch.random.fork_rng(devices=[]):  # earlier draws differ between one process and several
            torch.default_generator.manual_seed(seed_of("loss", learner.seed))
            learner.loss = make_loss(learner.loss_factory, num_classes, learner.embedding_size)
    pass_num_classes(nn.ModuleList([learner.loss]), num_classes)


def check_same_classes(learner: Any, data: Mapping[str, Any] | None) -> None:
    """Check the data of a checkpoint that a Trainer restores to continue a fit.

    Raises:
        UserError: the classes are others, so the weights of the loss and the optimizer's state mean something else.
    """
    datamodule, path = learner.trainer.datamodule, learner.trainer.ckpt_path
    if data is None or not isinstance(datamodule, MetricDataModule) or has_same_classes(data, datamodule):
        return
    raise UserError(f"fit(ckpt_path='{path}') continues on other classes: give the same data, or load_from_checkpoint")


class StartAtData(Callback):
    """Sets the weights that start at the training data: the embedder's, and class weights at class means.

    Not if the learner has others by now: Lightning has restored a checkpoint then. The learner's own hook of this name
    is left to its subclasses.

    Raises:
        UserError: the data are not a MetricDataModule, or the projection cannot be computed from the features.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if not hasattr(pl_module, "has_weights"):  # a plain module
            return
        if isinstance(trainer.strategy, DDPStrategy):  # which then leaves buffers alone
            for buffer in pl_module.buffers():
                torch.distributed.broadcast(buffer, 0)
        if not pl_module.has_weights:
            losses = [each for each in with_class_weights(pl_module.loss) if each.starts_at_class_means]
            if losses or pl_module.embedder_init != "random":
                self._start(pl_module, losses)
        pl_module.has_weights = True

    def _start(self, learner: Any, losses: list[ClassificationLoss]) -> None:
        """The embedder, then the losses. Every process sees all samples, and takes the weights of the first."""
        datamodule: Any = getattr(learner.trainer, "datamodule", None)
        if not isinstance(datamodule, MetricDataModule):
            option = "--model.loss.weight_init" if learner.embedder_init == "random" else OPTION
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


def with_class_weights(loss: Any) -> list[ClassificationLoss]:
    """All losses with class weights inside a loss, including itself."""
    return [part for part in loss.modules() if isinstance(part, ClassificationLoss)]


def check_callbacks(learner: Any) -> None:
    """Raise UserError for a callback that does not suit a `MetricLearner` with its own optimizer."""
    for name in (type(callback).__name__ for callback in learner.trainer.callbacks):
        if name in UNSUITABLE and not (name == "BackboneFinetuning" and hasattr(learner, "backbone")):
            raise UserError(f"--trainer.callbacks {name}: {UNSUITABLE[name]}")


def check_features(learner: Any) -> None:
    """Raise UserError unless features are constant in a training: nothing before the embedder changes."""
    if not hasattr(learner, "embed_features"):
        raise UserError("--data.features needs a MetricLearner: leave it out")
    if not learner.freeze_trunk:
        raise UserError("--data.features needs a frozen trunk: give --model.freeze_trunk true, or leave it out")
    own = getattr(type(learner).forward, "__globals__", {}).get("__name__")  # a decorator may copy `__module__`
    if own != "levelfield.training.learner":  # of MetricLearner, which imports this file
        raise UserError(f"--data.features skips {type(learner).__name__}.forward: override embed_features instead")


def check_parts(learner: Any) -> None:
    """Check loss, miner, regularizer and embedder of a `MetricLearner`.

    Raises:
        UserError: a part that the learner cannot call, or a regularizer that needs points the learner does not have.
    """
    if type(learner.loss) is nn.Identity:  # of `load_learner`
        raise UserError("the learner was loaded without its loss: give load_from_checkpoint(..., loss=...)")
    check_call(learner.loss, learner.miner)
    check_embedder(learner.embedder, learner.trunk.num_features, learner.embedding_size)
    if (regularizer := learner.regularizer) is None:
        return
    option = f"--model.regularizer {type(regularizer).__name__}"
    if regularizer.of == "raw_embeddings" and learner.normalize:
        raise UserError(f"{option} needs raw embeddings: give --model.normalize false")
    name, losses = type(learner.loss).__name__, with_class_weights(learner.loss)
    if regularizer.of == "class_weights" and len(losses) != 1:
        raise UserError(f"{option} needs one set of class weights, and --model.loss {name} has {len(losses) or 'none'}")


def check_call(loss: nn.Module, miner: nn.Module | None) -> None:
    """Raise UserError unless loss and miner take a batch, and the loss takes the miner's selection."""
    if isinstance(loss, WeightedSum):
        for each in loss.losses.values():
            check_call(each, miner)
        return
    for part, module in (("loss", loss), ("miner", miner)):
        if module is not None and not _takes(module, 2):
            raise UserError(f"--model.{part} {type(module).__name__}: its forward must take (embeddings, labels)")
    if miner is not None and not _takes(loss, 3):
        raise UserError(f"--model.loss {type(loss).__name__} cannot use --model.miner {type(miner).__name__}: drop it")


def check_numbers(learner: Any, **returned: Any) -> None:
    """Check what the learner's `loss` and `regularizer` returned in the first step.

    Raises:
        UserError: it is not one number, or the loss lacks a gradient.
    """
    for part, value in returned.items():
        option = f"--model.{part} {type(getattr(learner, part)).__name__}"
        if not (isinstance(value, Tensor) and value.numel() == 1):
            kind = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{option} returned a {kind}: return one number, a tensor of shape ()")
        if part == "loss" and torch.is_grad_enabled() and not value.requires_grad:
            raise UserError(f"{option} returned a number without a gradient: compute it with torch, without detach()")


def _warn_of_traps(learner: Any, datamodule: Any) -> None:
    """Warn about parts that silently train worse or do not resume.

    These are a trunk with random weights and frozen batch norm, plain tensors of a user's part, and classes of the
    program itself, which no other program can import.
    """
    parts = [learner, getattr(learner.trunk, "module", learner.trunk), learner.embedder, learner.miner]
    parts += [*learner.loss.modules(), learner.regularizer, datamodule]
    parts += [getattr(datamodule, name, None) for name in ("dataset", "sampler", "transforms")]
    kinds = [part if isinstance(part, type) else type(part) for part in parts]
    if own := [kind.__name__ for kind in dict.fromkeys(kinds) if kind.__module__ == "__main__"]:
        rank_zero_warn(f"{', '.join(own)}: move it to a module, or no command can load the checkpoint")
    frozen = [part for part in learner.trunk.modules() if isinstance(part, _BatchNorm) and not part.training]
    if frozen and learner.trunk.weights_origin == "random" and not learner.freeze_trunk:
        rank_zero_warn("the trunk starts at random weights, batch norm frozen: give --model.freeze_batch_norm false")
    for name in ("embedder", "loss", "miner", "regularizer"):
        part = getattr(learner, name)
        for module in part.modules() if isinstance(part, nn.Module) else ():
            for key in [key for key, value in vars(module).items() if isinstance(value, Tensor)]:
                rank_zero_warn(f"--model.{name} {type(module).__name__}: self.{key} is no buffer: use register_buffer")


def _takes(module: nn.Module, arguments: int) -> bool:
    try:
        inspect.signature(module.forward).bind(*(None,) * arguments)
    except TypeError:
        return False
    return True
