"""Batches: labels that count from 0, draws that depend on nothing else, and as many processes as serve."""

import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from own_images import noise_images
from torch.utils.data import DataLoader

from levelfield.core.processes import SIDE_BY_SIDE
from levelfield.data import Glyphs, ImageTable, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.loaders import ClassSubset, loader, loader_processes
from levelfield.data.samplers import Draw
from levelfield.data.transforms import as_floats, stacked


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 192 images of noise in 16 classes."""
    return noise_images(tmp_path_factory.mktemp("images"), 192, 12, 40, 36, ".jpg")


def datamodule(images: Path, **options) -> MetricDataModule:
    given = {"transforms": ImageTransforms(24, 32), "batch_size": 8, "steps_per_epoch": 2, "eval_batch_size": 4}
    data = MetricDataModule(ImageTable(images), **given, **options)
    data.setup("fit")
    return data


@pytest.mark.parametrize("cache", [False, True])
def test_a_batch_is_its_samples_side_by_side(cache, images: Path) -> None:
    data = datamodule(images, cache=cache)
    loading = data.train_dataloader()
    assert {*data.train_subset.labels.tolist()} == {*range(data.num_train_classes)}
    for (samples, labels, index), draws in zip(loading, loading.sampler, strict=True):
        expected = [data.train_subset[draw] for draw in draws]
        assert torch.equal(samples, as_floats(stacked([sample for sample, _, _ in expected])))
        assert labels.tolist() == [label for _, label, _ in expected]
        assert index.tolist() == [position for _, _, position in expected]
    samples, _, index = next(iter(data.val_dataloader()))
    assert torch.equal(samples, as_floats(stacked([data.val_subset[Draw(int(i), int(i))][0] for i in index])))
    assert samples.is_contiguous(memory_format=torch.channels_last)


def test_the_bytes_for_a_gpu_become_the_same_floats(images: Path) -> None:
    data = datamodule(images)
    expected = next(iter(loader(data.val_subset, 0, on_gpu=False, batch_size=4)))
    pixels = loader(data.val_subset, 0, on_gpu=True, batch_size=4)
    pixels.pin_memory = False  # there may be no GPU here
    batch = next(iter(pixels))
    assert batch[0].dtype == torch.uint8
    assert batch[0].is_contiguous(memory_format=torch.channels_last)
    for given, wanted in zip(data.on_after_batch_transfer(batch, 0), expected, strict=True):
        assert torch.equal(given, wanted)
    for precision, dtype in {"bf16-true": torch.bfloat16, "64-true": torch.float64}.items():
        data.trainer = Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
        converted, labels = data.on_after_batch_transfer(batch[:2], 0)
        assert (converted.dtype, labels.dtype) == (dtype, torch.int64)
        torch.testing.assert_close(converted, as_floats(batch[0]).to(dtype))


@pytest.mark.processes
def test_loader_processes_change_no_batch(images: Path) -> None:
    alone, two = (datamodule(images, num_workers=number) for number in (0, 2))
    for part in ("train_dataloader", "val_dataloader"):
        for left, right in zip(getattr(alone, part)(), getattr(two, part)(), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


UNGUARDED = """
import multiprocessing, sys
multiprocessing.set_start_method("forkserver")  # as on Linux since Python 3.14
from levelfield import MetricDataModule
from levelfield.data import ImageTable, ImageTransforms

data = MetricDataModule(
    ImageTable(sys.argv[1]), cache=True, num_workers=1, transforms=ImageTransforms(24, 32), batch_size=8,
    steps_per_epoch=2,
)
data.setup("fit")
print(sum(len(labels) for _, labels, _ in data.train_dataloader()))
"""


@pytest.mark.processes
def test_loader_processes_import_no_script(images: Path, tmp_path: Path) -> None:
    """An unguarded script would start loader processes in its loader processes."""
    (script := tmp_path / "script.py").write_text(UNGUARDED)
    environment = {**os.environ, "LEVELFIELD_CACHE": str(tmp_path)}
    words = [sys.executable, str(script), str(images)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr[-3000:]


def test_how_many_processes_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    gpu = partial(loader_processes, "auto", "image", on_gpu=True)
    assert [gpu(), gpu(trainings=4), gpu(decodes=False)] == [15, 3, 8]
    assert loader_processes("auto", "image", on_gpu=False) == loader_processes("auto", "text", on_gpu=True) == 0
    assert loader_processes(5, "image", on_gpu=False) == 5
    data, on_gpu = MetricDataModule(Glyphs(num_classes=40)), SimpleNamespace(root_device=torch.device("cuda"))
    data.setup("validate")
    data.trainer = SimpleNamespace(global_rank=0, world_size=32, num_nodes=8, strategy=on_gpu)
    assert data.val_dataloader().num_workers == 3, "of the 4 of each node"
    for cores, expected in ((64, 15), (16, 3)):  # 4 tasks, each bound to its 16; 4 that share these
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(cores))
        assert gpu(trainings=4) == expected
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    for workers, expected in ((8, 1), (32, 0)):  # of a study on one machine
        monkeypatch.setenv(SIDE_BY_SIDE, str(workers))
        assert gpu() == expected


def draw_from_all(image: object) -> torch.Tensor:
    return torch.tensor([torch.rand(()), np.random.rand(), np.random.randn(), random.random()], dtype=torch.float64)


@pytest.mark.processes
def test_a_view_depends_on_seed_and_draw_and_on_no_loader_process() -> None:
    glyphs = Glyphs(num_classes=8, image_size=32)
    index = glyphs.read_index()
    some = index.select(np.isin(index.labels, [2, 5, 6]))
    subset = ClassSubset(glyphs, some, ImageTransforms(crop_size=32, resize=32).train(), seed=7)
    assert np.array_equal(subset[Draw(3, 11)][0], subset[Draw(3, 11)][0])
    assert not np.array_equal(subset[Draw(3, 12)][0], subset[Draw(3, 11)][0])
    own = ClassSubset(glyphs, some, draw_from_all, seed=7)
    states = np.random.get_state()[1].tolist(), random.getstate()
    alone, one, reseeded = (
        torch.cat([batch[0] for batch in DataLoader(samples, batch_size=16, num_workers=workers)])
        for samples, workers in ((own, 0), (own, 1), (ClassSubset(glyphs, some, draw_from_all), 0))
    )
    assert torch.equal(alone, one)
    assert len(alone.unique()) == alone.numel() == 4 * 48
    assert (alone != reseeded).all()
    assert own[5][0].tolist() == alone[5].tolist()
    assert np.random.get_state()[1].tolist() == states[0]
    assert random.getstate() == states[1]
