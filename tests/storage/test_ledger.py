"""The ledger counts each opening of the test classes, whatever interrupts it."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest

from levelfield import __version__
from levelfield.errors import UserError
from levelfield.storage.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "study" / "ledger.jsonl", now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))


def test_an_opening_says_when_why_and_what(ledger: Ledger) -> None:
    assert ledger.openings == []
    assert ledger.open("configuration", {"jobs/a": "f00d"}) == 1
    (entry,) = ledger.openings
    assert entry["time"] == "2026-01-02T03:04:05+00:00"
    assert entry["reason"] == "first opening"
    assert entry["code"]["levelfield"] == __version__
    assert (entry["configuration"], entry["checkpoints"]) == ("configuration", {"jobs/a": "f00d"})


def test_resuming_an_unfinished_opening_is_not_another(ledger: Ledger) -> None:
    for _ in range(3):
        assert ledger.open("configuration", {"a": "1"}) == 1
    assert len(ledger.openings) == 1
    ledger.finish(1)
    with pytest.raises(UserError, match=r"opened once already .*--reopen-test"):
        ledger.open("configuration", {"a": "1"})


def test_another_reason_is_another_opening_though_the_last_is_unfinished(ledger: Ledger) -> None:
    assert ledger.open("configuration", {"a": "1"}) == 1
    for reason in ("the pictures were restored", "the pictures were restored", None):
        assert ledger.open("configuration", {"a": "1"}, reopen=reason) == 2
    assert len(ledger.openings) == 2


@pytest.mark.parametrize(("configuration", "checkpoints"), [("other", {"a": "1"}), ("configuration", {"a": "2"})])
def test_another_configuration_or_checkpoint_is_another_opening(
    ledger: Ledger, configuration: str, checkpoints: dict[str, str]
) -> None:
    ledger.open("configuration", {"a": "1"})
    with pytest.raises(UserError, match="opened once already"):
        ledger.open(configuration, checkpoints)
    assert ledger.open(configuration, checkpoints, reopen="one more loss") == 2
    assert ledger.open(configuration, checkpoints) == 2, "the second opening is unfinished"
    ledger.finish(2)
    with pytest.raises(UserError, match="opened 2 times already"):
        ledger.open(configuration, checkpoints)
    assert [entry["reason"] for entry in ledger.openings] == ["first opening", "one more loss"]


def test_a_line_cut_off_by_a_kill_was_no_opening(ledger: Ledger) -> None:
    ledger.open("configuration", {})
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + whole[:30])
    assert len(ledger.openings) == 1
    ledger.finish(1)
    assert ledger.path.read_bytes().startswith(whole)
    assert len(ledger.entries()) == 2


def test_a_damaged_line_is_refused(ledger: Ledger) -> None:
    ledger.open("configuration", {})
    ledger.path.write_bytes(b"{}\n" + ledger.path.read_bytes())
    with pytest.raises(UserError, match=r"ledger\.jsonl line 1 is damaged"):
        ledger.open("configuration", {})


def slow_clock() -> datetime:
    """Lets whoever opens at the same time read the ledger before this one writes it."""
    time.sleep(0.2)
    return datetime(2026, 1, 2, tzinfo=timezone.utc)


def open_at_once(path: Path, checkpoints: list[str]) -> list[int | str]:
    """What each of several that open at the same time is told; the lock is a file's, so threads stand for processes."""

    def open_one(checkpoint: str) -> int | str:
        try:
            return Ledger(path, now=slow_clock).open("configuration", {"a": checkpoint})
        except UserError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(len(checkpoints)) as pool:
        return list(pool.map(open_one, checkpoints))


def test_of_two_that_open_at_once_the_second_is_refused(tmp_path: Path) -> None:
    answers = open_at_once(tmp_path / "ledger.jsonl", ["1", "2"])
    assert 1 in answers
    assert any("opened once already" in str(answer) for answer in answers)
    assert len(Ledger(tmp_path / "ledger.jsonl").openings) == 1


def test_the_same_test_twice_at_once_is_one_opening(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert open_at_once(ledger.path, ["1", "1"]) == [1, 1]
    for _ in range(2):
        ledger.finish(1)
    assert [entry["event"] for entry in ledger.entries()] == ["opened", "finished"]
