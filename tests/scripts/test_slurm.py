"""The SLURM launcher, with an srun that only notes what it is to start."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from levelfield.cli.main import main as levelfield
from levelfield.cli.study import parse
from levelfield.runtime.signals import SIGNALS
from levelfield.study.rows import load_spec

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "slurm.sh"


def submitted(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code of the script on 2 nodes of 4 GPUs, and the words that it gave to srun."""
    srun = folder / "srun"
    srun.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/words\n')
    srun.chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(REPOSITORY),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
    }
    ended = subprocess.run(["bash", str(SCRIPT), *words], env=environment, check=False, capture_output=True)
    written = folder / "words"
    return ended.returncode, written.read_text().splitlines() if written.exists() else []


def test_fit_starts_a_task_for_each_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    options = ("--config", "configs/data/glyphs.yaml", "--model.loss", "ArcFaceLoss", "--trainer.precision", "32-true")
    code, words = submitted(tmp_path, "fit", *options)
    assert code == 0
    assert words[:2] == ["--wait=300", "levelfield"], "a task that fails alone ends the others"
    with pytest.raises(SystemExit) as ended:
        levelfield([*words[2:], "--print_config"])
    assert ended.value.code in (None, 0)
    trainer = yaml.safe_load(capsys.readouterr().out)["trainer"]
    assert (trainer["num_nodes"], int(trainer["devices"])) == (2, 4)
    assert (trainer["accelerator"], trainer["strategy"]) == ("gpu", "ddp")
    assert trainer["precision"] == "32-true", "the options of the command line win"


def test_the_command_of_the_first_steps_is_a_fit(tmp_path: Path) -> None:
    line = next(line for line in (REPOSITORY / "docs/first_steps.md").read_text().splitlines() if "sbatch " in line)
    command = shlex.split(line)
    options = command[command.index("scripts/slurm.sh") + 1 :]
    with_the_word = submitted(tmp_path, "fit", *[word for word in options if word != "fit"])
    assert submitted(tmp_path, *options) == with_the_word
    assert with_the_word[0] == 0
    assert with_the_word[1][1:3] == ["levelfield", "fit"]


def test_slurm_signals_the_tasks_before_the_limit_and_may_requeue_the_job() -> None:
    asked = [line.removeprefix("#SBATCH ") for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH ")]
    (signalled,) = (line.removeprefix("--signal=") for line in asked if line.startswith("--signal="))
    name, _, seconds = signalled.partition("@")
    # Without B: it goes to the tasks of srun, not to the batch shell.
    assert signal.Signals[f"SIG{name}"] in SIGNALS
    assert int(seconds) >= 60
    assert "--requeue" in asked
    assert "--open-mode=append" in asked


def test_a_study_is_one_task_on_one_gpu(tmp_path: Path) -> None:
    code, words = submitted(tmp_path, "study", "run", "configs/study/quickstart.yaml", "--runs", "3")
    assert code == 0
    assert words[:5] == ["--nodes=1", "--ntasks=1", "levelfield", "study", "run"]
    asked = parse(words[4:])
    assert (asked.command, asked.file) == ("run", "configs/study/quickstart.yaml")
    spec = load_spec(REPOSITORY / asked.file, asked.overrides, {})
    assert spec.runs == 3
    assert all(method["trainer"]["accelerator"] == "gpu" for method in spec.methods.values())
    assert all(method["trainer"]["devices"] == 1 for method in spec.methods.values())


def test_anything_else_is_refused_before_it_starts(tmp_path: Path) -> None:
    assert submitted(tmp_path, "ift") == (2, [])
