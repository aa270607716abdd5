"""Processes: what they import and keep, who has the signals of a cluster, and when they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from toy_study import TOY

from levelfield.core.processes import SIGNALS, interrupt_at_signals, is_running

CODE = """
import sys
from levelfield.core.processes import quick_imports
quick_imports()
import lightning.pytorch, timm, levelfield.metrics
assert not {"scipy.signal", "transformers"} & set(sys.modules)
import scipy.signal, transformers
assert scipy.signal.find_peaks and transformers.AutoModel
"""


@pytest.mark.processes
def test_lightning_and_timm_import_neither_signals_nor_texts() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


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
    study, losses = yaml.safe_load(TOY), {"my_loss": "MyLoss", "pytorch_metric_learning.losses": "ContrastiveLoss"}
    study["methods"] = {name: {"model": {"loss": f"{name}.{loss}"}} for name, loss in losses.items()}
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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_of_a_cluster_is_as_ctrl_c(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (*SIGNALS, signal.SIGCHLD)}
    try:
        interrupt_at_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
