"""Slots on a Ray cluster: the bytes of one process, also when a node ends; a study without a node ends."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_engine import results, tables

pytestmark = [pytest.mark.full, pytest.mark.processes]
STORE = 80 << 20


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of a head, which takes no job, and of the nodes that a test adds, all on this machine."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'levelfield[ray]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    found = Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def start(file: Path, folder: Path, cluster: Any) -> subprocess.Popen[bytes]:
    words = [
        "--output",
        str(folder),
        "--executor",
        "ray",
        "--executor.workers",
        "2",
        "--executor.address",
        cluster.address,
    ]
    command = [sys.executable, "-m", "levelfield", "study", "run", str(file), *words]
    with open(folder.with_suffix(".log"), "a") as log:  # Ray prints more than a pipe holds
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes], folder: Path, seconds: float = 900) -> str:
    """What it printed, when it has ended."""
    process.wait(seconds)
    return folder.with_suffix(".log").read_text()


def wait_for_results(process: subprocess.Popen[bytes], folder: Path, least: int) -> None:
    while len(results(folder)) < least:
        assert process.poll() is None, end(process, folder)
        time.sleep(0.05)


def test_a_node_that_ends_changes_no_byte(toy_file: Path, finished: Path, tmp_path: Path, cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    process = start(toy_file, tmp_path / "out", cluster)
    wait_for_results(process, tmp_path / "out", 4)
    cluster.remove_node(nodes[0], allow_graceful=False)
    printed = end(process, tmp_path / "out")
    assert process.returncode == 0, printed
    assert tables(tmp_path / "out") == tables(finished)


def test_a_cluster_without_a_node_ends_the_study_within_a_minute(
    toy_file: Path, finished: Path, tmp_path: Path, cluster: Any
) -> None:
    folder = tmp_path / "out"
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    process = start(toy_file, folder, cluster)
    wait_for_results(process, folder, 3)
    cluster.remove_node(node, allow_graceful=False)
    ended = time.monotonic()
    printed = end(process, folder, 120)
    assert process.returncode == 2
    assert "node" in printed.splitlines()[-1]
    print(f"ended {time.monotonic() - ended:.0f} s after its last node")
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    process = start(toy_file, folder, cluster)
    wait_for_results(process, folder, 8)
    process.send_signal(signal.SIGINT)
    end(process, folder, 120)
    assert process.returncode == 130
    process = start(toy_file, folder, cluster)
    printed = end(process, folder)
    assert process.returncode == 0, printed
    assert tables(folder) == tables(finished)
