"""The ledger of evaluations: one line per evaluation, on disk before the first test label is read.

There is one ledger per user, next to the caches. It has hashes of the evaluated samples, so a data set with one sample
less, or with another name, is the same. The folder of a study or fit keeps a copy of its own lines. Every evaluation is
allowed, and reports show how many there were.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import levelfield
from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, locked, make_durable, write_atomically
from levelfield.core.paths import cache_root
from levelfield.core.shape import count, has_shape

LEDGER = "ledger.jsonl"
EVALUATED, FINISHED = "evaluated", "finished"
DIGESTS = {str: str}
TEXTS = ("id", "folder", "time", "data", "by", "configuration", "reason", "version")
LINES = {
    EVALUATED: {**dict.fromkeys(TEXTS, str), "checkpoints": DIGESTS, "results": DIGESTS, "num_samples?": count},
    FINISHED: {"id": str, "time": str, "scores": DIGESTS},
}
# Two sets of samples are the same if they share this fraction of the smaller one. A union of two sets is the same as
# each of them, and so are the test halves of two random splits of one data set, which share about half of them.
SAME_SHARE = 0.1

Line = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is about to begin. `checkpoints` and `results`, those behind them, map names to SHA-256."""

    data: str  # the name of the data set
    samples: Sequence[str]  # a hexadecimal hash of each
    by: str  # the command: `study smoke`, `levelfield test`
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    configuration: str = ""  # SHA-256 of the settings
    reason: str = ""  # of the user
    results: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> Line:
        """The content of the line, with one hash of all samples that ignores their order."""
        samples = hashlib.sha256("".join(sorted(self.samples)).encode()).hexdigest()
        digests = {"checkpoints": dict(self.checkpoints), "results": dict(self.results)}
        return {**vars(self), **digests, "samples": samples, "num_samples": len(self.samples)}


def begin(evaluation: Evaluation, folder: Path | None = None, usual_reasons: tuple[str, str] = ("", "")) -> str:
    """Record an evaluation on disk and return the id of its line. Afterwards test labels may be read.

    Args:
        folder: Gets a copy of the line, with which an interrupted evaluation of the same checkpoints continues.
        usual_reasons: Reasons, if the user gave none, for the folder's first evaluation and for later ones.

    Raises:
        UserError: the line cannot be written, or the folder's copy is damaged.
    """
    new, time = evaluation.plain(), datetime.now(UTC).isoformat(timespec="seconds")
    with locked(cache_root(), "evaluations", "the ledgers of evaluations"):
        line, is_finished = (None, False) if folder is None else _last(folder)
        usual = usual_reasons[line is not None]
        if line is not None and (is_finished or new["reason"] not in ("", line["reason"])):
            line = None
        if line is None or any(line.get(key) != new[key] for key in ("samples", "configuration", "checkpoints")):
            new["reason"] = new["reason"] or usual
            # It distinguishes a user's folders without naming them.
            place = "" if folder is None else hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
            head = {"event": EVALUATED, "id": uuid.uuid4().hex, "folder": place, "time": time}
            line = {**head, **new, "version": levelfield.__version__}
        if folder is not None:  # first, so that an interrupted command can continue from it
            _add(folder, line)
        samples = _user_folder() / f"{line['samples']}.txt"
        if not samples.is_file():
            write_atomically(samples, "\n".join(sorted(set(evaluation.samples))).encode())
        _add(_user_folder(), line)
    return str(line["id"])


def finish(identity: str, scores: Mapping[str, str], folder: Path | None = None) -> None:
    """Record, once, that all scores of an evaluation are written: name to SHA-256 of each file."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"event": FINISHED, "id": identity, "time": time, "scores": dict(scores)}
    with locked(cache_root(), "evaluations", "the ledgers of evaluations"):
        for place in filter(None, (folder, _user_folder())):
            if has_line(identity, place):
                _add(place, line)


def has_line(identity: str, folder: Path) -> bool:
    """Whether a folder's copy has an evaluation; a worker on another node has another cache."""
    return identity in _evaluations(read_lines(folder / LEDGER))


def finished_evaluation(folder: Path) -> Line | None:
    """The last evaluation of a folder if all its scores are written, else None."""
    last, is_finished = _last(folder)
    return last if is_finished else None


def evaluations_of(samples: Iterable[str]) -> list[Line]:
    """The user's evaluations of the data set with these samples: of a union of two sets for each of them."""
    wanted, lines = set(samples), _evaluations(read_lines(_user_folder() / LEDGER)).values()
    same = {digest for digest in {line["samples"] for line in lines} if _are_same(wanted, _read_samples(digest))}
    return [line for line in lines if line["samples"] in same]


def evaluations_beside(folder: Path) -> list[Line]:
    """The user's evaluations of the data sets in a folder's copy, including those of the folder."""
    found, known = (_evaluations(read_lines(place / LEDGER)) for place in (folder, _user_folder()))
    for digest in {known[identity]["samples"] for identity in found if identity in known}:
        found |= {line["id"]: line for line in evaluations_of(_read_samples(digest))}
    return [*found.values()]


def read_lines(path: Path) -> list[Line]:
    """The lines of a ledger or copy, without an unfinished last line: no label was read after it.

    Raises:
        UserError: another line is damaged.
    """
    lines: list[Line] = []
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, text in enumerate(whole, start=1):
        with suppress(ValueError, TypeError, KeyError):
            line = json.loads(text)
            if has_shape(line, LINES[line["event"]]):
                lines.append(line)
        if len(lines) < number:
            raise UserError(f"{path}, line {number}: damaged; restore the file from a copy")
    return lines


def _evaluations(lines: list[Line]) -> dict[str, Line]:
    return {line["id"]: line for line in lines if line["event"] == EVALUATED}


def _last(folder: Path) -> tuple[Line | None, bool]:
    """The last evaluation of a folder, and whether it is finished."""
    lines = read_lines(folder / LEDGER)
    last = next((line for line in reversed(lines) if line["event"] == EVALUATED), None)
    return last, last is not None and any((each["event"], each["id"]) == (FINISHED, last["id"]) for each in lines)


def _add(place: Path, line: Mapping[str, Any]) -> None:
    """Append a line after the last whole one, unless this event of its evaluation is there."""
    path = place / LEDGER
    if any((each["event"], each["id"]) == (line["event"], line["id"]) for each in read_lines(path)):
        return
    with explain_write_errors(path):
        place.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)) as file:
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        make_durable(place)


def _user_folder() -> Path:
    return cache_root() / "evaluations"


def _read_samples(digest: str) -> set[str]:
    file = _user_folder() / f"{digest}.txt"
    return set(file.read_text().split()) if file.is_file() else set()


def _are_same(some: set[str], others: set[str]) -> bool:
    # All evaluations without hashes, by the user's own loaders, are of the same samples.
    return some == others or len(some & others) >= max(1, SAME_SHARE * min(len(some), len(others)))
