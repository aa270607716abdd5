"""The LightningModule: trunk -> embedder -> L2 normalisation -> miner and loss."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Int
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError, refuse_below
from levelfield.losses.base import LossFactory, MetricLoss, MetricLossFactory
from levelfield.miners import Miner
from levelfield.models import LinearEmbedder
from levelfield.models.adapters import LoRA, adapted
from levelfield.models.embedder_start import EmbedderInit, check_can_start
from levelfield.models.embedders import check_embedder
from levelfield.models.layers import recompute_activations
from levelfield.models.trunks import as_trunk
from levelfield.regularizers import Regularizer
from levelfield.runtime.process_group import leave_group_at_exit, stay_in_group
from levelfield.training.batches import Batch, gather_rows, samples_of
from levelfield.training.callbacks import BestEpoch, RecordOpening, RetrievalValidation
from levelfield.training.callbacks.best_epoch import default_checkpoint
from levelfield.training.checkpoint import add_own_part, import_spec, load_learner
from levelfield.training.features import TrunkExtractor, check_features
from levelfield.training.frozen_trunk import keep_frozen
from levelfield.training.gradient_caching import check_chunks, embed_in_chunks
from levelfield.training.loss_factory import check_call, make_loss, supplied_arguments
from levelfield.training.objective import TRAIN_LOSS, check_regularizer, objective
from levelfield.training.own_learner import learner_class
from levelfield.training.parameter_groups import adamw, parameter_groups
from levelfield.training.start import start
from levelfield.training.step import UncheckedLosses, seed_draws
from levelfield.training.sync_batch_norm import synchronize_batch_norm
from levelfield.training.weight_averaging import average_whole, forget_average, save_average

OptimizerFactory = Callable[[Iterable], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


class MetricLearner(LightningModule):
    """Learns embeddings with any metric loss.

    A plain Trainer fits it: the learner brings `RetrievalValidation`, which logs `val/map_at_r`, `BestEpoch`, which has
    the Trainer's default checkpoint keep the best epoch, and `RecordOpening`, which keeps the ledger of the test
    classes, unless the Trainer has its own. Loaders yield (samples, labels),
    (samples, labels, index) or dictionaries with these keys, where index is the position in the data set.

    Args:
        trunk: network that turns samples into features: one of ours, or any module with an attribute `num_features`.
        loss: a loss of ours, or any module with `forward(embeddings, labels)`. A loss with class weights is given as a
            class or partial; whatever the class, arguments named `num_classes` and `embedding_size` are supplied once
            the training classes are known.
        embedder: class, built with the trunk's number of features and `embedding_size`.
        embedding_size: length D of an embedding.
        miner: chooses the pairs or triplets of a batch that the loss sees.
        normalize: whether embeddings are L2-normalised before the loss and for retrieval.
        distance: what retrieval ranks by; euclidean is for methods whose embeddings stay raw, hamming keeps the signs
            alone, a bit each, poincare is `HyperbolicCrossEntropyLoss`'s, of raw embeddings mapped into its ball.
        freeze_batch_norm: keeps the trunk's batch norm layers in eval mode; their scale and shift still train.
        freeze_trunk: the trunk stays as it is, in eval mode and without gradients; only embedder and loss learn.
        optimizer: class; its groups carry the rates below.
        trunk_lr: learning rate of the trunk.
        embedder_lr: learning rate of the embedder, and of each weight that is of neither trunk nor loss.
        loss_lr: learning rate of the loss' own weights (class weights, learnt margins).
        weight_decay: of all but the loss.
        loss_weight_decay: of the loss' own weights.
        lr_scheduler: class; its arguments count epochs, or steps.
        lr_scheduler_interval: whether it moves on after each `epoch` or each `step` of the optimizer.
        seed: of the random choices in dropout, losses and miners.
        num_features: length of a feature vector, for a trunk that does not say so itself.
        embedder_init: where a linear embedder starts: at random weights; as a fit begins, at the PCA of the training
            samples' features, or of these whitened within the training classes.
        chunk_size: of how many samples a training step keeps the activations at a time, for batches larger than memory
            (docs/scale.md): the same gradients, for one more pass through the trunk. None keeps all.
        adapter: learns in the trunk, whose own weights stay as they are (docs/trunks.md).
        layer_decay: factor on `trunk_lr` from each layer of the trunk to the one before it (docs/trunks.md).
        gradient_checkpointing: keeps what goes into the trunk's blocks alone, for one more pass through them.
        regularizer: a penalty beside the loss, times its weight, on where embeddings or class weights lie.

    Attributes:
        checkpoint_path: the file that the learner was loaded from; None once it is trained.

    Raises:
        UserError: a class-weight loss without data, a trunk of unknown length, labels that the loss cannot take, or
            nothing that could learn.
        TrainingFailed: a loss that is not finite.

    Example:
        >>> from levelfield.losses import ArcFaceLoss
        >>> from levelfield.models import TimmTrunk
        >>> learner = MetricLearner(TimmTrunk("resnet10t", weights=None), loss=ArcFaceLoss, embedding_size=64)
        >>> learner(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    checkpoint_path: Path | None = None
    _trains_when_fitted: Iterable[nn.Module] = ()

    def __init__(
        self,
        trunk: nn.Module,
        loss: MetricLossFactory | LossFactory,
        embedder: Callable[[int, int], nn.Module] = LinearEmbedder,
        embedding_size: int = 128,
        miner: Miner | nn.Module | None = None,
        normalize: bool = True,
        distance: Literal["cosine", "euclidean", "hamming", "poincare"] = "cosine",
        freeze_batch_norm: bool = True,
        optimizer: OptimizerFactory = adamw,
        trunk_lr: float = 1e-4,
        embedder_lr: float = 1e-3,
        loss_lr: float = 1e-2,
        weight_decay: float = 1e-4,
        loss_weight_decay: float = 0.0,
        lr_scheduler: SchedulerFactory | None = None,
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        seed: int = 0,
        num_features: int | None = None,
        freeze_trunk: bool = False,
        embedder_init: EmbedderInit = "random",
        chunk_size: int | None = None,
        adapter: LoRA | None = None,
        layer_decay: float = 1.0,
        gradient_checkpointing: bool = False,
        regularizer: Regularizer | None = None,
    ) -> None:
        super().__init__()
        refuse_below(1, "model", embedding_size=embedding_size, chunk_size=chunk_size)
        refuse_below(0, "model", trunk_lr=trunk_lr, embedder_lr=embedder_lr, loss_lr=loss_lr)
        refuse_below(
            0, "model", weight_decay=weight_decay, loss_weight_decay=loss_weight_decay, layer_decay=layer_decay
        )
        self.trunk = adapted(as_trunk(trunk, num_features), adapter, freeze_trunk)
        if freeze_trunk:
            self.trunk.requires_grad_(False)
        elif gradient_checkpointing:
            recompute_activations(self.trunk, freeze_batch_norm)
        self.embedder = embedder(self.trunk.num_features, embedding_size)
        check_can_start(self.embedder, embedder_init)
        self.embedder_init = embedder_init
        self._has_started = False
        self.embedding_size = embedding_size
        self.loss: nn.Module | None = loss if isinstance(loss, nn.Module) else None
        self.miner = miner
        self.normalize = normalize
        self.distance = distance
        self.freeze_batch_norm = freeze_batch_norm
        self.freeze_trunk = freeze_trunk
        self.chunk_size = chunk_size
        self.regularizer = regularizer
        self.seed = seed
        self.num_classes: int | None = None
        self._unchecked = UncheckedLosses()
        self._loss_factory = None if isinstance(loss, nn.Module) else loss
        if self._loss_factory is not None and "num_classes" not in supplied_arguments(self._loss_factory):
            self.loss, self._loss_factory = make_loss(self._loss_factory, None, embedding_size), None
        self._random_state = torch.get_rng_state()
        self._optimizer_factory = optimizer
        self._scheduler_factory = lr_scheduler
        self._scheduler_interval = lr_scheduler_interval
        self._layer_decay = layer_decay
        self._rates = {
            "trunk": {"lr": trunk_lr, "weight_decay": weight_decay},
            "embedder": {"lr": embedder_lr, "weight_decay": weight_decay},
            "loss": {"lr": loss_lr, "weight_decay": loss_weight_decay},
        }
        own = None if type(self) is MetricLearner else import_spec(type(self))
        self.save_hyperparameters(
            {
                "trunk": import_spec(trunk),
                "loss": import_spec(loss),
                "embedder": import_spec(embedder),
                "embedding_size": embedding_size,
                "normalize": normalize,
                "distance": distance,
                "freeze_batch_norm": freeze_batch_norm,
                "seed": seed,
                "num_features": num_features,
                "freeze_trunk": freeze_trunk,
                "embedder_init": embedder_init,
                "adapter": import_spec(adapter),
                **({"learner": own["class_path"]} if own else {}),
            }
        )
        self.train()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # each hook, fifty a step: nn.Module would look for weights in Lightning's note
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        keep_frozen(self.trunk, self.freeze_trunk, self.freeze_batch_norm)
        return self

    def forward(self, samples: Any) -> Float[Tensor, "batch embedding"]:
        """Embeddings of a batch of samples, L2-normalised if `normalize`."""
        if not self.freeze_trunk:
            return self.embed_features(self.trunk(samples))
        with torch.no_grad():
            features = self.trunk(samples)
        return self.embed_features(features)

    def embed_features(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        """Embeddings of what the trunk has made of a batch of samples, L2-normalised if `normalize`."""
        embeddings = self.embedder(features)
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return nn.functional.normalize(embeddings) if self.normalize else embeddings

    def embed_batch(self, batch: Batch) -> Float[Tensor, "batch embedding"]:
        """Embeddings of a batch of samples, or of features; in training by chunks of `chunk_size` samples."""
        number, size = len(batch.labels), self.chunk_size
        if size is not None and number > size and torch.is_grad_enabled() and not self.freeze_trunk:
            return embed_in_chunks(self, batch.samples, number, size)
        return self.embed_features(batch.samples) if batch.are_features else self(batch.samples)

    def setup(self, stage: str) -> None:
        stay_in_group(self._random_state)
        datamodule = getattr(self.trainer, "datamodule", None)
        if stage != "predict" and isinstance(datamodule, MetricDataModule) and datamodule.features:
            self.check_features()
            datamodule.use_features(TrunkExtractor(self.trunk, self.trainer.strategy.root_device))
        if stage != "fit":
            return
        self._train_again()
        is_new = self.checkpoint_path is None and self.trainer.ckpt_path is None
        self.checkpoint_path = None
        self.trunk.check_takes(getattr(datamodule, "dataset", None))
        num_classes = getattr(datamodule, "num_train_classes", None)
        self.build_loss(num_classes)
        if self.loss is None:
            raise UserError("this checkpoint was loaded without its loss: train a new learner with --model.loss")
        self.check_parts()
        check_chunks(self)
        if is_new and not self._has_started:
            start(self, datamodule)
        self._has_started = True
        average_whole(self)

    def _train_again(self) -> None:
        """Puts a loaded learner back into training mode, except parts that do not learn, such as a teacher."""
        if not self.training:
            for module in self._trains_when_fitted:
                module.training = True
            for part in self.children():
                weights = list(part.parameters())
                if weights and not any(weight.requires_grad for weight in weights):
                    part.eval()
        self._trains_when_fitted = ()

    def configure_model(self) -> None:
        synchronize_batch_norm(self)

    def teardown(self, stage: str) -> None:
        forget_average(self)
        leave_group_at_exit()

    def check_features(self) -> None:
        """Raises UserError for a learner that cannot be trained on features of its trunk (`--data.features`)."""
        check_features(self, MetricLearner.forward)

    def check_parts(self) -> None:
        """Raises UserError for a loss, miner, regularizer or embedder that the learner cannot call as it does."""
        assert self.loss is not None
        check_call(self.loss, self.miner)
        check_regularizer(self)
        check_embedder(self.embedder, self.trunk.num_features, self.embedding_size)

    def configure_callbacks(self) -> list[Callback]:
        """What a Trainer would silently lack: validation scores, the best epoch, and the ledger of the test classes."""
        given = self.trainer.callbacks  # type: ignore[attr-defined]
        tests = self.trainer.state.fn == TrainerFn.TESTING
        keeps_last = self.trainer.state.fn == TrainerFn.FITTING and default_checkpoint(self.trainer) is not None
        kinds = (
            RetrievalValidation,
            *([BestEpoch] if keeps_last else []),
            *([RecordOpening] if tests else []),
        )
        return [kind() for kind in kinds if not any(isinstance(callback, kind) for callback in given)]

    def build_loss(self, num_classes: int | None) -> None:
        """Gives the loss the number of training classes; does nothing when it was given before."""
        if self.num_classes is not None or (num_classes is None and self._loss_factory is None):
            return
        if num_classes is None:
            raise UserError(
                "this loss needs the number of classes: fit with a MetricDataModule, or build the loss first"
            )
        self.num_classes = num_classes
        if self._loss_factory is not None:
            self.loss = make_loss(self._loss_factory, num_classes, self.embedding_size)
        if isinstance(self.loss, MetricLoss):
            self.loss.set_num_classes(num_classes)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        labels = (read := Batch.read(batch)).labels
        # Of the batches whose gradients are accumulated into one step, each draws its own.
        draw = ("step", self.seed, self.global_step, batch_idx % self.trainer.accumulate_grad_batches)
        seed_draws(self.device, *draw, "trunk", self.global_rank)
        embeddings = self.embed_batch(read)
        # Each process computes the loss of the whole batch. The gather's backward sums over processes, DDP divides by
        # their number: the gradient is exactly that of one process.
        embeddings, labels = gather_rows(self, embeddings, sync_grads=True), gather_rows(self, labels)
        seed_draws(self.device, *draw, "loss")
        kind = embeddings.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            losses = objective(self, embeddings, labels)
        self._unchecked.tell(self, losses, len(labels))
        return losses[TRAIN_LOSS]

    def compute_loss(self, embeddings: Float[Tensor, "batch embedding"], labels: Int[Tensor, " batch"]) -> Tensor:
        """The loss of a whole (gathered) batch, with the miner's choice if there is one."""
        assert self.loss is not None
        if self.miner is None:
            return self.loss(embeddings, labels)
        return self.loss(embeddings, labels, self.miner(embeddings, labels))

    def on_validation_start(self) -> None:
        self._unchecked.check()

    def on_train_epoch_end(self) -> None:
        self._unchecked.check()

    def validation_step(self, batch: Any) -> dict[str, Tensor | None]:
        read = Batch.read(batch)
        return {"embeddings": self.embed_batch(read), "labels": read.labels, "index": read.index}

    def test_step(self, batch: Any) -> dict[str, Tensor | None]:
        return self.validation_step(batch)

    def predict_step(self, batch: Any) -> dict[str, Tensor | None]:
        samples, index = samples_of(batch)
        return {"embeddings": self(samples), "index": index}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self._optimizer_factory(parameter_groups(self, self._rates, self._layer_decay))
        if self._scheduler_factory is None:
            return optimizer
        schedule = {"scheduler": self._scheduler_factory(optimizer), "interval": self._scheduler_interval}
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # type: ignore[return-value]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        save_average(self, checkpoint)
        add_own_part(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.build_loss(checkpoint.get("levelfield", {}).get("num_classes"))

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = "cpu",
        strict: bool = True,
        trust: Iterable[str] = (),
        **parts: Any,
    ) -> Self:
        """The learner of a checkpoint, from nothing but the checkpoint: no command line, no weight file, no data.

        It is in eval mode. A fit puts it back into training mode, except modules that its `__init__` put into eval mode
        and parts without a weight that learns.

        A learner of your own that the checkpoint names comes back as itself, or as the class that this is called on.
        It runs no code but that of levelfield and of the libraries it stands on, of modules of your own that are
        imported already, and of those that `trust` names (docs/security.md).

        Args:
            map_location: device of the tensors.
            strict: whether the tensors must be just those of the learner.
            trust: modules, or classes, that the checkpoint may use beside the known libraries', e.g. `["my_loss"]`.
            parts: `trunk`, `embedder`, `loss`, `miner` or `regularizer` as MetricLearner takes them, in place of the
                checkpoint's: for those that were objects in Python, which a checkpoint cannot name.

        Raises:
            UserError: no such file, not a checkpoint of levelfield, a class that nobody trusts or that is of the wrong
                kind, or tensors of another architecture.
        """
        kind_of = partial(learner_class, base=cls) if cls is MetricLearner else lambda named: cls
        learner = load_learner(checkpoint_path, kind_of, map_location, strict, trust, parts)
        assert isinstance(learner, cls)
        learner._trains_when_fitted = [module for module in learner.modules() if module.training]
        return learner.eval()
