"""The datamodule: balanced training batches, a class-disjoint validation fold, and unseen test classes."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from jaxtyping import Float
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, default_convert

from levelfield.core.errors import UserError, refuse_below
from levelfield.core.seeds import global_seed
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.features import Extractor, FeatureSubset, features_of
from levelfield.data.image_cache import CachedImages, cached_images
from levelfield.data.loaders import ClassSubset, LedgerLoader, embedded_together, loader, loader_processes
from levelfield.data.own import class_and_arguments, dataset_spec
from levelfield.data.samplers import MPerClassBatchSampler, SamplerFactory, TrainingBatchSampler
from levelfield.data.splits import NO_FOLD, RANDOM, Split, check_validation_classes, class_folds
from levelfield.data.transforms import ImageTransforms, Transforms, as_floats
from levelfield.data.verify import check_test_split, overview


class MetricDataModule(LightningDataModule):
    """Splits a data set by classes into training, validation and test, and yields M-per-class batches.

    `setup("fit")` and `setup("validate")` read the labels once to split, then drop the test half: no test data set is
    built and no test image is opened before `setup("test")`. Each pass over `test_dataloader()` is an evaluation: the
    user's ledger of evaluations gets a line before the first batch. The batches of `predict_dataloader()` have no
    labels.

    Args:
        dataset: class of the data set.
        root: folder with the named data sets; None takes the environment variable LEVELFIELD_DATA.
        fold: the fold held out for validation, 0 to `num_folds` - 1; `none` trains on the whole training half and
            validates nothing.
        num_folds: number of class-disjoint folds of the training half.
        split: how classes are split: `half`, `powerful-benchmarker`, `official`, `vasilev-dyakonov`, `random` or `all`.
            `powerful-benchmarker` has the folds of the Reality Check program, `official` the data set's own halves,
            `random` draws halves and folds by `split_seed`, `all` has no test half. None takes `official` for a table
            with a column `split` and for In-shop Clothes, else `half`.
        batch_size: samples of a batch over all processes together.
        samples_per_class: samples per class and batch (M). None takes the attribute `samples_per_class` of the loss
            class, or 4.
        replacement: draw the M samples of a class with replacement.
        sampler: class that draws the batches. `MPerClassBatchSampler` draws M samples per class;
            `ShuffledBatchSampler` draws all samples in random order.
        steps_per_epoch: batches of an epoch.
        eval_batch_size: samples of a batch for embedding; `auto` is 64 on a CPU, 256 on a GPU.
        num_workers: loader processes; the number changes no result. `auto` is 0 for texts and on a CPU; on a GPU it is
            this training's share of the cores minus one, at most 8 with an image cache. Each needs 128 MiB of shared
            memory or more.
        transforms: crops and flips of images, or your own class with the methods `train()` and `evaluate()`. Set one
            with `--data.transforms.crop_size 64`, name your class with `--data.transforms my_aug.Mine`.
        cache: decode and resize image files once and read them from a file, if they take at most half of the free disk
            (`levelfield.data.image_cache`); the results are the same. The test half has its own file, written at the
            first evaluation. Your own transforms get the files themselves.
        seed: seed of batches and augmentation. None takes that of `seed_everything`, or 0.
        features: train on features of the frozen trunk, computed once (`levelfield.data.features`). It needs
            `--model.freeze_trunk true`. The test half has its own file, written at the first evaluation.
        split_seed: seed of `random` halves and folds. Unlike `seed`, it is the same for repeated trainings.
        fold_seed: shuffles the classes of the training half by this seed before they are cut into folds.
        keep_groups: keep each group of a table's column `group` (a product, a patient) whole between halves and between
            folds: classes that share a group stay together.

    Attributes:
        notes: how the built training batches differ from the settings; empty if they do not.
        device: the device of the batches if there is no Trainer.
        evaluation: id of the line in the ledger, if one was already written for these test samples.

    Raises:
        UserError: a fold that does not exist, too few classes for `num_folds`, image transforms for texts, or a Trainer
            with `overfit_batches`.

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
        eval_batch_size: int | Literal["auto"] = "auto",
        num_workers: int | Literal["auto"] = "auto",
        transforms: ImageTransforms | Transforms | None = None,
        cache: bool = True,
        seed: int | None = None,
        features: bool = False,
        split_seed: int = 0,
        fold_seed: int | None = None,
        keep_groups: bool = False,
    ) -> None:
        super().__init__()
        if transforms is not None and dataset.modality == "text":
            raise UserError(f"--data.transforms is for images, but {dataset.name} has texts: leave it out")
        if transforms is not None and not (hasattr(transforms, "train") and hasattr(transforms, "evaluate")):
            raise UserError(f"--data.transforms {transforms!r}: give a class with the methods train() and evaluate()")
        self.dataset, self.root = dataset, root
        if root is not None and getattr(dataset, "root", root) is None:
            dataset.root = root
        self.fold: int | Literal["none"] = fold
        self.num_folds, self.split, self.split_seed, self.keep_groups = num_folds, split, split_seed, keep_groups
        self.fold_seed = fold_seed
        self.batch_size, self.samples_per_class, self.replacement = batch_size, samples_per_class, replacement
        self.usual_samples_per_class = 4  # each fit sets that of its loss
        self.sampler, self.steps_per_epoch = sampler, steps_per_epoch
        self.eval_batch_size, self.num_workers = eval_batch_size, num_workers
        self.transforms = transforms or ImageTransforms()
        self.cache, self.features = cache, features
        self.seed = global_seed(seed)
        self.train_subset: ClassSubset | None = None
        self.val_subset: ClassSubset | None = None
        self.test_subset: ClassSubset | None = None
        self.predict_subset: ClassSubset | None = None
        self.notes, self.device = "", torch.device("cpu")
        self.evaluation: str | None = None
        self._identity: dict[str, Any] | None = None
        self._check()
        self._built, self._is_of_python = self._asked, False

    def _check(self) -> None:
        """Raise UserError for a value out of range; a notebook may set another one later."""
        processes, size = (None if each == "auto" else each for each in (self.num_workers, self.eval_batch_size))
        refuse_below(0, "data", num_workers=processes, split_seed=self.split_seed, fold_seed=self.fold_seed)
        refuse_below(1, "data", samples_per_class=self.samples_per_class, steps_per_epoch=self.steps_per_epoch)
        refuse_below(1, "data", eval_batch_size=size, num_folds=self.num_folds)
        refuse_below(2, "data", batch_size=self.batch_size)
        if self.split_seed and self.split not in RANDOM:
            raise UserError(f"--data.split_seed {self.split_seed} needs --data.split random: give both, or neither")
        fold, last = self.fold, self.num_folds - 1
        if fold != NO_FOLD and not (isinstance(fold, int | np.integer) and 0 <= fold <= last):
            raise UserError(f"--data.fold {fold}: there are {self.num_folds} folds, 0 to {last}, or {NO_FOLD}")
        self.fold = fold if fold == NO_FOLD else int(fold)
        kind = getattr(self.sampler, "func", self.sampler)
        if not callable(kind) or (isinstance(kind, type) and not issubclass(kind, TrainingBatchSampler)):
            raise UserError(
                f"--data.sampler {getattr(kind, '__name__', kind)}: give a class that extends TrainingBatchSampler, or "
                "fit with a loader of your own"
            )

    @property
    def _asked(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(MetricDataModule).parameters}

    def setup(self, stage: str) -> None:
        self._check()
        index = self.dataset.index()
        if stage == "predict":
            unlabelled = replace(index, labels=np.zeros_like(index.labels))
            self.predict_subset = ClassSubset(self.dataset, unlabelled, self.transform(), self.seed)
            return
        split, trainval_classes, test_classes = self._halves()
        test = index.select(np.isin(index.labels, test_classes))
        # Before a test, an image folder may lack the test images.
        if stage == "test" or (split != "all" and (len(test.keys) or not len(test_classes))):
            check_test_split(test)
        self._keep_arguments()
        if self._is_of_python and self.trainer is not None and stage == "fit":  # a command logs all its settings
            for logger in self.trainer.loggers:
                logger.log_hyperparams({"data": dict(self.hparams)})
        halves = f"{split} {self.split_seed} {self.keep_groups}"  # each has its own caches
        if stage == "test":
            images = self._images(test, f"{halves}, test half", lambda: self.dataset.fingerprint(test))
            self.test_subset = ClassSubset(self.dataset, test, self.transform(), self.seed, images)
        elif self.train_subset is None:
            train_classes, val_classes = trainval_classes, trainval_classes[:0]
            if self.fold != NO_FOLD:
                trained = self.dataset.units(index, self.keep_groups)[trainval_classes]
                if self.keep_groups and (left := len(np.unique(trained))) < 2 * self.num_folds:
                    raise UserError(
                        f"--data.keep_groups true: groups join the {len(trained)} classes of the training half into "
                        f"{left}, too few for {self.num_folds} folds; lower --data.num_folds, or leave the option out"
                    )
                folds = [
                    (trainval_classes[np.isin(trained, train)], trainval_classes[np.isin(trained, val)])
                    for train, val in class_folds(trained, self.num_folds, split, self.split_seed, self.fold_seed)
                ]
                check_validation_classes(folds, index.labels, index.groups)
                train_classes, val_classes = folds[int(self.fold)]
            trainval = self._trainval = index.select(np.isin(index.labels, trainval_classes))
            fingerprint = self.dataset.fingerprint(trainval)
            images = self._images(trainval, f"{halves}, training half", lambda: fingerprint)
            train, val = (index.select(np.isin(index.labels, classes)) for classes in (train_classes, val_classes))
            self.train_subset = ClassSubset(self.dataset, train, self.transform(train=True), self.seed, images)
            self.val_subset = ClassSubset(self.dataset, val, self.transform(), self.seed, images)
            self._built = self._asked
            self._identity = {
                "dataset": dataset_spec(self.dataset),
                "fingerprint": fingerprint,
                "fold": self.fold,
                "num_folds": 1 if self.fold == NO_FOLD else self.num_folds,
                "split": split,
                "train_classes": [index.class_names[c] for c in train_classes],
                "val_classes": [index.class_names[c] for c in val_classes],
            }

    def _keep_arguments(self) -> None:
        """As hyper-parameters, because `levelfield validate` and `test` read them from the checkpoint."""
        if self.hparams and self._built == self._asked:
            return
        transforms = None if self.dataset.modality == "text" else class_and_arguments(self.transforms)
        if transforms and isinstance(self.transforms, ImageTransforms):
            transforms = transforms["init_args"]
        path = f"{self.sampler.__module__}.{getattr(self.sampler, '__qualname__', '<locals>')}"
        plain = self._asked | {"dataset": dataset_spec(self.dataset), "root": None, "transforms": transforms}
        plain |= {"sampler": {"class_path": path}}
        if "<locals>" in path:  # a checkpoint needs no training batches
            del plain["sampler"]
        if not self.hparams:  # built in Python
            self.save_hyperparameters(plain, logger=False)
            self._is_of_python = True
        else:
            self.hparams.update({name: plain[name] for name in self.hparams.keys() & plain.keys()})
            self.train_subset = None

    def _images(
        self, index: SampleIndex, half: str, fingerprint: Callable[[], str]
    ) -> Callable[[], CachedImages | None]:
        """Returns the image cache of a half, made at the first use: a list of classes needs no image."""
        if not self.cache or self.features or not isinstance(self.transforms, ImageTransforms):
            return lambda: None
        return cache(partial(cached_images, self.dataset, index, half, fingerprint, self.transforms))

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Lightning's method would run code of the file, and build no data set.

        Raises:
            UserError: names what to use instead.
        """
        raise UserError(
            f"{cls.__name__}.load_from_checkpoint: levelfield validate and test read the data of '{checkpoint_path}'; "
            f"in Python, call {cls.__name__}(...) with the arguments of the fit"
        )

    def use_features(self, extractor: Extractor) -> None:
        """Replace the samples by features: those of the training half now, those of the test half at the first batch.

        Args:
            extractor: a frozen trunk; a `MetricLearner` passes its trunk in its `setup`.
        """
        assert self.features
        if self.train_subset is not None and self.val_subset is not None:
            half = self._trainval
            self._evaluated = self._features_of(half, self.identity()["fingerprint"], extractor)
            self.train_subset = FeatureSubset(self.train_subset, half, lambda: self._evaluated)
            self.val_subset = FeatureSubset(self.val_subset, half, lambda: self._evaluated)
        if self.test_subset is not None:
            test = self.test_subset.index
            made = cache(lambda: self._features_of(test, self.dataset.fingerprint(test), extractor))
            self.test_subset = FeatureSubset(self.test_subset, test, made)

    def evaluated(self, subset: ClassSubset | None) -> Float[Tensor, "samples features"]:
        """The features of the training or validation samples, in their order, without augmentation."""
        assert isinstance(subset, FeatureSubset)
        return self._evaluated.index_select(0, subset.rows)

    def _features_of(self, index: SampleIndex, fingerprint: str, extractor: Extractor) -> Tensor:
        batches = self._loader(ClassSubset(self.dataset, index, self.transform()), batch_size=self._eval_size)
        return features_of(batches, fingerprint, self.transforms if self.transform() else None, extractor)

    def identity(self) -> dict[str, Any]:
        """Plain values that a checkpoint needs for validation and test on the same classes.

        The fingerprint covers only the training half: it depends on no test sample.
        """
        if self._identity is None or self._built != self._asked:
            self.setup("validate")
        assert self._identity is not None
        return self._identity

    def half(self, half: Literal["training", "test"]) -> SampleIndex:
        """The list of a half; its samples are not opened."""
        index, (_, *classes) = self.dataset.index(), self._halves()
        return index.select(np.isin(index.labels, classes[half == "test"]))

    def overview(self) -> list[str]:
        """Lines with the counts of the data set, omitted samples and likely mistakes."""
        return overview(self.dataset, self.dataset.index(), self._halves()[2])

    def test_classes(self) -> list[str]:
        """The names of the test classes."""
        return [self.dataset.index().class_names[c] for c in self._halves()[2]]

    def summary(self) -> str:
        """One line: the split, the fold, and the numbers of training and validation classes."""
        identity = self.identity()
        seed = f" {self.split_seed}" if identity["split"] in RANDOM else ""
        split, trained = f"split {identity['split']}{seed}", f"{len(identity['train_classes'])} classes trained on"
        if self.fold == NO_FOLD:
            return f"{split}, the whole training half: {trained}, none validated"
        return f"{split}, fold {self.fold} of {self.num_folds}: {trained}, {len(identity['val_classes'])} validated"

    @property
    def num_train_classes(self) -> int:
        """Classes of the training fold; class weights have this many rows."""
        if self.train_subset is None:
            raise UserError("call setup('fit') before num_train_classes")
        return len(self.train_subset.classes)

    def train_dataloader(self) -> DataLoader:
        assert self.train_subset is not None
        if self.trainer is not None and self.trainer.overfit_batches:  # type: ignore[attr-defined]
            raise UserError("overfit_batches takes samples in order, not M per class: give limit_train_batches")
        sampler = self.training_batches(self.train_subset.labels)
        if self.trainer is not None:  # loader processes request batches before Lightning sets the epoch
            epochs: Any = self.trainer.fit_loop.epoch_progress.current
            sampler.set_epoch(epochs.processed)  # `current_epoch` is one less after a resume
        self.notes = sampler.differences
        # The sampler yields whole batches; Lightning would replace a batch sampler.
        return self._loader(self.train_subset, persistent=True, batch_size=None, sampler=sampler)

    def training_batches(self, labels: np.ndarray) -> TrainingBatchSampler:
        """The batches of an epoch, as indices.

        Args:
            labels: the class of each sample that is trained on.
        """
        rank, world_size = self._ranks
        return self.sampler(
            labels=labels,
            batch_size=self.batch_size,
            samples_per_class=self.samples_per_class or self.usual_samples_per_class,
            num_batches=self.steps_per_epoch,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            replacement=self.replacement,
        )

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        if self.fold != NO_FOLD:
            return self.eval_dataloader(self.val_subset, persistent=True)
        if self.trainer is not None and self.trainer.state.fn == "validate":
            raise UserError("--data.fold none trained on the whole training half: there are no validation classes")
        return []

    def test_dataloader(self) -> DataLoader:
        """Each test sample once. Each pass is an evaluation; the ledger gets a line before the first batch."""
        return self.eval_dataloader(self.test_subset)

    def predict_dataloader(self) -> DataLoader:
        """Each sample of the data set once, with 0 as its label."""
        return self.eval_dataloader(self.predict_subset)

    def eval_dataloader(self, subset: ClassSubset | None, persistent: bool = False, divided: bool = True) -> DataLoader:
        """Each sample of a subset once, in order, divided over processes; the last processes may get repeats.

        The loader of the test subset is a `LedgerLoader`.

        Args:
            persistent: whether the loader processes stay alive for another pass.
            divided: False gives this process all samples.
        """
        assert subset is not None
        rank, world_size = self._ranks if divided else (0, 1)
        sampler: DistributedSampler[Any] = DistributedSampler(subset, world_size, rank, shuffle=False)
        kind: Callable[..., DataLoader] = DataLoader
        if subset is self.test_subset:
            kind = partial(LedgerLoader, evaluation=self.evaluation)
        return self._loader(subset, persistent, kind, batch_size=self._eval_size, sampler=sampler)

    def train_samples(self) -> DataLoader:
        """Each training sample of the fold once, in order, without augmentation; every process gets all."""
        assert self.train_subset is not None
        train = self.train_subset
        subset = ClassSubset(self.dataset, train.index, self.transform(), cache=lambda: train.images)
        if isinstance(self.train_subset, FeatureSubset):
            subset = FeatureSubset(subset, self._trainval, lambda: self._evaluated)
        return self._loader(subset, batch_size=self._eval_size)

    def _loader(
        self, subset: ClassSubset, persistent: bool = False, kind: Callable[..., DataLoader] = DataLoader, **how: Any
    ) -> DataLoader:
        if isinstance(subset, FeatureSubset):
            return kind(subset, collate_fn=default_convert, pin_memory=self._on_gpu, **how)
        together = self._ranks[1] // (1 if self.trainer is None else self.trainer.num_nodes)
        decodes = subset.images is None
        processes = loader_processes(self.num_workers, self.dataset.modality, self._on_gpu, together, decodes)
        return loader(subset, processes, self._on_gpu, persistent, kind, **how)

    @property
    def _eval_size(self) -> int:
        return embedded_together(self.eval_batch_size, self._on_gpu)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Convert images from bytes to floats on the device, in the Trainer's precision."""
        if isinstance(batch, list) and isinstance(batch[0], Tensor) and batch[0].dtype == torch.uint8:
            floats = as_floats(batch[0])
            # Lightning converts only floats, before it calls this hook.
            floats = floats if self.trainer is None else self.trainer.precision_plugin.convert_input(floats)
            return [floats, *batch[1:]]
        return batch

    def transform(self, train: bool = False) -> Callable[[Any], Any] | None:
        """The transform of a sample; None for a text."""
        if self.dataset.modality == "text":
            return None
        return self.transforms.train() if train else self.transforms.evaluate()

    def _halves(self) -> tuple[Split, np.ndarray, np.ndarray]:
        return self.dataset.halves(self.dataset.index(), self.split, self.split_seed, self.keep_groups)

    @property
    def _ranks(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    @property
    def _on_gpu(self) -> bool:
        device = self.device if self.trainer is None else self.trainer.strategy.root_device
        return device.type == "cuda"
