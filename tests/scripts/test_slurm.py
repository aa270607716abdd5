"""The SLURM launcher, with an srun that only notes what it is to start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny_fit import REPOSITORY
from toy_study import TOY
from typed import parse

from levelfield.cli.main import main as levelfield
from levelfield.study.rows import load_spec

SCRIPT = REPOSITORY / "scripts" / "slurm.sh"
# SLURM's programs and Ray's: each notes its words in a line, and `ray start` waits as the real one does.
PROGRAM = """#!/bin/sh
line="{name}"
for word in "$@"; do line="$line	$word"; done
printf "%s\\n" "$line" >> {folder}/words
{does}
"""
PROGRAMS = {
    "srun": "case \"$*\" in *'ray start'*) exec sleep 60 ;; esac",
    "scontrol": "printf 'node1\\nnode2\\n'",
    # As the real one, `status` finds nodes only after `start` began.
    "ray": "case $1 in start) exec sleep 60 ;; status) "
    "for i in $(seq 300); do grep -q '^ray.start.*--head' {folder}/words && break; sleep 0.1; done; "
    "printf 'Active:\\n 1 node_a\\n 1 node_b\\n' ;; esac",
}


JOB = {"SLURM_JOB_ID": "70123", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
JOB |= {"SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "32"}


def programs(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def noting(folder: Path, name: str, does: str = "") -> str:
    return PROGRAM.format(name=name, folder=folder, does=does.replace("{folder}", str(folder)))


def submitted(folder: Path, *words: str) -> tuple[int, list[list[str]]]:
    """Exit code of the script on 2 nodes of 4 GPUs, and the commands that it gave."""
    programs(folder, **{name: noting(folder, name, does) for name, does in PROGRAMS.items()})
    environment = {**JOB, "PATH": f"{folder}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(folder)}
    written = folder / "words"
    written.unlink(missing_ok=True)
    ended = subprocess.run(["bash", str(SCRIPT), *words], env=environment, check=False, capture_output=True, timeout=60)
    return ended.returncode, [line.split("\t") for line in written.read_text().splitlines()] if written.exists() else []


def test_fit_starts_a_task_for_each_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    options = ("--config", "configs/data/glyphs.yaml", "--model.loss", "ArcFaceLoss", "--trainer.precision", "32-true")
    code, [words] = submitted(tmp_path, "fit", *options)
    assert submitted(tmp_path, *options) == (code, [words]), "as the page has it"
    assert submitted(tmp_path, "ift") == (2, []), "anything else is refused before it starts"
    monkeypatch.setitem(JOB, "SLURM_RESTART_COUNT", "1")
    assert "--resume" in submitted(tmp_path, "fit", *options)[1][0], "SLURM has requeued the job"
    assert "--resume" not in words
    assert code == 0
    assert words[:3] == ["srun", "--wait=300", "levelfield"], "a task that fails alone ends the others"
    assert levelfield([*words[3:], "--print_config"]) == 0
    trainer = yaml.safe_load(capsys.readouterr().out)["trainer"]
    assert (trainer["num_nodes"], int(trainer["devices"])) == (2, 4)
    assert (trainer["accelerator"], trainer["strategy"]) == ("gpu", "ddp")
    assert trainer["precision"] == "32-true", "the options of the command line win"


def test_a_study_runs_on_a_ray_cluster_over_all_nodes(tmp_path: Path) -> None:
    code, commands = submitted(tmp_path, "study", "run", "configs/study/quickstart.yaml", "--runs", "3")
    assert code == 0
    (head,) = (words for words in commands if words[:2] == ["ray", "start"])
    (port,) = (word.removeprefix("--port=") for word in head if word.startswith("--port="))
    assert {"--head", "--block", "--num-cpus=32"} <= {*head}
    others, study = (words for words in commands if words[0] == "srun")
    assert {"--nodes=1", "--ntasks=1", "--exclude=node1", f"--address=node1:{port}"} <= {*others}
    assert {"--nodes=1", "--ntasks=1", "--nodelist=node1"} <= {*study}, "the head's node runs the study"
    words = study[study.index("levelfield") + 1 :]
    assert words[0] == "study"
    asked = parse(words[1:])
    assert (asked.command, asked.file, asked.executor) == ("run", "configs/study/quickstart.yaml", "ray")
    assert asked.options == {"address": f"node1:{port}"}
    spec = load_spec(REPOSITORY / asked.file, asked.overrides, {})
    assert spec.runs == 3
    for method in spec.methods.values():
        assert (method["trainer"]["accelerator"], method["trainer"]["devices"]) == ("gpu", 1)
    code, commands = submitted(tmp_path, "study", "run", "x.yaml", "--trainer.accelerator", "cpu")
    (study,) = (words for words in commands if "levelfield" in words)
    assert parse(study[study.index("run") :]).overrides["trainer.accelerator"] == "cpu", "the command line wins"

    # Ray's workers have the variables of `ray start`, and Lightning writes no files if SLURM_PROCID is 1.
    (tmp_path / "ray").write_text("#!/bin/sh\nenv\n")
    task = {f"SLURM_{name}": "1" for name in ("PROCID", "LOCALID", "NODEID", "NTASKS", "STEP_ID", "STEP_NUM_TASKS")}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **task, "SLURM_JOB_ID": "7"}
    started = others[others.index("bash") :]
    found = subprocess.run(started, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout
    assert [line for line in found.splitlines() if line.startswith("SLURM_")] == ["SLURM_JOB_ID=7"]


@pytest.mark.processes
@pytest.mark.parametrize(("code", "array"), [(75, {}), (75, {"ARRAY_JOB_ID": "70120", "ARRAY_TASK_ID": "4"}), (0, {})])
def test_the_end_of_a_jobs_time_requeues_it_unless_levelfield_has_finished(code, array, tmp_path: Path) -> None:
    waits = f'#!/bin/bash\ntrap "exit {code}" USR1\ntouch begun\nwhile sleep 0.1; do :; done\n'
    programs(tmp_path, srun=waits, scontrol=noting(tmp_path, "scontrol"))
    environment = {**JOB, "PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}
    environment |= {f"SLURM_{name}": value for name, value in array.items()}
    job = subprocess.Popen(["bash", str(SCRIPT), "fit"], env=environment)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == (130 if code else 0)
    requeued = (tmp_path / "words").read_text() if code else ""
    assert requeued == ("scontrol\trequeue\t70120_4\n" if array else "scontrol\trequeue\t70123\n" if code else "")


@pytest.mark.full
@pytest.mark.processes
def test_the_cluster_does_the_jobs(tmp_path: Path) -> None:
    """Two Ray nodes of this machine; `srun` starts what it is given here."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'levelfield[ray]'")
    starts = '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n'
    programs(tmp_path, srun=starts, scontrol="#!/bin/sh\nhostname\n")
    (tmp_path / "toy.yaml").write_text(TOY)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "two", "SLURM_JOB_NUM_NODES": "2"}
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **job, "PATH": path, "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_ON_NODE": "1"}
    small = ["--trainer.accelerator", "cpu", "--search.trials", "0", "--runs", "1", "--trainer.max_epochs", "1"]
    command = ["bash", str(SCRIPT), "study", "run", "toy.yaml", *small]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("outputs/toy/jobs/*/run0/fold*/result.json"))) == 7  # with the one PCA
    assert (tmp_path / "outputs/toy/results.csv").is_file()
