"""A process ends soon after the one it works for, whichever way it was started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from levelfield.runtime.processes import is_running

PARENT = """
import multiprocessing, os, sys, time
from levelfield.runtime.processes import end_with_parent

def work(parent):
    end_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(os.getpid(),)).start()
    time.sleep(600)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start_method", "how"),
    [("fork", signal.SIGKILL), ("spawn", signal.SIGTERM), ("forkserver", signal.SIGKILL)],
)
def test_a_process_ends_with_the_one_it_works_for(start_method: str, how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), start_method], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    assert is_running(child)
    parent.send_signal(how)
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
