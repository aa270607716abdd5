"""Tasks on the nodes of a Ray cluster share a study's jobs; a node that dies changes no byte."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_process import children, command_of
from tiny_fit import REPOSITORY
from toy_study import assert_same_bytes

pytestmark = [pytest.mark.full, pytest.mark.processes, pytest.mark.timeout(3600)]
QUICKSTART = REPOSITORY / "configs" / "study" / "quickstart.yaml"
STORE = 80 << 20


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of a head, which takes no job, and of the nodes that a test adds, all on this machine."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'levelfield[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    found = Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def study(folder: Path, *words: str, file: Path = QUICKSTART) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "levelfield", "study", "run", str(file), "--output", str(folder), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_results(process: subprocess.Popen[str], folder: Path, least: int) -> None:
    while len(list(folder.glob("jobs/*/*/fold*/result.json"))) < least:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def test_the_quickstart_on_two_nodes_of_which_one_dies_has_the_bytes_of_one_process(
    cluster: Any, tmp_path: Path
) -> None:
    one = study(tmp_path / "one", "--executor.workers=1")
    printed, _ = one.communicate(timeout=1800)
    assert one.returncode == 0, printed
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    folder = tmp_path / "nodes"
    (folder / "locks").mkdir(parents=True)
    (folder / "locks" / "kind").write_text("lease 60\n")  # as on storage that hosts share
    process = study(folder, "--executor=ray", f"--executor.address={cluster.address}")
    wait_for_results(process, folder, 60)
    cluster.remove_node(nodes[1], allow_graceful=False)
    printed, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, printed
    assert "its task ended with its node" in printed
    assert_same_bytes(folder, tmp_path / "one")


def test_ctrl_c_ends_the_tasks(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'levelfield[ray]'")
    folder = tmp_path / "stopped"
    words = ("--executor=ray", "--executor.workers=2", "--executor.cpus=0.5")
    process = study(folder, *words, file=toy_file)
    wait_for_results(process, folder, 3)
    started = children(process.pid)
    assert any("worker_process" in command_of(each) for each in started)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert printed.splitlines()[-1].endswith("--executor ray --executor.workers=2 --executor.cpus=0.5")
    deadline = time.monotonic() + 20
    while any("levelfield" in command_of(each) for each in started):
        assert time.monotonic() < deadline, "a worker outlives its study"
        time.sleep(0.05)
    process = study(folder, *words, file=toy_file)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert_same_bytes(folder, finished)


BROKEN = """
from torch import nn


class Broken(nn.Module):
    def forward(self, embeddings, labels):
        raise RuntimeError("nothing fits")
"""


def test_a_mistake_is_one_line(toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'levelfield[ray]'")
    monkeypatch.chdir(tmp_path)
    process = study(tmp_path / "large", "--executor=ray", "--executor.cpus=1000", file=toy_file)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert printed.splitlines()[-1] == "levelfield: a task of 1000 CPUs is more than this machine has"
    (tmp_path / "broken.py").write_text(BROKEN)
    content = yaml.safe_load(toy_file.read_text())
    content |= {"spaces": {}, "search": {}, "runs": 1, "methods": {"broken": {"model": {"loss": "broken.Broken"}}}}
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(content))
    words = ("--executor=ray", "--executor.workers=2", "--executor.cpus=0.5")
    process = study(tmp_path / "broken", *words, file=tmp_path / "broken.yaml")
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    last = printed.splitlines()[-1]
    assert last.startswith("levelfield: broken run 0 fold 0 ended with an error that is printed above (RuntimeError:")
    assert printed.count("RuntimeError: nothing fits") >= 2, "the traceback of the node, and the last line"
