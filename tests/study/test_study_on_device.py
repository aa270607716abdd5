"""A study in float64 whose two workers share a device, against the same study on the CPU by one process."""

import csv
from pathlib import Path

import pytest
import torch
from toy_study import run_study

from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec


def scores(folder: Path) -> dict[tuple[str, ...], float]:
    with (folder / "results.csv").open() as file:
        return {tuple(v for k, v in row.items() if k != "value"): float(row["value"]) for row in csv.DictReader(file)}


ON_CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))


@pytest.mark.processes
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), pytest.param("cuda", marks=ON_CUDA)])
def test_two_workers_on_one_device_find_what_one_finds_on_the_cpu(toy_file, tmp_path, device, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # of the workers, which embed in float32; and here:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = {"runs": 1, "search.trials": 1, "trainer.precision": "64-true"}
    on_cpu = load_spec(toy_file, settings)
    run_study(tmp_path / "cpu", on_cpu)
    shared = load_spec(toy_file, {**settings, "trainer.accelerator": "gpu" if device == "cuda" else "cpu"})
    run_study(tmp_path / "shared", shared, Local(shared, workers=2))
    results = StudyFolder.begun(tmp_path / "shared").state.results.values()
    assert {result["provenance"]["device"].partition(":")[0] for result in results} == {device}
    expected, found = scores(tmp_path / "cpu"), scores(tmp_path / "shared")
    assert found == pytest.approx(expected, abs=5e-3)  # a rounded similarity may change places
