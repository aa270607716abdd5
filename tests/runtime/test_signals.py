"""Who has the signals of a cluster, and what becomes of the job."""

import os
import signal
import time
from pathlib import Path

import pytest

from levelfield.runtime.signals import SIGNALS, StopAtOnce, Stopped, handling, keeping_ctrl_c, requeue


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_what_can_be_repeated(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(Stopped, match=f"stopped by {number.name}") as stop, handling(StopAtOnce()):
        signal.raise_signal(number)
    assert stop.value.code == 75
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID"])
def test_another_process_than_the_first_works_on_for_some_seconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.runtime.signals.OTHERS_SECONDS", 0.3)
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
    monkeypatch.setattr("levelfield.runtime.signals.LOADER_SECONDS", 1)
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
