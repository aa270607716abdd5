"""Processes: how they start, what they keep, who has the signals of a cluster, and when they end."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from toy_study import TOY

from levelfield.core.errors import UserError
from levelfield.core.paths import cache_root
from levelfield.core.processes import is_running
from levelfield.core.signals import SIGNALS, StopAtOnce, Stopped, handling, keeping_ctrl_c, requeue

PARENT = """
import multiprocessing, os, sys, time
from levelfield.core.processes import end_with_parent

def work(parent):
    end_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(os.getpid(),)).start()
    time.sleep(600)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("start_method", "how"), [("fork", "KILL"), ("spawn", "TERM"), ("forkserver", "KILL")])
def test_a_process_ends_with_the_one_it_works_for(start_method: str, how: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), start_method], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    assert is_running(child)
    parent.send_signal(signal.Signals[f"SIG{how}"])
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_dead_process_that_is_not_buried_does_not_run() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process.pid)
    process.wait()
    assert not is_running(process.pid)
    assert is_running(os.getpid())


PLANTED = ("pytorch_metric_learning", "torch", "yaml", "timm", "rich", "traceback", "json", "fcntl")
OWN = "from levelfield.losses import ContrastiveLoss\n\n\nclass MyLoss(ContrastiveLoss):\n    pass\n"


@pytest.mark.processes
def test_a_study_and_its_workers_find_own_and_installed_losses_and_none_of_the_planted_modules(tmp_path):
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("open('planted', 'a').write(__name__)\nraise ImportError('planted')\n")
    (tmp_path / "my_loss.py").write_text(OWN)
    study = yaml.safe_load(TOY)
    study["methods"] = {
        name: {"model": {"loss": f"{name}.{loss}"}}
        for name, loss in {"my_loss": "MyLoss", "pytorch_metric_learning.losses": "ContrastiveLoss"}.items()
    }
    del study["spaces"]
    (tmp_path / "toy.yaml").write_text(json.dumps(study))
    words = ["--search.trials", "0", "--runs", "1", "--trainer.max_epochs", "1", "--executor.workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "levelfield", "study", "run", "toy.yaml", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "my_loss" in done.stdout
    assert not (tmp_path / "planted").exists()


STEPS = """
import resource, sys
from levelfield.core.processes import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import numpy
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(14):
    if step == 4:
        before = pages()
    tensors = [numpy.full((12, 1 << 20), step, "float32") for _ in range(3)]  # 48 MB each
    del tensors
print(pages() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_later_steps_ask_the_system_for_no_pages() -> None:
    plain, kept = (
        int(subprocess.run([sys.executable, "-c", STEPS, how], check=True, capture_output=True, text=True).stdout)
        for how in ("plain", "kept")
    )
    blocks = 10 * 3 * 48 // 2
    assert plain > blocks / 2  # of 2 MB, the largest pages; else this machine's malloc keeps them anyway
    assert kept < plain / 5


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # no entry in /etc/passwd
    with pytest.raises(UserError, match="LEVELFIELD_CACHE"):
        cache_root()
    monkeypatch.setenv("LEVELFIELD_CACHE", "/somewhere")
    assert cache_root() == Path("/somewhere")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_what_can_be_repeated(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(Stopped, match=f"stopped by {number.name}") as stop, handling(StopAtOnce()):
        signal.raise_signal(number)
    assert stop.value.code == 75
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID"])
def test_another_process_than_the_first_works_on_for_some_seconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.core.signals.OTHERS_SECONDS", 0.3)
    monkeypatch.setenv(name, "1")
    started = time.monotonic()
    stop_at_once = StopAtOnce()

    def work() -> None:
        signal.raise_signal(signal.SIGUSR1)
        assert stop_at_once.number == signal.SIGUSR1
        time.sleep(5)

    with pytest.raises(Stopped), handling(stop_at_once):
        work()
    assert 0.25 < time.monotonic() - started < 4


def forked() -> int:
    """A process that sleeps with the handlers of this one, as a loader does."""
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"x")
        while True:
            time.sleep(0.01)
    os.read(ready, 1)  # a fork forgets the signals that come before it is one
    os.close(ready)
    os.close(say)
    return child


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_loader_outlives_the_signals_until_its_training_has_ended(monkeypatch) -> None:
    monkeypatch.setattr("levelfield.core.signals.LOADER_SECONDS", 1)
    with handling(StopAtOnce()):
        child = forked()
    started = time.monotonic()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGALRM
    assert 0.9 < time.monotonic() - started < 10


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in SLURM's place that notes its words, and fails where a file says so."""
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\nif test -e {tmp_path}/refused; then echo "not permitted" >&2; exit 1; fi\n'
        f'echo "$@" >> {tmp_path}/words\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "words"


def test_the_end_of_a_jobs_time_requeues_it(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue(Stopped(signal.SIGUSR1)) == ""  # no SLURM
    monkeypatch.setenv("SLURM_JOB_ID", "31")
    assert requeue(Stopped(signal.SIGTERM)) == ""
    assert not scontrol.exists()
    assert requeue(Stopped(signal.SIGUSR1)) == "job 31 is requeued"
    scontrol.with_name("refused").touch()
    assert requeue(Stopped(signal.SIGUSR1)) == "job 31 could not be requeued: not permitted"
    scontrol.with_name("refused").unlink()
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "30")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert requeue(Stopped(signal.SIGUSR2)) == "job 30_4 is requeued"
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert requeue(Stopped(signal.SIGUSR1)) == ""
    assert scontrol.read_text() == "requeue 31\nrequeue 30_4\n"
    monkeypatch.delenv("SLURM_PROCID")
    monkeypatch.setenv("PATH", "/nowhere")
    assert requeue(Stopped(signal.SIGUSR1)).startswith("job 30_4 could not be requeued: ")


def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost() -> None:
    class Deleted:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    def work() -> None:
        Deleted()
        time.sleep(5)
        raise AssertionError("it went on")

    with pytest.raises(Stopped), handling(StopAtOnce()):
        work()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_within_a_destructor_stops_after_all() -> None:
    """Python prints a KeyboardInterrupt there and goes on."""

    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass

    with keeping_ctrl_c() as check:
        closing = Closing()
        del closing
        with pytest.raises(KeyboardInterrupt):
            check()
