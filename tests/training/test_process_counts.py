"""`levelfield fit` that begins on one process and resumes on two, or the other way: one validation curve."""

import csv
from pathlib import Path

import pytest
from forked import levelfield, python
from kill_at import KILL
from tiny_fit import TINY

ALONE = ["--trainer.devices", "1"]
DDP = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
SETTINGS = """
trainer:
  max_epochs: 4
  accelerator: cpu
  precision: 64-true # float32 swaps near ties of a ranking
  callbacks: {class_path: kill_at.KillAt}
"""


def fit(folder: Path, name: str, processes: list[str], *words: str, kill: str = "") -> list[float]:
    """The validation curve of 20 steps, 5 an epoch; none of a fit that is killed."""
    settings = folder / "settings.yaml"
    settings.write_text(SETTINGS)
    words = (*TINY, "--config", str(settings), "--model.loss", "ArcFaceLoss", "--data.steps_per_epoch", "5", *words)
    words += ("--checkpoint_seconds", "0")
    command = levelfield("fit", *words, "--name", name, *processes)
    done = python(*command, folder=folder, **{KILL: kill})
    if kill:
        assert "SIGUSR1" in done.stderr, done.stderr
        return []
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (folder / "outputs/fit" / name).iterdir()] == ["0"]
    with (folder / "outputs/fit" / name / "0/metrics.csv").open() as lines:
        return [float(row["val/map_at_r"]) for row in csv.DictReader(lines) if row["val/map_at_r"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("curves")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[float]:
    curve = fit(folder, "alone", ALONE)
    assert len(set(curve)) == 4, "it learns"
    return curve


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(DDP, ALONE, id="from_2_to_1"),
        pytest.param(ALONE, DDP, id="from_1_to_2"),
    ],
)
def test_a_fit_resumes_with_another_number_of_processes(folder, alone, first, then, request) -> None:
    name = request.node.callspec.id
    fit(folder, name, first, kill="1 1 SIGUSR1")
    assert fit(folder, name, then, "--resume") == pytest.approx(alone, abs=1e-4)
