"""Each `trainer.test` leaves a line that says what is tested; tests/test_evaluations_counted.py counts them."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from small_fit import small_data, small_learner, small_trainer
from torch.utils.data import DataLoader, TensorDataset

from levelfield.losses import ArcFaceLoss
from levelfield.training.callbacks import RecordEvaluation
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")


def data(num_classes: int = 40):
    return small_data(num_classes, steps_per_epoch=1)


def trainer(folder, *callbacks) -> Trainer:
    return small_trainer(*callbacks, default_root_dir=folder)


def learner() -> MetricLearner:
    return small_learner(ArcFaceLoss, embedding_size=8)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkpoint of a plain Trainer's fit, in a folder of its own."""
    plain = trainer(tmp_path)
    plain.fit(learner(), data())
    plain.save_checkpoint(tmp_path / "run" / "it.ckpt")
    return tmp_path / "run" / "it.ckpt"


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


class BeforeTheData(Callback):
    """What the ledger holds when the first test batch comes."""

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0) -> None:
        self.events = [line["event"] for line in lines(self.folder)]


def test_a_checkpoints_test_is_recorded_beside_it_unless_it_has_trained_since(copied, tmp_path) -> None:
    watch, tests = BeforeTheData(), trainer(tmp_path)
    watch.folder = copied.parent
    trainer(tmp_path, watch).test(learner(), data(), verbose=False, ckpt_path=copied, weights_only=True)
    it = MetricLearner.load_from_checkpoint(copied)
    tests.test(it, data(), verbose=False)
    assert watch.events == ["evaluated"]
    evaluated, finished, again, _ = lines(copied.parent)
    assert evaluated["checkpoints"] == {"it.ckpt": hashlib.sha256(copied.read_bytes()).hexdigest()}
    assert (evaluated["event"], evaluated["num_samples"], evaluated["reason"]) == ("evaluated", 20 * 16, "")
    assert (finished["event"], finished["id"]) == ("finished", evaluated["id"])
    assert again["checkpoints"] == evaluated["checkpoints"]
    assert not (tmp_path / "ledger.jsonl").exists()
    tests.fit(it, data())
    tests.test(it, data(), verbose=False)
    assert len(lines(copied.parent)) == 4
    assert list(lines(tmp_path)[0]["checkpoints"]) == ["weights"]


def test_loaders_of_ones_own_have_lines_in_their_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    images = TensorDataset(torch.rand(20, 3, 32, 32), torch.arange(20) // 4)
    it = learner()
    it.build_loss(15)
    for count, reason in ((1, ""), (2, "a colleague asked")):
        trainer(tmp_path, record := RecordEvaluation(reason)).test(it, DataLoader(images, batch_size=5), verbose=False)
        assert record.count == count
    assert [line["event"] for line in lines(tmp_path)] == ["evaluated", "finished"] * 2
    assert [line["reason"] for line in lines(tmp_path)[::2]] == ["", "a colleague asked"]


def test_each_of_several_loaders_is_an_evaluation(tmp_path) -> None:
    """Of two datamodules, and of tensors: the labels of each are recorded before a batch of the first."""
    loaders = []
    for number in (40, 20):
        module = data(number)
        module.setup("test")
        loaders.append(module.test_dataloader())
    images = TensorDataset(torch.rand(20, 3, 32, 32), torch.arange(20) // 4)
    it, watch = learner(), BeforeTheData()
    it.build_loss(15)
    watch.folder = tmp_path
    trainer(tmp_path, watch).test(it, [*loaders, DataLoader(images, batch_size=5)], verbose=False)
    assert watch.events == ["evaluated"] * 3
    assert [line["num_samples"] for line in lines(tmp_path)[:3]] == [20 * 16, 10 * 16, 0]
    assert {line["id"] for line in lines(tmp_path)[:3]} == {line["id"] for line in lines(tmp_path)[3:]}
    assert len(lines(tmp_path)) == 6
    assert [loader.evaluation for loader in loaders] == [None, None], "another pass is another evaluation"
