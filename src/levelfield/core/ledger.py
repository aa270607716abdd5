"""The ledger of the test classes: one line an evaluation, durable before the first test label is read.

There is one ledger per user and data set, next to the caches. It holds hashes of the evaluated samples, so that a set
with one sample less, or under another name, is the same data set. A folder (a study's, a fit's) keeps a copy of its own
lines. Every evaluation is allowed: reports show how many there were.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

import levelfield
from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.atomic import make_durable, storing, without_links, write_atomically

LEDGER = "ledger.jsonl"
SAMPLES = "samples"
EVALUATED, FINISHED = "evaluated", "finished"
# A data set is known again by this share of the samples of the smaller of two sets.
SAME_SHARE = 0.5
HASH_BYTES = 16


@dataclass(frozen=True)
class Evaluation:
    """What will be evaluated, before it is.

    Args:
        data: Name of the data set.
        samples: A hash of each sample, in hexadecimal digits.
        by: Who evaluates: `study smoke`, `levelfield test`.
        checkpoints: Name to SHA-256 of what is evaluated.
        configuration: SHA-256 of the settings.
        reason: Why, where a person says so.
        results: Name to SHA-256 of what led to the checkpoints.
    """

    data: str
    samples: Sequence[str]
    by: str
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    configuration: str = ""
    reason: str = ""
    results: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The line's content; the samples by one hash of them all, whatever their order."""
        return {
            "data": self.data,
            "samples": hashlib.sha256("".join(sorted(self.samples)).encode()).hexdigest(),
            "num_samples": len(self.samples),
            "by": self.by,
            "configuration": self.configuration,
            "checkpoints": dict(self.checkpoints),
            "reason": self.reason,
            "results": dict(self.results),
        }


def begin(evaluation: Evaluation, folder: Path | None = None, now: Callable[[], datetime] | None = None) -> str:
    """Record an evaluation, durably, and return the id of its line. From here on test labels may be read.

    An interrupted evaluation of the same checkpoints goes on: it has its line already.

    Args:
        folder: Keeps a copy of the line; without one nothing is known to go on.

    Raises:
        UserError: the line cannot be written, or the folder's copy is damaged.
    """
    plain = evaluation.plain()
    with _only_one():
        copy = [] if folder is None else read_lines(folder / LEDGER)
        line = _interrupted(copy, plain)
        if line is None:
            head = {"event": EVALUATED, "id": uuid.uuid4().hex, "folder": _place_hash(folder), "time": _time(now)}
            line = {**head, **plain, "version": levelfield.__version__}
            if folder is not None:  # first: whoever goes on finds the line here, and repeats it there
                _append(folder / LEDGER, line)
        place = _place_of(evaluation.samples) or cache_root() / "evaluations" / line["id"]
        if line not in read_lines(place / LEDGER):
            _add_samples(place / SAMPLES, evaluation.samples)
            _append(place / LEDGER, line)
    return line["id"]


def finish(
    identity: str,
    scores: Mapping[str, str],
    folder: Path | None = None,
    now: Callable[[], datetime] | None = None,
) -> None:
    """Record that all scores of an evaluation are written; once.

    Args:
        scores: Name to SHA-256 of each file of scores.
    """
    line = {"event": FINISHED, "id": identity, "time": _time(now), "scores": dict(scores)}
    with _only_one():
        copy = [] if folder is None else read_lines(folder / LEDGER)
        line = next((each for each in copy if (each["event"], each["id"]) == (FINISHED, identity)), line)
        if folder is not None and line not in copy:
            _append(folder / LEDGER, line)
        place = _place_with(identity)
        if place is not None and line not in read_lines(place / LEDGER):
            _append(place / LEDGER, line)


def has_line(identity: str, folder: Path) -> bool:
    """Whether an evaluation is in a folder's copy: a worker on another node has another cache."""
    return any((line["event"], line["id"]) == (EVALUATED, identity) for line in read_lines(folder / LEDGER))


def finished_evaluation(folder: Path) -> dict[str, Any] | None:
    """The last evaluation of a folder where all its scores are written; None otherwise."""
    lines = read_lines(folder / LEDGER)
    last = next((line for line in reversed(lines) if line["event"] == EVALUATED), None)
    ended = {line["id"] for line in lines if line["event"] == FINISHED}
    return last if last is not None and last["id"] in ended else None


def evaluations_of(samples: Sequence[str]) -> list[dict[str, Any]]:
    """The user's evaluations of the data set that the samples are of."""
    place = _place_of(samples)
    return [] if place is None else _evaluations(read_lines(place / LEDGER))


def evaluations_beside(folder: Path) -> list[dict[str, Any]]:
    """The user's evaluations of the data sets that a folder's copy names, this folder's among them."""
    found: dict[str, dict[str, Any]] = {line["id"]: line for line in _evaluations(read_lines(folder / LEDGER))}
    for identity in list(found):
        place = _place_with(identity)
        found |= {line["id"]: line for line in _evaluations(read_lines(place / LEDGER))} if place is not None else {}
    return list(found.values())


def compare_copy(folder: Path) -> list[str]:
    """In what a folder's copy differs from the user's ledger, as far as this holds lines of the folder.

    It holds none of an archive's lines, and none where the caches were removed. Of a folder that was copied or moved,
    when an evaluation ended is not compared: each copy may have gone on.

    Raises:
        UserError: the copy is damaged.
    """
    copy, here = read_lines(folder / LEDGER), _place_hash(folder)
    places = {place for line in copy if (place := _place_with(line["id"])) is not None}
    there = [line for place in sorted(places) for line in read_lines(place / LEDGER)]
    known = {line["id"] for line in there}
    own = {line["id"] for line in there if line.get("folder") == here}
    problems = [
        f"{LEDGER}: {_named(line)} is not in the user's ledger"
        for line in copy
        if line not in there
        and (line["id"] in (known if line["event"] == EVALUATED else own) or (own and line.get("folder") == here))
    ]
    return problems + [
        f"{LEDGER}: {_named(line)} of the user's ledger is missing"
        for line in there
        if line["id"] in own and line not in copy
    ]


def _place_hash(folder: Path | None) -> str:
    """Tells the folders of a user apart without naming them; empty without a folder."""
    return "" if folder is None else hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def _named(line: Mapping[str, Any]) -> str:
    return f"the line '{line['event']}' of {line['time']} ({line['id'][:8]})"


def _interrupted(copy: list[dict[str, Any]], plain: dict[str, Any]) -> dict[str, Any] | None:
    """The last evaluation of a folder, if it is this one and has not ended."""
    last = next((line for line in reversed(copy) if line["event"] == EVALUATED), None)
    if last is None or any((line["event"], line["id"]) == (FINISHED, last["id"]) for line in copy):
        return None
    same = all(last.get(key) == plain[key] for key in ("samples", "configuration", "checkpoints"))
    return last if same and plain["reason"] in ("", last.get("reason")) else None


def _evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == EVALUATED]


# Files.


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger or of a copy; an unfinished last line was cut off before anything was read.

    Raises:
        UserError: another line is damaged.
    """
    try:
        *whole, _unfinished = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            damaged = not {"event", "id", "time"} <= set(line)
        except (ValueError, TypeError):
            damaged = True
        if damaged:
            raise UserError(f"{path} line {number} is damaged; restore the file from a copy")
        lines.append(line)
    return lines


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", opener=without_links) as file:
            content = path.read_bytes()
            file.truncate(content.rfind(b"\n") + 1)  # without an unfinished line
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        make_durable(path.parent)


def _add_samples(path: Path, samples: Sequence[str]) -> None:
    known = _read_samples(path) | _shortened(samples)
    write_atomically(path, b"".join(sorted(known)))


def _read_samples(path: Path) -> set[bytes]:
    content = path.read_bytes() if path.is_file() else b""
    return {content[first : first + HASH_BYTES] for first in range(0, len(content), HASH_BYTES)}


def _shortened(samples: Sequence[str]) -> set[bytes]:
    return {bytes.fromhex(sample)[:HASH_BYTES] for sample in samples}


def _places() -> list[Path]:
    folder = cache_root() / "evaluations"
    return sorted(path.parent for path in folder.glob(f"*/{LEDGER}")) if folder.is_dir() else []


def _place_of(samples: Sequence[str]) -> Path | None:
    """The ledger of the data set that shares most samples; None for a data set without one."""
    wanted = _shortened(samples)
    shares: dict[Path, float] = {}
    for place in _places():
        known = _read_samples(place / SAMPLES)
        # Samples that nobody knows, of loaders of one's own, are together.
        shares[place] = len(wanted & known) / min(len(wanted), len(known)) if wanted and known else wanted == known
    nearest = max(shares, key=lambda each: shares[each], default=None)
    return nearest if nearest is not None and shares[nearest] >= SAME_SHARE else None


def _place_with(identity: str) -> Path | None:
    """The ledger that holds an evaluation."""
    return next((place for place in _places() if identity in (place / LEDGER).read_text(encoding="utf-8")), None)


@contextmanager
def _only_one() -> Iterator[None]:
    """No other process of the user writes a ledger meanwhile."""
    folder = cache_root() / "evaluations"
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _time(now: Callable[[], datetime] | None) -> str:
    return (datetime.now(UTC) if now is None else now()).isoformat(timespec="seconds")
