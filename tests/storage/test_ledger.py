"""The ledger counts each opening of the test classes, whatever interrupts it."""

import hashlib
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from levelfield import __version__
from levelfield.errors import UserError
from levelfield.storage.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "study", now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_an_opening_says_when_why_and_what(ledger: Ledger) -> None:
    assert ledger.openings == []
    assert ledger.open("configuration", {"jobs/a": "f00d"}) == 1
    (entry,) = ledger.openings
    assert entry["time"] == "2026-01-02T03:04:05+00:00"
    assert entry["reason"] == "first opening"
    assert entry["code"]["levelfield"] == __version__
    assert (entry["configuration"], entry["checkpoints"]) == ("configuration", {"jobs/a": "f00d"})


def test_a_transfer_is_a_line_and_no_opening(ledger: Ledger) -> None:
    assert ledger.transfer("my_images", "list", {"a": "1"}) == 1
    assert ledger.open("configuration", {"a": "1"}) == 1
    ledger.finish(1)
    assert ledger.transfer("my_images", "list", {"a": "1"}) == 2
    assert ledger.transfer("my_images", "another list", {"a": "1"}) == 1
    assert ledger.finished("configuration", {"a": "1"}) == 1, "what came after was none of the test classes"
    assert [entry["event"] for entry in ledger.entries()] == ["transfer", "opened", "finished", "transfer", "transfer"]
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[1:]))
    with pytest.raises(UserError, match="does not follow"):
        ledger.entries()


def test_resuming_an_unfinished_opening_is_not_another(ledger: Ledger) -> None:
    for _ in range(3):
        assert ledger.open("configuration", {"a": "1"}) == 1
    assert len(ledger.openings) == 1
    ledger.finish(1)
    with pytest.raises(UserError, match=r"opened once already .*--reopen-test"):
        ledger.open("configuration", {"a": "1"})


def test_a_reason_that_is_given_for_the_first_opening_is_kept(ledger: Ledger) -> None:
    assert [ledger.open("configuration", {"a": "1"}, "a first look") for _ in range(2)] == [1, 1]
    assert [entry["reason"] for entry in ledger.openings] == ["a first look"]


def test_an_unfinished_opening_does_not_go_on_with_other_samples(ledger: Ledger) -> None:
    assert ledger.open("a", {"best.ckpt": "1"}, samples="list") == 1
    assert ledger.open("a", {"best.ckpt": "1"}, samples="list") == 1
    with pytest.raises(UserError, match="opened once already"):
        ledger.open("a", {"best.ckpt": "1"}, samples="mended list")
    assert ledger.open("a", {"best.ckpt": "1"}, "roles were mended", samples="mended list") == 2


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
    return datetime(2026, 1, 2, tzinfo=UTC)


def open_at_once(folder: Path, checkpoints: list[str]) -> list[int | str]:
    """What each of several that open at the same time is told; the lock is a file's, so threads stand for processes."""

    def open_one(checkpoint: str) -> int | str:
        try:
            return Ledger(folder, now=slow_clock).open("configuration", {"a": checkpoint})
        except UserError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(len(checkpoints)) as pool:
        return list(pool.map(open_one, checkpoints))


def test_of_two_that_open_at_once_the_second_is_refused(tmp_path: Path) -> None:
    answers = open_at_once(tmp_path, ["1", "2"])
    assert 1 in answers
    assert any("opened once already" in str(answer) for answer in answers)
    assert len(Ledger(tmp_path).openings) == 1


def test_the_same_test_twice_at_once_is_one_opening(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert open_at_once(tmp_path, ["1", "1"]) == [1, 1]
    for _ in range(2):
        ledger.finish(1)
    assert [entry["event"] for entry in ledger.entries()] == ["opened", "finished"]


def chained(ledger: Ledger) -> list[bytes]:
    """Three lines: an opening, its end, another opening."""
    ledger.open("configuration", {"a": "1"})
    ledger.finish(1)
    ledger.open("configuration", {"a": "2"}, reopen="a mistake")
    return ledger.path.read_bytes().splitlines(keepends=True)


def test_each_line_holds_the_hash_of_the_one_before(ledger: Ledger) -> None:
    lines = chained(ledger)
    hashes = [hashlib.sha256(line.rstrip(b"\n")).hexdigest() for line in lines]
    assert [json.loads(line)["previous"] for line in lines] == [None, *hashes[:-1]]
    assert [ledger.line_of(1), ledger.line_of(2)] == [hashes[0], hashes[2]]


@pytest.mark.parametrize(
    ("number", "edit"),
    [
        (2, lambda lines: [lines[0].replace(b"first opening", b"First opening"), *lines[1:]]),
        (2, lambda lines: [lines[0], lines[2]]),
        (1, lambda lines: lines[1:]),
        (2, lambda lines: [lines[0], lines[0], *lines[1:]]),
        (2, lambda lines: [re.sub(rb', "previous": [^}]*', b"", line) for line in lines[:1]] + lines[1:]),
        (2, lambda lines: [re.sub(rb', "previous": [^}]*', b"", line) for line in lines]),
    ],
)
def test_an_edited_removed_or_inserted_line_is_refused(
    ledger: Ledger, number: int, edit: Callable[[list[bytes]], list[bytes]]
) -> None:
    ledger.path.write_bytes(b"".join(edit(chained(ledger))))
    with pytest.raises(
        UserError, match=rf"ledger\.jsonl line {number} does not follow from the line before it; restore"
    ):
        ledger.open("configuration", {"a": "2"})


def test_scores_of_an_opening_that_is_gone_or_was_edited_are_refused(ledger: Ledger) -> None:
    lines = chained(ledger)
    second = ledger.line_of(2)
    ledger.check_scored(Path("scores"), 2, second)
    ledger.path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"a mistake", b"no mistake")]))
    with pytest.raises(UserError, match=r"ledger\.jsonl was edited: scores is of an opening .* restore"):
        ledger.check_scored(Path("scores"), 2, second)
    ledger.path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(UserError, match="was edited"):
        ledger.check_scored(Path("scores"), 2, second)
    ledger.path.unlink()
    with pytest.raises(UserError, match="is missing: scores is of an opening"):
        ledger.check_scored(Path("scores"), 1, None)
