"""What waits to be sent to W&B and TensorBoard comes in order, with the time that it is of."""

import sys
import time

import pytest
from refused import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import offline_runs

from levelfield.training import batched_tensorboard, batched_wandb
from levelfield.training.batched_tensorboard import BatchedTensorBoardLogger
from levelfield.training.batched_wandb import BatchedWandbLogger
from levelfield.training.trackers import QUIET


@pytest.mark.parametrize(
    ("logger", "packages", "remedy"),
    [
        ("logger/wandb", ["wandb"], "--trainer.logger BatchedWandbLogger needs W&B: pip install 'levelfield[wandb]'"),
        ("logger/tensorboard", ["tensorboard", "tensorboardX"], "pip install 'levelfield[tensorboard]'"),
    ],
)
def test_a_tracker_that_is_not_installed_is_one_line(logger, packages, remedy, tiny, run, tmp_path, monkeypatch):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "fit"]
    refused(run(*words, "--config", logger), remedy)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_rows_come_in_order_each_with_its_step_and_time(tmp_path, monkeypatch):
    logger = BatchedWandbLogger(project="p", save_dir=tmp_path, offline=True, settings=QUIET)
    spans = []
    for step in range(3):
        began = time.time()
        logger.log_metrics({"a": step / 2, "b": 1.0}, step=step)
        spans.append((began, time.time()))
        time.sleep(0.05)
    sent = time.time()
    logger.experiment.log({"by hand": 1})  # after those that waited
    monkeypatch.setattr(batched_wandb, "LONGEST_WAIT", 0)
    logger.log_metrics({"a": 7.0}, step=9)  # at once
    assert logger._waiting == []
    logger.experiment.finish()

    [told] = offline_runs(tmp_path)
    assert told.series("a") == {0: 0.0, 1: 0.5, 2: 1.0, 9: 7.0}
    assert [sorted(key for key in row if not key.startswith("_")) for row in told.history] == [
        *[["a", "b", "trainer/global_step"]] * 3,
        ["by hand", "trainer/global_step"],  # the last one told, of W&B itself
        ["a", "trainer/global_step"],
    ]
    times = [row["_timestamp"] for row in told.history]
    assert all(began <= told_at <= ended for told_at, (began, ended) in zip(times, spans, strict=False))
    assert times[3] >= sent


def test_a_prefix_is_put_before_the_keys_alone(tmp_path):
    logger = BatchedWandbLogger(project="p", save_dir=tmp_path, offline=True, settings=QUIET, prefix="mine")
    logger.log_metrics({"a": 1.0}, step=0)
    logger.experiment.finish()
    [told] = offline_runs(tmp_path)
    assert told.keys == {"mine-a", "trainer/global_step"}


def test_tensorboard_has_each_row_with_its_step_and_time(tmp_path, monkeypatch):
    logger = BatchedTensorBoardLogger(tmp_path, "", "", prefix="mine")
    spans = []
    for step in range(3):
        began = time.time()
        logger.log_metrics({"a": step / 2, "b": 1.0}, step=step)
        spans.append((began, time.time()))
        logger.save()  # as Lightning does after each row
        time.sleep(0.05)
    assert not list(tmp_path.iterdir()), "nothing is written yet"
    logger.experiment.add_scalar("by hand", 1, 5)  # after those that waited
    monkeypatch.setattr(batched_tensorboard, "LONGEST_WAIT", 0)
    logger.log_metrics({"a": 7.0}, step=9)  # at once
    monkeypatch.undo()
    logger.log_metrics({"a": 8.0}, step=10)
    logger.finalize("success")

    written = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in written.Scalars("mine-a")] == [
        *((0, 0.0), (1, 0.5), (2, 1.0), (9, 7.0), (10, 8.0))
    ]
    times = [event.wall_time for event in written.Scalars("mine-b")]
    assert all(began <= told_at <= ended for told_at, (began, ended) in zip(times, spans, strict=True))
    assert set(written.Tags()["scalars"]) == {"mine-a", "mine-b", "by hand"}
