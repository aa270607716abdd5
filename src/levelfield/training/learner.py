"""The LightningModule: trunk -> embedder -> L2 normalisation -> miner and loss."""

from __future__ import annotations  # so losses, miners and data sets need no import here; the parser resolves the names

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from jaxtyping import Float, Int
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from levelfield.core.errors import refuse_below
from levelfield.core.seeds import global_seed
from levelfield.models.embedders import LinearEmbedder
from levelfield.models.trunks import as_trunk
from levelfield.training.batches import Batch, gather_rows
from levelfield.training.import_paths import learner_arguments
from levelfield.training.loss_factory import is_normalized, make_loss, supplied_arguments
from levelfield.training.optimization import Optimization, check_names
from levelfield.training.steps import CheckFirstBatch, LogLosses, SeedSteps, seed_draws, step_key

if TYPE_CHECKING:
    from levelfield.losses.base import LossFactory, MetricLossFactory
    from levelfield.miners import Miner
    from levelfield.regularizers import Regularizer


def _start() -> Any:
    """`levelfield.training.start`, which imports the losses and data sets: this module needs none."""
    from levelfield.training import start

    return start


class MetricLearner(LightningModule):
    """Learns embeddings with any metric loss.

    A plain Trainer fits it. The learner adds callbacks that validate by retrieval, keep the best epoch, log the
    losses, seed each step, and record evaluations on the test classes (`levelfield.training.callbacks`). Loaders yield
    (samples, labels), (samples, labels, index) or dictionaries with these keys; index is the position in the data set.

    To change what a step computes, override `compute_loss`, `objective`, `embed_batch` or Lightning's `training_step`.

    Args:
        trunk: network from samples to features: a `Trunk`, or any module with an attribute `num_features`.
        loss: module with `forward(embeddings, labels)`. Give a loss with class weights as a class or partial: the
            learner passes `num_classes` and `embedding_size` once it knows the training classes.
        embedder: layers from features to embeddings: a class that takes the number of features and `embedding_size`.
        embedding_size: length of an embedding; None is the number of features.
        embedder_init: initial weights of a linear embedder: `random`, the `pca` of the training features, their
            `whitening` within the training classes, or the discriminants of these classes (`lda`).
        miner: selects the pairs or triplets of a batch for the loss.
        regularizer: penalty on embeddings or class weights, added to the loss.
        normalize: L2-normalize embeddings before the loss and for retrieval. None takes the attribute `normalize` of
            the loss class, or true.
        distance: distance for retrieval. `euclidean` is for embeddings that are not normalized, `hamming` compares
            their signs, `poincare` is for `HyperbolicCrossEntropyLoss`.
        freeze_trunk: train only embedder and loss; the trunk stays in eval mode.
        freeze_batch_norm: keep the batch norm layers of the trunk in eval mode; their scale and shift still train.
        seed: seed of dropout, losses and miners. None takes that of `seed_everything`, or 0.
        optimization: the fields of `Optimization`, each as an argument: `loss_lr=0.1`.

    Attributes:
        checkpoint_path: the file that the learner was loaded from; None once it is trained.

    Raises:
        UserError: a loss with class weights but no data, a trunk without `num_features`, labels that the loss cannot
            take, or nothing to train.

    Example:
        >>> from levelfield.losses import ArcFaceLoss
        >>> from levelfield.models import TimmTrunk
        >>> learner = MetricLearner(TimmTrunk("resnet10t", weights=None), loss=ArcFaceLoss, embedding_size=64)
        >>> learner(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    checkpoint_path: Path | None = None
    has_weights = False  # from a checkpoint or an earlier fit: nothing starts at the data
    trained_on: Mapping[str, Any] | None = None  # identity of the data; None before a fit, or with plain loaders
    _trains_when_fitted: Iterable[nn.Module] = ()
    _numbers_are_checked = False
    _left_out: Mapping[str, str] = MappingProxyType({})  # parts that its checkpoint could not name, with the reason

    def __init__(
        self,
        trunk: nn.Module,
        loss: MetricLossFactory | LossFactory,
        embedder: Callable[[int, int], nn.Module] = LinearEmbedder,
        embedding_size: int | None = 128,
        embedder_init: Literal["random", "pca", "whitening", "lda"] = "random",
        miner: Miner | nn.Module | None = None,
        regularizer: Regularizer | None = None,
        normalize: bool | None = None,
        distance: Literal["cosine", "euclidean", "hamming", "poincare"] = "cosine",
        freeze_trunk: bool = False,
        freeze_batch_norm: bool = True,
        seed: int | None = None,
        **optimization: Any,
    ) -> None:
        super().__init__()
        check_names(type(self), optimization)
        refuse_below(1, "model", embedding_size=embedding_size)
        self.trunk = as_trunk(trunk)
        if freeze_trunk:
            self.trunk.freeze()
        self.embedding_size: int = embedding_size or self.trunk.num_features
        self.embedder = embedder(self.trunk.num_features, self.embedding_size)
        self.embedder_init = embedder_init
        if embedder_init != "random":
            from levelfield.models.embedder_init import check_can_start

            check_can_start(self.embedder, embedder_init)
        self.normalize = is_normalized(loss, normalize)
        self.loss_factory = None if isinstance(loss, nn.Module) else loss
        self.loss: nn.Module | None = loss if isinstance(loss, nn.Module) else self.loss_without_classes()
        self.num_classes: int | None = None
        self.miner, self.regularizer, self.distance = miner, regularizer, distance
        self.freeze_trunk, self.freeze_batch_norm, self.seed = freeze_trunk, freeze_batch_norm, global_seed(seed)
        self.optimization = Optimization(**optimization)
        self.save_hyperparameters(learner_arguments(self, MetricLearner, trunk=trunk, loss=loss, embedder=embedder))
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.trunk.keep_frozen(self.freeze_trunk, self.freeze_batch_norm)
        return self

    def forward(self, samples: Any) -> Float[Tensor, "batch embedding"]:
        """Embeddings of a batch of samples, L2-normalised if `normalize`."""
        with torch.no_grad() if self.freeze_trunk else nullcontext():
            features = self.trunk(samples)
        return self.embed_features(features)

    def embed_features(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        """Embeddings of a batch of trunk features, L2-normalised if `normalize`."""
        embeddings = self.embedder(features)
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return nn.functional.normalize(embeddings) if self.normalize else embeddings

    def embed_batch(self, batch: Batch) -> Float[Tensor, "batch embedding"]:
        """Embeddings of a batch of samples, or of features; `GradientCaching` replaces this method in training."""
        return self.embed_features(batch.samples) if batch.are_features else self(batch.samples)

    def setup(self, stage: str) -> None:
        _start().prepare(self, stage)

    def build_loss(self, num_classes: int | None) -> None:
        """Build the loss for this number of training classes, unless it is already built."""
        _start().build_loss(self, num_classes)

    def loss_without_classes(self) -> nn.Module | None:
        """The loss; None if it needs the number of classes."""
        assert self.loss_factory is not None
        needs_classes = "num_classes" in supplied_arguments(self.loss_factory)
        return None if needs_classes else make_loss(self.loss_factory, None, self.embedding_size)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        read = Batch.read(batch)
        # Each process computes the loss of the whole batch. The gather's backward sums over processes and DDP divides
        # by their number, so the gradient is exactly that of one process.
        embeddings = gather_rows(self, self.embed_batch(read), sync_grads=True)
        labels = gather_rows(self, read.labels)
        seed_draws(self.device, *step_key(self.trainer, self, batch_idx), "loss")
        kind = embeddings.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            return self.objective(embeddings, labels)

    def objective(
        self, embeddings: Float[Tensor, "batch embedding"], labels: Int[Tensor, " batch"]
    ) -> dict[str, Tensor]:
        """The loss of the whole (gathered) batch as `loss`, and other numbers to log.

        Raises:
            UserError: a loss or penalty that is not one number, or a loss without a gradient.
        """
        found = {"loss": self.compute_loss(embeddings, labels)}
        if (regularizer := self.regularizer) is not None:
            points = embeddings
            if regularizer.of == "class_weights":
                points = _start().with_class_weights(self.loss)[0].class_weights
            found["regularizer"] = regularizer(points)
        if not self._numbers_are_checked:
            _start().check_numbers(self, **found)
            self._numbers_are_checked = torch.is_grad_enabled()
        if regularizer is None:
            return found
        penalty = found["regularizer"]
        return {"loss": found["loss"] + regularizer.weight * penalty, "regularizer": penalty.detach()}

    def compute_loss(self, embeddings: Float[Tensor, "batch embedding"], labels: Int[Tensor, " batch"]) -> Tensor:
        """The loss of a whole (gathered) batch, with the miner's selection if there is a miner."""
        assert self.loss is not None
        choice = [] if self.miner is None else [self.miner(embeddings, labels)]
        return self.loss(embeddings, labels, *choice)

    def validation_step(
        self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0
    ) -> Float[Tensor, "batch embedding"]:
        return self.embed_batch(Batch.read(batch))

    @cached_property  # which torch.compile can replace
    def test_step(self) -> Any:  # Lightning reads which arguments your `validation_step` takes
        return self.validation_step

    def predict_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> dict[str, Tensor | None]:
        read = Batch.read(batch, labelled=False)
        return {"embeddings": self.embed_batch(read), "index": read.index}

    def configure_optimizers(self) -> Any:
        return self.optimization.of(self)

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks of every training, validation and test, except those that the Trainer has."""
        from levelfield.training.callbacks import BestEpoch, RecordEvaluation, RetrievalValidation, TimmSyncBatchNorm

        if type(self).configure_optimizers is MetricLearner.configure_optimizers:
            _start().check_callbacks(self)
        of_fits = (SeedSteps, LogLosses, CheckFirstBatch, TimmSyncBatchNorm, BestEpoch, _start().StartAtData)
        kinds: tuple[type[Callback], ...] = (RetrievalValidation, *of_fits, RecordEvaluation)
        given = self.trainer.callbacks  # type: ignore[attr-defined]
        return [kind() for kind in kinds if not any(isinstance(each, kind) for each in given)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        from levelfield.training.checkpoint import complete_checkpoint

        complete_checkpoint(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        own = checkpoint.get("levelfield", {})
        if self._trainer is not None and self._trainer.state.fn == "fit":
            _start().check_same_classes(self, own.get("data"))
        if own.get("num_classes") is not None:
            self.build_loss(own["num_classes"])
        self.has_weights, self.trained_on = True, own.get("data")

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | None = None,
        trust: Iterable[str] = (),
        **parts: Any,
    ) -> Self:
        """The learner of a checkpoint, in eval mode. It needs no other file.

        Its class is the one in the checkpoint, or the subclass that you call this on. Loading runs only code of
        levelfield, of its dependencies, of your modules that are already imported, and of modules in `trust`
        (docs/security.md).

        Args:
            map_location: device of the learner; None is the CPU.
            trust: further modules or classes that the checkpoint may use, e.g. `["my_loss"]`.
            parts: arguments in place of the stored ones, such as `trunk_lr=1e-5`. Give the parts that a checkpoint
                cannot name: a lambda, or an object that is neither of levelfield nor a subclass of its base classes.

        Raises:
            UserError: no such file, not a checkpoint of levelfield, a class that is not trusted or of the wrong kind,
                or tensors of another architecture.
        """
        from levelfield.training.checkpoint import load_learner

        kind = None if cls is MetricLearner else cls
        return cast(Self, load_learner(kind, checkpoint_path, map_location, trust, parts))
