"""A job has one device unless the study says otherwise, and whoever is started as one of several takes none."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import yaml
from toy_study import run_study

from levelfield.errors import UserError
from levelfield.study.definition.study_file import load_spec
from levelfield.study.execution.executors.local import Local, devices_of
from levelfield.study.execution.group import refuse_to_be_one_of_many
from levelfield.study.record import StudyRecord

COUNTING = '''
import os

import torch.distributed
from torch import nn


class Counting(nn.Module):
    """Notes which process of how many computes it."""

    def forward(self, embeddings, labels):
        group = torch.distributed
        size, rank = (group.get_world_size(), group.get_rank()) if group.is_initialized() else (1, 0)
        with open("processes.log", "a") as log:
            print(os.getpid(), rank, size, file=log)
        return embeddings.square().sum()
'''


def test_a_job_has_one_device_and_its_number_is_part_of_the_study(toy_file: Path) -> None:
    spec = load_spec(toy_file)
    assert [config["trainer"]["devices"] for config in spec.methods.values()] == [1, 1]
    two = load_spec(toy_file, {"trainer.devices": 2})
    assert [config["trainer"]["devices"] for config in two.methods.values()] == [2, 2]
    assert two.configuration_hash() != spec.configuration_hash()
    assert load_spec(toy_file, {"trainer.devices": 1}).configuration_hash() == spec.configuration_hash()


@pytest.mark.parametrize("devices", [-1, 0, "auto", [0, 1], True])
def test_a_number_of_devices_that_each_machine_reads_otherwise_is_refused(toy_file: Path, devices: object) -> None:
    with pytest.raises(UserError, match=r"trainer.devices is .*: give a whole number of at least 1"):
        load_spec(toy_file, {"trainer.devices": devices})


def test_a_worker_sees_as_many_gpus_as_a_job_has() -> None:
    devices = ["4", "5", "6", "7", "8"]
    seen = [devices_of(worker, devices, 2)["CUDA_VISIBLE_DEVICES"] for worker in range(3)]
    assert seen == ["4,5", "6,7", "4,5"]
    assert [devices_of(worker, devices, 1)["CUDA_VISIBLE_DEVICES"] for worker in range(2)] == ["4", "5"]
    assert devices_of(0, [], 1) == {}, "no GPU: what the worker sees is left as it is"


def test_one_process_sees_the_gpus_that_the_executor_names_alone(
    toy_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with Local(devices=2).ready(StudyRecord(tmp_path, load_spec(toy_file))):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"


def test_a_second_study_of_a_process_that_uses_cuda_sees_the_gpus_of_the_first(
    toy_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    record = StudyRecord(tmp_path, load_spec(toy_file))
    with Local(devices=2).ready(record):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with Local(devices=2).ready(record):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(UserError, match="uses CUDA already"), Local(devices=1).ready(record):
        pass


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}, "torchrun"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "srun"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "sbatch"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "mpirun"),
        ({"LOCAL_RANK": "1"}, None),  # Lightning would leave all writing to another process
    ],
)
def test_one_of_several_processes_of_a_launcher_takes_no_job(
    environment: dict[str, str], launcher: str | None, toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = rf"^{launcher} started this study as one of \d processes" if launcher else r"^RANK, LOCAL_RANK or .* is set"
    with pytest.raises(UserError, match=rf"{said}.*start it once"):
        run_study(tmp_path / "out", load_spec(toy_file))
    assert not (tmp_path / "out").exists()


def test_the_only_process_of_a_launcher_does_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    refuse_to_be_one_of_many()


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_on_two_devices_has_a_group_of_its_own(toy_file: Path, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    content = yaml.safe_load(toy_file.read_text())
    content |= {"spaces": {}, "search": {}, "runs": 1}
    content["methods"] = {"counting": {"model": {"loss": {"class_path": "counting.Counting"}}}}
    content["base"][0]["trainer"] |= {"devices": 2, "max_epochs": 1}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(content))
    # As `torchrun --nproc_per_node=1` starts it: a group that took this for its own would wait for a second process.
    launcher = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29501"}
    study = subprocess.Popen(
        [sys.executable, "-m", "levelfield", "study", "run", "two.yaml", "--output", "out"],
        cwd=tmp_path,
        env={**os.environ, **launcher},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = study.communicate(timeout=240)
    finally:
        study.kill()
    assert study.returncode == 0, printed
    ranks = defaultdict(set)
    for line in (tmp_path / "processes.log").read_text().splitlines():
        process, rank, size = line.split()
        if process == str(study.pid):
            assert size == "1", "the look before it begins is of one process"
        else:
            assert size == "2"
            ranks[process].add(rank)
    assert sorted(rank for found in ranks.values() for rank in found) == ["0", "0", "1", "1"], "two jobs, two groups"
    for fold in range(2):
        result = json.loads((tmp_path / f"out/jobs/counting/run0/fold{fold}/result.json").read_text())
        assert result["validation"]["map_at_r"] > 0
