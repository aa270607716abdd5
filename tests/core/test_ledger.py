"""The ledger: each evaluation of a data set has a line, whatever the set is called and wherever it is."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from levelfield.core import ledger
from levelfield.core.errors import UserError
from levelfield.core.ledger import LEDGER, Evaluation


def hashes(name: str, number: int = 20) -> list[str]:
    return [hashlib.sha256(f"{name}{sample}".encode()).hexdigest() for sample in range(number)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


BIRDS = Evaluation("birds", hashes("bird"), "study birds", {"run0": "a" * 64}, "c" * 64)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]


def test_a_line_is_in_the_ledger_and_in_the_copy(tmp_path: Path, cache: Path) -> None:
    identity = ledger.begin(BIRDS, tmp_path)
    [line] = lines(tmp_path)
    assert lines(cache / "evaluations") == [line]
    assert (line["id"], line["event"], line["num_samples"]) == (identity, "evaluated", 20)
    assert line["samples"] == hashlib.sha256("".join(sorted(BIRDS.samples)).encode()).hexdigest()
    assert ledger.has_line(identity, tmp_path)
    assert not ledger.has_line("another", tmp_path)


@pytest.mark.parametrize(
    ("samples", "count"),
    [
        (hashes("bird")[-2::-1], 2),  # one image less, in another order
        (hashes("bird") + hashes("fish", 100), 2),  # in a larger set
        (hashes("fish", 16) + hashes("bird", 4), 2),  # the test half of another random split
        (hashes("fish", 100) + hashes("bird", 4), 2),  # a fifth of the smaller set, a part of the larger one
        (hashes("fish") + hashes("bird", 1), 1),
    ],
)
def test_a_data_set_is_known_by_its_samples(tmp_path: Path, samples: list[str], count: int) -> None:
    ledger.begin(BIRDS, tmp_path)
    ledger.begin(Evaluation("under another name", samples, "levelfield score"))
    assert len(ledger.evaluations_of(samples)) == len(ledger.evaluations_beside(tmp_path)) == count


def test_a_union_of_two_sets_counts_for_each_of_them() -> None:
    some, others = hashes("bird"), hashes("fish", 30)
    for samples in [others] * 5 + [some] + [some + others] * 2:
        ledger.begin(Evaluation("it", samples, "levelfield score"))
    assert [len(ledger.evaluations_of(samples)) for samples in (some, others, some + others)] == [3, 7, 8]


def test_only_a_whole_id_is_an_evaluation_of_yours(tmp_path: Path) -> None:
    ledger.begin(BIRDS)
    theirs = {**BIRDS.plain(), "event": "evaluated", "id": "e", "time": "2026", "folder": "", "version": ""}
    (tmp_path / LEDGER).write_text(json.dumps(theirs) + "\n")
    assert ledger.evaluations_beside(tmp_path) == [theirs]


def test_an_interrupted_evaluation_goes_on_and_a_finished_one_does_not(tmp_path: Path) -> None:
    first = ledger.begin(BIRDS, tmp_path)
    assert ledger.begin(BIRDS, tmp_path) == first
    assert ledger.finished_evaluation(tmp_path) is None
    ledger.finish(first, {"run0": "d" * 64}, tmp_path)
    ledger.finish(first, {"run0": "e" * 64}, tmp_path)
    assert ledger.finished_evaluation(tmp_path)["id"] == first
    second = ledger.begin(BIRDS, tmp_path)
    assert second != first
    changes = {"checkpoints": {"run0": "b" * 64}, "configuration": "c", "samples": hashes("bird", 21), "reason": "r"}
    changed, others = BIRDS, []
    for name, value in changes.items():
        changed = replace(changed, **{name: value})
        others.append(ledger.begin(changed, tmp_path))
    assert [line["id"] for line in lines(tmp_path)] == [first, first, second, *others]
    assert len({first, second, *others}) == len(ledger.evaluations_of(BIRDS.samples)) == 6


def test_what_a_kill_left_is_repaired_and_another_user_sees_the_copy(tmp_path, cache, monkeypatch) -> None:
    identity = ledger.begin(BIRDS, tmp_path)
    (cache / "evaluations" / LEDGER).unlink()  # a kill between the copy and the ledger
    assert ledger.begin(BIRDS, tmp_path) == identity
    assert [line["id"] for line in ledger.evaluations_of(BIRDS.samples)] == [identity]
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "elsewhere"))
    assert [line["id"] for line in ledger.evaluations_beside(tmp_path)] == [identity]


def test_an_unfinished_line_is_no_line_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    first = ledger.begin(BIRDS, tmp_path)
    ledger.finish(first, {}, tmp_path)
    with open(tmp_path / LEDGER, "a") as file:
        file.write('{"event": "evaluated", "id": "cut')
    second = ledger.begin(BIRDS, tmp_path)
    assert [line["id"] for line in lines(tmp_path)] == [first, first, second]
    content = (tmp_path / LEDGER).read_text()
    (tmp_path / LEDGER).write_text(content.replace('"event"', '"events"', 1))
    with pytest.raises(UserError, match=f"{LEDGER}, line 1: "):
        ledger.begin(BIRDS, tmp_path)


def test_processes_that_write_at_once_lose_no_line(tmp_path: Path) -> None:
    code = (
        "import sys; from levelfield.core.ledger import *\n"
        f"for n in range(10): begin(Evaluation('birds', {hashes('bird')!r}, sys.argv[1] + str(n)))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    by = sorted(line["by"] for line in ledger.evaluations_of(BIRDS.samples))
    assert by == sorted(f"{name}{n}" for name in "abc" for n in range(10))
