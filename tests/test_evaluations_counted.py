"""Each way to a test score leaves a line in the ledger of the data set, and no other command leaves one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from own_images import class_folders, image_options, own_images
from small_fit import small_learner, small_trainer
from tiny_fit import TINY

import levelfield
from levelfield.cli.main import main
from levelfield.core.ledger import LEDGER, evaluations_of
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageFolder
from levelfield.data.transforms import ImageTransforms
from levelfield.training.learner import MetricLearner
from levelfield.use.encoder import Encoder

pytestmark = pytest.mark.usefixtures("quiet")
# 16 classes of 4 images: the test half is 8 classes.
TEST_SAMPLES = 32


class Forgetful(MetricLearner):
    """A learner of one's own whose `configure_callbacks` does not call `super()`."""

    def configure_callbacks(self) -> list[Callback]:
        return []


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders."""
    folder = tmp_path_factory.mktemp("images")
    own_images(folder)
    return class_folders(folder)


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """The checkpoint of a fit on the images."""
    folder = tmp_path_factory.mktemp("fit")
    words = [*image_options(list(TINY), images.parent / "table.csv", images), "--model.loss", "ContrastiveLoss"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_CACHE", str(folder / "cache"))
        assert main(["fit", *words, "--output", str(folder)]) == 0
    assert not (folder / "cache" / "evaluations").exists()
    return next(folder.rglob("best.ckpt"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a ledger of its own."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def checkpoint(best: Path, here: Path) -> Path:
    return Path(shutil.copytree(best.parent, here / "run")) / best.name


def datamodule(images: Path, **arguments: Any) -> MetricDataModule:
    transforms = ImageTransforms(crop_size=32, resize=32, horizontal_flip=False)
    settings = {"steps_per_epoch": 1, "batch_size": 8, "eval_batch_size": 10, "num_workers": 0, "num_folds": 2}
    return MetricDataModule(ImageFolder(images), transforms=transforms, **{**settings, **arguments})


def lines(folder: Path) -> list[dict[str, Any]]:
    """What is on disk, without the code that wrote it."""
    file = folder / LEDGER
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def counted(here: Path, key: str = "by") -> list[Any]:
    """Of all evaluations of the user, which are of one data set."""
    found = [line for line in lines(here / "cache" / "evaluations") if line["event"] == "evaluated"]
    for samples in here.glob("cache/evaluations/*.txt"):
        assert len(evaluations_of(samples.read_text().split())) == len(found), "known as one data set"
    return [line[key] for line in found]


def test_a_fit_a_validation_and_what_has_no_labels_write_none(checkpoint: Path, images: Path, here: Path, run) -> None:
    data = datamodule(images)
    plain = small_trainer(default_root_dir=here)
    plain.fit(it := small_learner(), data)
    plain.validate(it, data, verbose=False)
    plain.validate(it, data.val_dataloader(), verbose=False)
    for command in ("validate", "predict"):
        assert run(command, "--ckpt_path", checkpoint)[0] == 0
    data.setup("predict")
    assert torch.cat([batch[1] for batch in data.predict_dataloader()]).tolist() == [0] * 64
    (here / "flat").mkdir()
    for image in images.glob("*/*.png"):
        shutil.copy(image, here / "flat")
    assert levelfield.embed(checkpoint, here / "flat").labels is None
    data.evaluation = "a line of the caller's"
    data.setup("test")
    list(data.test_dataloader())
    plain.test(it, data, verbose=False)
    assert counted(here) == [], "an id is handed over"


def test_a_test_has_one_line_with_what_is_tested(checkpoint: Path, images: Path, here: Path) -> None:
    data = datamodule(images)
    small_trainer(default_root_dir=here).test(MetricLearner.load_from_checkpoint(checkpoint), data, verbose=False)
    line, finished = lines(checkpoint.parent)
    assert (line["num_samples"], list(line["checkpoints"]), line["by"]) == (TEST_SAMPLES, ["best.ckpt"], "trainer.test")
    assert (finished["event"], counted(here, "id")) == ("finished", [line["id"]])
    small_trainer(default_root_dir=here).test(small_learner(kind=Forgetful), data, verbose=False)
    assert (counted(here, "num_samples"), counted(here, "checkpoints")[1]) == ([TEST_SAMPLES] * 2, {})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_line_is_there_before_a_batch(images: Path, here: Path, num_workers: int) -> None:
    data = datamodule(images, num_workers=num_workers)
    data.setup("test")
    loader = data.test_dataloader()
    batches = iter(loader)
    next(batches)
    assert len(counted(here)) == 1
    assert (len([*batches]), len(counted(here))) == (3, 1), "32 samples by 10"
    list(loader)
    assert len(counted(here)) == 2, "another pass is another evaluation"


def test_the_loader_of_the_test_half_is_the_one_that_counts(images: Path, here: Path) -> None:
    data = datamodule(images)
    for stage in ("fit", "test"):
        data.setup(stage)
    list(data.eval_dataloader(data.test_subset))
    plain = small_trainer(default_root_dir=here)
    plain.validate(small_learner(), data.test_dataloader(), verbose=False)
    plain.test(small_learner(), data.test_dataloader(), verbose=False)
    plain.predict(small_learner(), data.test_dataloader())
    assert counted(here) == ["test_dataloader", "test_dataloader", "trainer.test", "test_dataloader"]
    plain.fit_loop.max_epochs = 3
    plain.fit(small_learner(), data.train_dataloader(), data.test_dataloader())
    assert len(counted(here)) == 4 + 3, "each epoch is chosen by the test half"


def test_a_copied_checkpoint_and_a_dry_run_are_evaluations(checkpoint: Path, images: Path, here: Path, run) -> None:
    copy = Path(shutil.copytree(checkpoint.parent, here / "elsewhere")) / checkpoint.name
    for number, path in enumerate((checkpoint, copy, copy), start=1):
        words = ("--reopen-test", "why not") if number == 3 else ()
        printed = run("test", "--ckpt_path", path, "--trainer.enable_progress_bar", "false", *words)[1]
        assert f"evaluation {number} on these test classes, recorded in {path.parent / LEDGER}\n" in printed
    assert [line["event"] for line in lines(here / "elsewhere")] == ["evaluated", "finished"] * 2
    small_trainer(default_root_dir=here, fast_dev_run=True).test(small_learner(), datamodule(images), verbose=False)
    assert counted(here, "reason") == ["", "", "why not", ""]
    assert counted(here) == ["levelfield test"] * 3 + ["trainer.test, fast_dev_run"]


def test_the_set_and_the_set_less_an_image_are_one_data_set(checkpoint: Path, images: Path, here: Path, run) -> None:
    less = Path(shutil.copytree(images, here / "less"))
    (less / "class 15" / "15_0.png").unlink()
    half = Path(shutil.copytree(images, here / "half"))
    for number in range(8):
        shutil.rmtree(half / f"class {number:02d}")
    assert run("test", "--ckpt_path", checkpoint, "--trainer.enable_progress_bar", "false")[0] == 0
    for number, data in ((2, images), (4, less), (6, half)):
        printed = run("score", "--ckpt_path", checkpoint, "--data", data)[1]
        assert f"evaluation {number} on this set, recorded in {checkpoint.parent / LEDGER}\n" in printed
        assert run("predict", "--ckpt_path", checkpoint, "--data", data, "--output", here / "e.parquet")[0] == 0
    encoder = Encoder(checkpoint)
    levelfield.embed(encoder, images)
    encoder.embed(encoder.samples(images))
    by = ["levelfield test", *["levelfield score", "levelfield predict"] * 3, *["levelfield.embed"] * 2]
    assert counted(here) == by
    assert counted(here, "num_samples") == [32, 64, 64, 63, 63, 32, 32, 64, 64]


def test_validation_on_classes_that_a_checkpoint_has_not_seen_leaves_a_line(checkpoint, images, here, run):
    """With `split: all` they are its test classes."""
    whole = {"split": "all", "num_folds": 2, "fold": 1}
    words = [*image_options(list(TINY), images.parent / "table.csv", images), "--model.loss", "ContrastiveLoss"]
    words += [part for key, value in whole.items() for part in (f"--data.{key}", str(value))]
    assert run("fit", *words, "--ckpt_path", checkpoint, "--output", here / "again")[0] == 0
    for use in (small_trainer(default_root_dir=here).fit, small_trainer().validate):
        use(MetricLearner.load_from_checkpoint(checkpoint), datamodule(images, **whole))
    assert counted(here) == ["validation of unseen classes"] * 3
    assert counted(here, "num_samples") == [32] * 3  # 8 of 16 classes, and 4 images of each
    assert all(checkpoints.keys() == {"best.ckpt"} for checkpoints in counted(here, "checkpoints"))
