"""Slots on a Ray cluster: the bytes of one process, also when a node ends; a study without a node waits."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from study_engine import results, study_process, tables

pytestmark = [pytest.mark.full, pytest.mark.processes]
STORE, WAITS = 80 << 20, "waiting for a worker"


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


def start(file: Path, folder: Path, cluster: Any) -> Forked:
    return study_process(
        file, folder, *("--executor=ray", "--executor.workers=2"), f"--executor.address={cluster.address}"
    )


def test_a_node_that_ends_changes_no_byte(toy_file: Path, finished: Path, tmp_path: Path, cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    process = start(toy_file, tmp_path / "out", cluster)
    process.wait_for(lambda: len(results(tmp_path / "out")) >= 4)
    cluster.remove_node(nodes[0], allow_graceful=False)
    printed = process.wait(900)
    assert process.exit_code == 0, printed
    assert tables(tmp_path / "out") == tables(finished)


def test_a_study_waits_for_a_node(toy_file: Path, finished: Path, tmp_path: Path, cluster: Any) -> None:
    folder = tmp_path / "out"
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    process = start(toy_file, folder, cluster)
    process.wait_for(lambda: len(results(folder)) >= 3)
    before = process.printed().count(WAITS)
    cluster.remove_node(node, allow_graceful=False)
    process.wait_for(lambda: process.printed().count(WAITS) > before)
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    process.wait_for(lambda: len(results(folder)) >= 8)
    process.signal(signal.SIGINT)
    process.wait(120)
    assert process.exit_code == 130
    process = start(toy_file, folder, cluster)
    printed = process.wait(900)
    assert process.exit_code == 0, printed
    assert tables(folder) == tables(finished)
