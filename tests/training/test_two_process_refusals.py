"""Of two processes none is left waiting for the other: what one finds, both raise."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "two_process_refusals.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture(scope="module")
def raised(folder: Path) -> list[dict[str, list[str]]]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.Popen(
        [sys.executable, *launcher, str(SCRIPT), str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, complaint = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, complaint[-3000:]
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == 2, "one opening, finished"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("validation", "TrainingFailed", "the embeddings are not finite"),
        ("training", "TrainingFailed", "the loss is nan at step 0"),
        ("no index", "UserError", "yield (samples, labels, index)"),
        ("second test", "UserError", "the test classes were opened once already"),
        ("broken test", "RuntimeError", "no hash of these weights"),
    ],
)
def test_both_processes_raise(raised, case: str, kind: str, message: str) -> None:
    for of_process in raised:
        assert of_process[case][0] == kind
        assert message in of_process[case][1]


@pytest.mark.processes
def test_nothing_else_is_raised(raised) -> None:
    assert all("first test" not in of_process for of_process in raised)
