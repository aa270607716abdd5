"""One training as the command starts it or a study builds it."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import Forked, children, levelfield
from one_fails import WAIT_SECONDS
from PIL import Image
from refused import refused
from small_fit import small_config
from tiny_fit import TINY

from levelfield.core.processes import is_running
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageFolder
from levelfield.models import TimmTrunk
from levelfield.training import build as builder
from levelfield.training.build import SharedParts, Training


@pytest.mark.processes
def test_a_real_start_of_the_command_knows_short_names_and_a_profiler_prints_its_report(tmp_path):
    more = "--model.loss TripletMarginLoss --model.miner DistanceWeightedMiner --data.dataset.num_classes 24"
    words = [*TINY, *more.split(), "--trainer.profiler", "simple", "--output", tmp_path]
    command = [sys.executable, *map(str, levelfield("fit", *words))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert "run_training_epoch" in done.stdout + done.stderr
    assert (tmp_path / "fit/Glyphs-TripletMarginLoss/0/best.ckpt").exists()


def test_no_profiler_ends_with_its_training(tmp_path):
    """Lightning's has a `__del__`, in which a Ctrl-C between two jobs of a study would be lost."""
    one, other = (Training(small_config(), tmp_path / name).build().trainer.profiler for name in "ab")
    assert one is other


def test_a_deterministic_training_does_not_fill_the_memory_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    training = Training(small_config(), tmp_path).build()
    training.trainer.fit(training.model, datamodule=training.datamodule)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert "optimizer_states" not in torch.load(tmp_path / "best.ckpt", weights_only=True), "a job keeps weights alone"


@pytest.mark.full  # of a new interpreter
def test_one_batch_is_not_all_batches_whatever_was_imported_before() -> None:
    """typing gives `Union[int, float, None]` as the union of these that was made first, and so does a Trainer's."""
    code = (
        "from typing import Optional, Union; Optional[Union[float, int]]\n"
        "from pathlib import Path; from levelfield.training.build import build\n"
        "trunk = {'class_path': 'TimmTrunk', 'init_args': {'name': 'test_resnet', 'weights': None}}\n"
        "config = {'model': {'loss': 'ContrastiveLoss', 'trunk': trunk}, 'data': {'dataset': 'Glyphs'}}\n"
        "for given in (1, 1.0, 0.5, 0):\n"
        "    trainer = Training({**config, 'trainer': {'limit_train_batches': given}}, Path('.')).config.trainer\n"
        "    print(repr(trainer.limit_train_batches))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1.0", "0.5", "0"], done.stderr


def test_no_command_of_a_configuration_is_run(tiny, run, tmp_path):
    """Where torch asks for a truth value, and no type for a class."""
    command = {"class_path": "subprocess.Popen", "init_args": {"args": f"id > {tmp_path}/written", "shell": True}}
    loss = {"class_path": "torch.nn.MSELoss", "init_args": {"size_average": command}}
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump({"model": {"loss": loss}}))
    refused(run("fit", *tiny, "--config", tmp_path / "attack.yaml", "--output", tmp_path), "subprocess.Popen")
    assert not (tmp_path / "written").exists()


@pytest.mark.processes
@pytest.mark.parametrize(("command", "rank"), [("fit", 1), pytest.param("validate", 0, marks=pytest.mark.full)])
def test_where_one_of_two_processes_fails_alone_the_other_does_not_stay_behind(command, rank, fitted, tmp_path) -> None:
    words = [*TINY, "--model.loss", "ContrastiveLoss"] if command == "fit" else ["--ckpt_path", fitted / "best.ckpt"]
    fails = {"class_path": "one_fails.OneFails", "init_args": {"rank": rank, "error": "ValueError"}}
    two = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "callbacks": fails}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"trainer": two}))
    process = Forked(levelfield(command, *map(str, words), "--config", "two.yaml"), tmp_path / "log", tmp_path)
    process.wait_for(lambda: " fails" in process.printed())
    failed, others = time.monotonic(), children(process.pid)
    complaint = process.wait()
    while any(map(is_running, others)):
        time.sleep(0.01)
    assert time.monotonic() - failed < WAIT_SECONDS / 2
    assert complaint.count(f"ValueError: process {rank} fails") == 1, complaint


NEW: dict[str, Any] = {"name": "test_resnet", "weights": None}


def built(build: Any, seed: int) -> tuple[TimmTrunk, torch.Tensor]:
    """A trunk, and what is drawn after it."""
    torch.manual_seed(seed)
    return build(), torch.rand(4)


def test_a_kept_trunk_is_the_one_that_would_be_built() -> None:
    kept = SharedParts()
    for seed in (3, 3, 4, 3):
        expected, expected_draw = built(lambda: TimmTrunk(**NEW), seed)
        found, draw = built(lambda: kept.trunk(TimmTrunk, NEW), seed)
        assert torch.equal(draw, expected_draw)
        state = found.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in expected.state_dict().items())


def test_a_trunk_is_built_anew_where_it_is_another_or_has_changed() -> None:
    kept, other = SharedParts(), {**NEW, "mean": [0.0, 0.0, 0.0]}
    first, _ = built(lambda: kept.trunk(TimmTrunk, NEW), 3)
    assert built(lambda: kept.trunk(TimmTrunk, NEW), 3)[0] is first
    assert built(lambda: kept.trunk(TimmTrunk, NEW), 4)[0] is not first
    second, _ = built(lambda: kept.trunk(TimmTrunk, other), 4)
    assert second.mean == (0.0, 0.0, 0.0)
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert built(lambda: kept.trunk(TimmTrunk, other), 4)[0] is not second


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images of the same size in bytes in each of 20 classes, in a folder inside the class folder."""
    for number in range(20):
        (place := tmp_path / f"class{number:02d}" / "inside").mkdir(parents=True)
        for sample in range(2):
            Image.new("RGB", (8, 8), (number, sample, 0)).save(place / f"{sample}.bmp")
    return tmp_path


def fingerprint(dataset: ImageFolder) -> str:
    return MetricDataModule(dataset).identity()["fingerprint"]


def test_a_new_file_is_found_after_a_minute(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(builder.time, "monotonic", lambda: now[0])
    kept, given = SharedParts(), {"folder": str(images)}
    before = fingerprint(kept.dataset(ImageFolder, given))
    Image.new("RGB", (8, 8)).save(images / "class00" / "inside" / "2.bmp")
    after = fingerprint(ImageFolder(images))
    now[0] = 59.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == before != after
    now[0] = 61.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == after


def test_an_overwritten_file_ends_a_kept_list_at_once(images: Path) -> None:
    """Other pixels, with the size and the modification time of those before."""
    kept, given = SharedParts(), {"folder": str(images)}
    first = kept.dataset(ImageFolder, given)
    before = fingerprint(first)
    assert kept.dataset(ImageFolder, given) is first
    file = images / "class02" / "inside" / "0.bmp"
    stat = file.stat()
    Image.new("RGB", (8, 8), "red").save(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(kept.dataset(ImageFolder, given)) == fingerprint(ImageFolder(images)) != before
