"""A fit whose numbers contradict those of who started it ends in one line, before it waits for anybody."""

import re

import pytest
from tiny_fit import TINY

TORCHRUN = {
    **{"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    **{"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
SRUN = {
    **{"SLURM_JOB_NAME": "levelfield", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "node7", "SLURM_NNODES": "1"},
    **{"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_NUM_TASKS": "2"},
    **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
}
SBATCH = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"}


@pytest.mark.parametrize(
    ("environment", "words", "named"),
    [
        pytest.param(TORCHRUN, ["--trainer.devices", "3"], "torchrun .* 2 .* 3", id="torchrun, other"),
        pytest.param(TORCHRUN, [], "torchrun .* 2 .* 1", id="torchrun, one"),
        pytest.param(SRUN, ["--trainer.devices", "3"], "srun .* 2 .* 3", id="srun, other"),
        pytest.param(SRUN, [], "srun .* 2 .* 1", id="srun, one"),
        pytest.param(
            {**SRUN, "SLURM_NNODES": "2"}, ["--trainer.devices", "2"], "srun .*--trainer.num_nodes 2", id="srun, nodes"
        ),
        pytest.param(
            {**TORCHRUN, "LOCAL_WORLD_SIZE": "1"},
            ["--trainer.devices", "2"],
            "torchrun .*--trainer.num_nodes 2",
            id="torchrun, nodes",
        ),
        pytest.param(
            {**SBATCH, "SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1"},
            ["--trainer.devices", "8"],
            "--trainer.devices.* 1 of 8 .*unset SLURM_NTASKS",
            id="sbatch, one task",
        ),
        pytest.param(SBATCH, ["--trainer.devices", "2"], "--trainer.devices.* 1 of 2 .* srun ", id="sbatch, no srun"),
        pytest.param({}, ["--trainer.num_nodes", "2"], "--trainer.num_nodes 2.* torchrun", id="nobody"),
    ],
)
def test_numbers_that_contradict_the_launcher_are_one_line(
    environment: dict[str, str], words: list[str], named: str, run, tmp_path, monkeypatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    trainer = ["--trainer.accelerator", "cpu", *words]
    code, _, complaint = run("fit", *TINY, "--model.loss", "ContrastiveLoss", *trainer, "--output", str(tmp_path))
    assert code == 2
    assert len(complaint.splitlines()) == 1
    assert re.search(named, complaint), complaint
    assert not any((tmp_path / "fit").glob("*/*")), "no folder is left"
