"""The datamodule: balanced training batches and a class-disjoint validation fold; the test classes stay sealed."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from levelfield.data.crops import as_floats
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.features import Extractor, FeatureSubset, features_of
from levelfield.data.index import SampleIndex
from levelfield.data.loading import in_processes, loader, loader_processes
from levelfield.data.places import root_in_vain
from levelfield.data.plain_arguments import dataset_spec, plain_arguments
from levelfield.data.recorded_loader import RecordedLoader
from levelfield.data.samplers import EvalSampler, MPerClassBatchSampler, TrainingBatchSampler
from levelfield.data.samplers.base import SamplerFactory
from levelfield.data.sealed_half import check_test_half
from levelfield.data.source import Source, source_of
from levelfield.data.splits import NO_FOLD, Split, check_validation_classes, class_folds
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms, Transforms
from levelfield.errors import UserError, refuse_below


class MetricDataModule(LightningDataModule):
    """Splits a data set by classes into training, validation and test, and feeds M-per-class batches.

    `setup("fit")` and `setup("validate")` read the labels once to split, then drop the test half: no test data set is
    built and no test image is opened before `setup("test")`. Each pass over `test_dataloader()` is an evaluation: the
    ledger of the user's evaluations gets a line before the first batch. The batches of `predict_dataloader()` have no
    labels.

    Args:
        dataset: where samples and labels come from; not read before `setup`.
        root: the folder that named data sets lie in; None takes the environment variable LEVELFIELD_DATA.
        fold: the fold whose classes are held out for validation, 0 to `num_folds` - 1; `none` trains on the whole
            training half and validates nothing.
        num_folds: class-disjoint folds of the training half.
        split: `half`, `powerful-benchmarker` (the Reality Check program's exact folds), `official` (the data set's own
            halves), `vasilev-dyakonov` or `random` (drawn by `split_seed`, the folds too); None takes `official` for a
            table with a column `split` and for In-shop Clothes, else `half`.
        batch_size: samples of one batch over all processes together.
        samples_per_class: M; a batch holds `batch_size` / M classes. None takes the attribute `samples_per_class` of
            the loss' class, or 4.
        replacement: draw the M samples of a class with replacement.
        sampler: class that says which samples a batch has; M of each class, or `ClassBalancedBatchSampler` where M does
            not divide `batch_size`, or `ShuffledBatchSampler` for all in turn.
        steps_per_epoch: batches of an epoch.
        eval_batch_size: samples a batch when embedding.
        num_workers: loader processes, which change no number. `auto` is none for texts and on a CPU, and for a GPU this
            training's share of the machine's cores but one, at most 8.
        transforms: crops and flips of images, e.g. `--data.transforms.crop_size 64`, or a class of your own with the
            methods `train()` and `evaluate()`, `--data.transforms my_aug.Mine`.
        cache: decode and reduce the images once, into a file that is then read instead (`levelfield.data.cache`); the
            results are the same. The test half has a file of its own, made when it is opened. `auto` does so where the
            samples are image files and theirs takes at most 4 GiB and half of what is free.
        seed: of batches and augmentation.
        features: train and evaluate on what a frozen trunk makes of each sample, computed once and kept
            (`levelfield.data.features`); needs `--model.freeze_trunk true`. The test half has a file of its own, made
            when it is opened.
        split_seed: of `random` halves and folds; apart from `seed`, so that repeated trainings share their classes.

    Attributes:
        notes: how the training batches differ from what was asked for, once they are made; empty if they do not.
        device: what the batches are for where no Trainer says so.
        evaluation: id of the ledger's line, where whoever asks for test samples has written one.

    Raises:
        UserError: a fold that is not there, too few classes for `num_folds`, transforms of images for texts, or a
            Trainer with `overfit_batches`.

    Example:
        >>> from levelfield.data.datasets import Glyphs
        >>> data = MetricDataModule(Glyphs(num_classes=40), fold=1)
        >>> data.setup("fit")
        >>> data.num_train_classes
        15
    """

    def __init__(
        self,
        dataset: MetricDataset,
        root: str | None = None,
        fold: int | Literal["none"] = 0,
        num_folds: int = 4,
        split: Split | None = None,
        batch_size: int = 32,
        samples_per_class: int | None = None,
        replacement: bool = False,
        sampler: SamplerFactory = MPerClassBatchSampler,
        steps_per_epoch: int = 100,
        eval_batch_size: int = 64,
        num_workers: int | Literal["auto"] = "auto",
        transforms: ImageTransforms | Transforms | None = None,
        cache: bool | Literal["auto"] = "auto",
        seed: int = 0,
        features: bool = False,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        refuse_below(0, "data", num_workers=0 if num_workers == "auto" else num_workers, split_seed=split_seed)
        refuse_below(1, "data", samples_per_class=samples_per_class, steps_per_epoch=steps_per_epoch)
        refuse_below(1, "data", eval_batch_size=eval_batch_size, num_folds=num_folds)
        refuse_below(2, "data", batch_size=batch_size)
        if split_seed and split != "random":
            raise UserError(f"--data.split_seed {split_seed} is of --data.split random: give both, or leave it out")
        if isinstance(fold, int) and not 0 <= fold < num_folds:
            raise UserError(f"--data.fold {fold}: there are {num_folds} folds, 0 to {num_folds - 1}")
        if transforms is not None and dataset.modality == "text":
            raise UserError(f"--data.transforms is for images, and {dataset.name} holds texts: leave it out")
        if transforms is not None and not (hasattr(transforms, "train") and hasattr(transforms, "evaluate")):
            raise UserError(f"--data.transforms {transforms!r}: give a class with the methods train() and evaluate()")
        self.dataset = dataset
        self.root = root
        if root is not None and getattr(dataset, "root", root) is None:
            dataset.root = root
        self.fold = fold
        self.num_folds = num_folds
        self.split, self.split_seed = split, split_seed
        self.batch_size = batch_size
        self.samples_per_class = samples_per_class
        self.replacement = replacement
        self.sampler = sampler
        self.steps_per_epoch = steps_per_epoch
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.transforms = transforms or ImageTransforms()
        self.cache = cache
        self.seed = seed
        self.features = features
        self.train_subset: ClassSubset | None = None
        self.val_subset: ClassSubset | None = None
        self.test_subset: ClassSubset | None = None
        self.predict_subset: ClassSubset | None = None
        self._overview: list[str] = []
        self.notes = ""
        self.device = torch.device("cpu")
        self.evaluation: str | None = None
        self._identity: dict[str, Any] | None = None

    def setup(self, stage: str) -> None:
        index = self.dataset.kept_index()
        split, trainval_classes, test_classes = self._halves(index)
        if stage == "test" or not len(test_classes) or np.isin(test_classes, index.labels).any():
            # While nothing is tested, a folder's test images may be elsewhere.
            check_test_half(index, test_classes)
        train_classes, val_classes = trainval_classes, trainval_classes[:0]
        if isinstance(self.fold, int):
            folds = class_folds(trainval_classes, self.num_folds, variant=split, seed=self.split_seed)
            train_classes, val_classes = folds[self.fold]
        trainval = index.select(np.isin(index.labels, trainval_classes))
        halves = f"random {self.split_seed}" if split == "random" else split  # each seed has caches of its own
        if stage in ("fit", "validate") and self.train_subset is None:
            if isinstance(self.fold, int):
                check_validation_classes(folds, index.labels)
            images = self._source(trainval, f"{halves}, training half")
            self.train_subset = self._subset(images, index, train_classes, train=True)
            self.val_subset = self._subset(images, index, val_classes)
            self._trainval = trainval
        if stage == "test":
            test = index.select(np.isin(index.labels, test_classes))
            self.test_subset = self._subset(self._source(test, f"{halves}, test half"), index, test_classes)
        if stage == "predict":
            unlabelled = replace(index, labels=np.zeros_like(index.labels))
            self.predict_subset = self._subset(self.dataset, unlabelled, np.zeros(1, dtype=index.labels.dtype))
        if not self.hparams:  # made in Python: a checkpoint tells `levelfield validate` and `test` the same arguments
            self.save_hyperparameters(plain_arguments(self, MetricDataModule), logger=False)
        if self._identity is None:
            self._overview = self.dataset.overview(index, split, self.split_seed) + root_in_vain(
                self.dataset, self.root
            )
            self._identity = {
                "dataset": dataset_spec(self.dataset, self.root),
                "fingerprint": self.dataset.once(
                    ("fingerprint", trainval.keys), lambda: self.dataset.fingerprint(trainval)
                ),
                "fold": self.fold,
                "num_folds": self.num_folds if isinstance(self.fold, int) else 1,
                "split": split,
                "train_classes": [index.class_names[c] for c in train_classes],
                "val_classes": [index.class_names[c] for c in val_classes],
            }

    def use_features(self, extractor: Extractor) -> None:
        """Has the samples that are set up come as features: the training half's from now on, made here where they are
        not there yet; the test half's when the first batch is asked for.

        Args:
            extractor: a frozen trunk; a `MetricLearner` gives its own when it is set up.
        """
        assert self.features
        if self.train_subset is not None and self.val_subset is not None:
            half = self._trainval
            self._evaluated = self._features_of(half, extractor)
            self.train_subset = FeatureSubset(self.train_subset, half, lambda: self._evaluated)
            self.val_subset = FeatureSubset(self.val_subset, half, lambda: self._evaluated)
        if self.test_subset is not None:
            test = self.test_subset.index
            made = cache(lambda: self._features_of(test, extractor))
            self.test_subset = FeatureSubset(self.test_subset, test, made)

    def evaluated(self, subset: ClassSubset | None) -> Float[Tensor, "samples features"]:
        """The features of the training or validation samples by the evaluation transform, in their order."""
        assert isinstance(subset, FeatureSubset)
        return self._evaluated.index_select(0, subset.rows)

    def _features_of(self, index: SampleIndex, extractor: Extractor) -> Tensor:
        loading = {"batch_size": self.eval_batch_size, **in_processes(self._processes, self._on_gpu)}
        return features_of(self.dataset, index, self.transform(), self.transforms, extractor, loading)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must know to be validated and tested on the same classes, as plain values.

        The fingerprint covers the training half alone: nothing in it depends on a test sample.
        """
        if self._identity is None:
            self.setup("validate")
        assert self._identity is not None
        return self._identity

    def fingerprint(self, half: Literal["training", "test"], again: bool = False) -> str:
        """The fingerprint of a half as it is on disk now.

        Args:
            again: whether to read all its files again, whatever is kept of their content.
        """
        index = self.dataset.read_index()
        classes = self._halves(index)[1 if half == "training" else 2]
        return self.dataset.fingerprint(index.select(np.isin(index.labels, classes)), again)

    def overview(self) -> list[str]:
        """Lines with the counts of the whole data set, and what of it is left out or looks like a slip."""
        self.identity()
        return self._overview

    def check_test_half(self) -> None:
        """Look, by the list of the samples alone, whether the test half can be scored: before any training for it.

        Raises:
            UserError: it cannot be scored.
        """
        index = self.dataset.read_index()
        check_test_half(index, self._halves(index)[2])

    def test_classes(self) -> list[str]:
        """The names of the test classes."""
        index = self.dataset.read_index()
        return [index.class_names[c] for c in self._halves(index)[2]]

    def test_sample_hashes(self) -> list[str]:
        """A hash of each test sample, as the ledger of the evaluations holds them."""
        index = self.dataset.read_index()
        return list(self.dataset.contents_of(index.select(np.isin(index.labels, self._halves(index)[2])).keys))

    def summary(self) -> str:
        """One line: the split in use, the fold, and how many classes are trained on and validated."""
        identity = self.identity()
        seed = f" {self.split_seed}" if identity["split"] == "random" else ""
        split, trained = f"split {identity['split']}{seed}", f"{len(identity['train_classes'])} classes trained on"
        if self.fold == NO_FOLD:
            return f"{split}, the whole training half: {trained}, none validated"
        return f"{split}, fold {self.fold} of {self.num_folds}: {trained}, {len(identity['val_classes'])} validated"

    @property
    def num_train_classes(self) -> int:
        """Classes of the training fold; class weights have this many rows."""
        if self.train_subset is None:
            raise UserError("num_train_classes is known after setup('fit')")
        return len(self.train_subset.classes)

    def train_dataloader(self) -> DataLoader:
        assert self.train_subset is not None
        if self.trainer is not None and self.trainer.overfit_batches:  # type: ignore[attr-defined]
            raise UserError(
                "overfit_batches takes samples in their order instead of M of each class: give limit_train_batches, or "
                "a data set of few classes"
            )
        sampler = self.training_batches(self.train_subset.labels)
        if self.trainer is not None:  # loader processes ask for batches before Lightning says which epoch it is
            sampler.set_epoch(self.trainer.current_epoch)
        self.notes = sampler.differences
        # The sampler's are whole batches; a batch sampler Lightning would not leave alone.
        return self._loader(self.train_subset, persistent=True, batch_size=None, sampler=sampler)

    def training_batches(self, labels: np.ndarray) -> TrainingBatchSampler:
        """The batches of an epoch, as indices.

        Args:
            labels: the class of each sample that is trained on.
        """
        return self.sampler(
            labels=labels,
            batch_size=self.batch_size,
            samples_per_class=self.samples_per_class or 4,
            num_batches=self.steps_per_epoch,
            seed=self.seed,
            rank=self._rank,
            world_size=self._world_size,
            replacement=self.replacement,
        )

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        if self.fold != NO_FOLD:
            return self.eval_dataloader(self.val_subset, persistent=True)
        if self.trainer is not None and self.trainer.state.fn == "validate":
            raise UserError("--data.fold none: the whole training half trained, so there is nothing to validate on")
        return []

    def test_dataloader(self) -> DataLoader:
        """Each test sample once. A pass over it is an evaluation, which the ledger has before the first batch."""
        return self.eval_dataloader(self.test_subset)

    def predict_dataloader(self) -> DataLoader:
        """Each sample of the data set once, with 0 in place of its label."""
        return self.eval_dataloader(self.predict_subset)

    def eval_dataloader(self, subset: ClassSubset | None, persistent: bool = False) -> DataLoader:
        """Each sample of a subset in order, once; shared over processes, where the last ones may get repeats.

        That of the test subset is a `RecordedLoader`.

        Args:
            persistent: whether the loader processes stay for another pass.
        """
        assert subset is not None
        sampler = EvalSampler(len(subset), rank=self._rank, world_size=self._world_size)
        recorded: dict[str, Any] = {}
        if subset is self.test_subset:
            together = self._world_size > 1
            recorded["kind"] = partial(RecordedLoader, of=self.dataset, evaluation=self.evaluation, together=together)
        return self._loader(subset, persistent, batch_size=self.eval_batch_size, sampler=sampler, **recorded)

    def train_samples(self) -> DataLoader:
        """Each training sample of the fold once, in order, without augmentation; all of them on every process."""
        assert self.train_subset is not None
        subset = ClassSubset(self.train_subset.dataset, self.train_subset.index, self.transform())
        if isinstance(self.train_subset, FeatureSubset):
            subset = FeatureSubset(subset, self._trainval, lambda: self._evaluated)
        return self._loader(subset, batch_size=self.eval_batch_size)

    def _loader(self, subset: ClassSubset, persistent: bool = False, **how: Any) -> DataLoader:
        return loader(subset, self._processes, self._on_gpu, persistent, **how)

    @property
    def _processes(self) -> int:
        return loader_processes(self.num_workers, self.dataset.modality, self._on_gpu, self._world_size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Images that came to a GPU as bytes, as what a trunk takes, in the Trainer's precision."""
        if isinstance(batch, list) and isinstance(batch[0], Tensor) and batch[0].dtype == torch.uint8:
            floats = as_floats(batch[0])
            # Lightning converts floats alone, before this.
            floats = floats if self.trainer is None else self.trainer.precision_plugin.convert_input(floats)
            return [floats, *batch[1:]]
        return batch

    def transform(self, train: bool = False) -> Callable[[Any], Any] | None:
        """What is done to a sample before it joins a batch; nothing to a text."""
        if self.dataset.modality == "text":
            return None
        return self.transforms.train() if train else self.transforms.evaluate()

    def _halves(self, index: SampleIndex) -> tuple[Split, np.ndarray, np.ndarray]:
        return self.dataset.halves(index, self.split, self.split_seed)

    @property
    def _rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def _world_size(self) -> int:
        return 1 if self.trainer is None else self.trainer.world_size

    @property
    def _on_gpu(self) -> bool:
        device = self.device if self.trainer is None else self.trainer.strategy.root_device
        return device.type == "cuda"

    def _source(self, index: SampleIndex, half: str) -> Source | Callable[[], Source]:
        kept = False if self.features else self.cache  # features are kept, so that no sample is read twice
        made = cache(lambda: source_of(self.dataset, index, half, self.transforms, kept))
        return made if kept == "auto" else made()  # who asks for classes alone waits for no picture

    def _subset(
        self,
        source: Source | Callable[[], Source],
        index: SampleIndex,
        classes: np.ndarray,
        train: bool = False,
    ) -> ClassSubset:
        selected = index.select(np.isin(index.labels, classes))
        return ClassSubset(source, selected, self.transform(train), seed=self.seed)
