"""Of two processes none is left waiting for the other: what one finds, both raise."""

import json
from pathlib import Path

import pytest
from forked import torchrun

SCRIPT = Path(__file__).parent / "two_process_refusals.py"
CASES = {"validation", "training", "no index", "broken test", "no ledger", "same samples"}


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture(scope="module")
def raised(folder: Path) -> list[dict[str, list[str]]]:
    for done in torchrun(SCRIPT, folder, seconds=120, LEVELFIELD_CACHE=str(folder / "cache")):
        assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "kind", "key"),
    [
        ("validation", "TrainingFailed", "--model.embedder_lr"),
        ("training", "TrainingFailed", "step 0"),
        ("no index", "UserError", "(samples, labels, index)"),
        ("broken test", "RuntimeError", "no hash of these weights"),
    ],
)
def test_both_processes_raise(raised, case: str, kind: str, key: str) -> None:
    for of_process in raised:
        assert of_process[case][0] == kind
        assert key in of_process[case][1]


@pytest.mark.processes
def test_a_loader_that_ignores_its_rank_is_warned_of_once(raised) -> None:
    first, second = (of_process["same samples"][1] for of_process in raised)
    assert "train on the same samples" in first
    assert "train on the same samples" not in second


@pytest.mark.processes
def test_none_waits_for_a_ledger_that_cannot_be_written(raised) -> None:
    assert [of_process["no ledger"][0] for of_process in raised] == ["FileRefused", "UserError"]
    assert all("two_process_refusals.py" in of_process["no ledger"][1] for of_process in raised)


@pytest.mark.processes
def test_nothing_else_is_raised(raised) -> None:
    assert all(set(of_process) == CASES for of_process in raised)


@pytest.mark.processes
def test_one_process_writes_the_line_of_each_test(raised, folder: Path) -> None:
    """Two tests of a loader of one's own, which share a folder; three of glyphs, of which one has a folder's copy."""
    ledgers = {path: _lines(path) for path in folder.glob("cache/evaluations/*/ledger.jsonl")}
    of_glyphs = [line for lines in ledgers.values() for line in lines if line.get("num_samples")]
    assert [(line["num_samples"], line["by"]) for line in of_glyphs] == [
        *[(8 * 16, "test_dataloader")] * 2,  # 8 letters in 16 typefaces
        (8 * 16, "trainer.test"),
    ]
    copies = [[line["event"] for line in _lines(path / "ledger.jsonl")] for path in (folder, folder / "datamodule")]
    assert copies == [["evaluated", "finished"] * 2, ["evaluated", "finished"]]
