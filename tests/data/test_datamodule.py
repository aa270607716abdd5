"""The datamodule hands on what it is given, and refuses what cannot be."""

import inspect
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from pytorch_metric_learning.samplers import MPerClassSampler

from levelfield.core.errors import UserError
from levelfield.data import MetricDataModule
from levelfield.data.datasets import Glyphs, Omniglot, TextTable
from levelfield.data.samplers import ShuffledBatchSampler
from levelfield.data.splits import class_folds, split_classes
from levelfield.data.transforms import ImageTransforms
from levelfield.training.checkpoint import built

SMALL = ImageTransforms(crop_size=16, resize=16, horizontal_flip=False)


def datamodule(**arguments) -> MetricDataModule:
    given = {"dataset": Glyphs(num_classes=40, image_size=16), "steps_per_epoch": 3, "transforms": SMALL, **arguments}
    return MetricDataModule(**given)


# Another value of each argument, and what changes by it.
OTHERS = {
    "dataset": Glyphs(num_classes=44, image_size=16),
    "fold": 1,
    "num_folds": 2,
    "split": "vasilev-dyakonov",
    "batch_size": 16,
    "samples_per_class": 2,
    "replacement": True,
    "sampler": ShuffledBatchSampler,
    "steps_per_epoch": 2,
    "eval_batch_size": 7,
    "num_workers": 1,
    "transforms": ImageTransforms(crop_size=12, resize=16),
    "seed": 1,
}


def outcome(data: MetricDataModule) -> list:
    """All that a datamodule makes."""
    data.setup("fit")
    loaders = [data.train_dataloader(), data.val_dataloader()]
    workers = [loader.num_workers for loader in loaders]
    if workers == [1, 1]:  # which change no batch: `test_loaders.py`
        return workers
    return workers + [[part.tolist() for part in batch] for loader in loaders for batch in loader]


@pytest.mark.parametrize("name", OTHERS)
def test_each_argument_has_an_effect_also_if_it_is_set_later(name: str) -> None:
    data, other = datamodule(), datamodule(**{name: OTHERS[name]})
    default, expected = outcome(data), outcome(other)
    setattr(data, name, OTHERS[name])
    assert default != outcome(data) == expected
    assert data.hparams == other.hparams
    assert data.identity() == other.identity()


def test_a_prediction_needs_no_split_and_a_test_no_folds() -> None:
    few = datamodule(dataset=Glyphs(num_classes=3, image_size=16))
    few.setup("predict")
    assert len(few.predict_subset) == 3 * 16
    few.setup("test")
    assert few.test_subset.class_names == ("U+0042 B", "U+0043 C")
    with pytest.raises(UserError, match="too few for 4 folds"):
        few.setup("fit")
    one = datamodule(dataset=Glyphs(num_classes=1, image_size=16))
    one.setup("predict")
    with pytest.raises(UserError, match="test classes"):
        one.setup("test")


def test_no_argument_is_forgotten_above() -> None:
    elsewhere = {"root", "cache", "features", "split_seed", "fold_seed", "keep_groups"}  # in tests of their own
    assert OTHERS.keys() | elsewhere == inspect.signature(MetricDataModule).parameters.keys()


def test_the_seed_of_a_split_is_its_own() -> None:
    first, again, other = (
        datamodule(split="random", split_seed=split_seed, seed=seed) for split_seed, seed in ((0, 0), (0, 5), (1, 0))
    )
    assert first.identity() == again.identity()
    index = other.dataset.read_index()
    trainval, _ = split_classes(index.labels, "random", seed=1)
    names = [index.class_names[label] for label in class_folds(trainval, variant="random", seed=1)[0][1]]
    assert other.identity()["val_classes"] == names
    assert list(first.train_dataloader().sampler) != list(again.train_dataloader().sampler)


def test_without_a_fold_every_class_of_the_training_half_trains() -> None:
    folds = [datamodule(fold=fold) for fold in range(4)]
    whole = datamodule(fold="none")
    for data in (*folds, whole):
        data.setup("fit")
    validated = {name for data in folds for name in data.val_subset.class_names}
    assert len(validated) == 20, "half of 40"
    assert set(whole.train_subset.class_names) == validated
    assert whole.num_train_classes == 20
    assert (len(whole.val_subset), whole.val_dataloader(), whole.identity()["val_classes"]) == (0, [], [])
    assert whole.identity()["fingerprint"] == folds[0].identity()["fingerprint"]
    with pytest.raises(UserError, match=r"num_folds is 1: give 2 or more \(--data\.fold none"):
        datamodule(num_folds=1).setup("fit")


def test_the_root_is_where_a_named_data_set_lies_that_was_given_none() -> None:
    assert MetricDataModule(Omniglot(), root="here").dataset.root == "here"
    assert MetricDataModule(Omniglot(root="there"), root="here").dataset.root == "there"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"fold": fold}, "there are 4 folds, 0 to 3, or none") for fold in (None, "1", 1.0, 4, -1)),
        *(
            ({"sampler": sampler}, r"--data\.sampler MPerClassSampler: .*TrainingBatchSampler")
            for sampler in (MPerClassSampler, partial(MPerClassSampler, m=4), "MPerClassSampler")
        ),
        ({"dataset": TextTable("table.csv")}, r"transforms is for images, but text_table has texts"),
        ({"split_seed": 1}, r"data\.split_seed"),
        ({"split": "random", "split_seed": -1}, r"data\.split_seed"),
    ],
)
def test_what_cannot_be_is_refused(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        datamodule(**given)


class Cut:
    def __init__(self, side: object) -> None:
        self.side = side


class Images(Glyphs):
    def __init__(self, cut: object, num_classes: int = 16) -> None:
        super().__init__(num_classes)
        self.cut = cut


def test_an_argument_that_is_an_object_is_in_the_checkpoint_as_plain_values() -> None:
    data = MetricDataModule(Images({"both": [Cut(np.int64(3)), Cut(Path("a/b"))]}), num_folds=2)
    data.setup("fit")
    spec = data.hparams["dataset"]
    assert spec == data.identity()["dataset"] == json.loads(json.dumps(spec))
    again = built(MetricDataModule, "data", {"dataset": spec}, trusted=(__name__,))["dataset"]
    assert [each.side for each in again.cut["both"]] == [3, "a/b"]
    for unknown in (print, Cut(lambda: 1), np.zeros(3), re.compile("a"), Image.new("L", (1, 1))):
        with pytest.raises(UserError, match=r"Images takes the argument cut of type"):
            MetricDataModule(Images(unknown), num_folds=2).setup("fit")
    hidden = Images(3)
    del hidden.cut  # kept under another name
    with pytest.raises(UserError, match=r"Images takes the argument cut: store it as self\.cut"):
        MetricDataModule(hidden).setup("fit")
    of_c = SimpleNamespace(train=ImageTransforms(16, 16).train, evaluate=ImageTransforms(16, 16).evaluate)
    with pytest.raises(UserError, match="SimpleNamespace does not say its arguments"):
        MetricDataModule(Images(3), transforms=of_c, num_folds=2).setup("fit")
