"""The ledger of the test classes: one line an opening, durable before the first test label is used."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.storage.atomic import make_durable, storing, without_links
from levelfield.storage.lock import Lock
from levelfield.storage.provenance import code_version

ENTRY_KEYS = {
    "opened": ("opening", "time", "reason", "code", "configuration", "checkpoints"),
    "finished": ("opening", "time"),
    "transfer": ("time", "data", "samples", "checkpoints"),
}
LEDGER = "ledger.jsonl"
REMEDY = "restore the file from a copy, or choose another --output"


class Ledger:
    """`ledger.jsonl`: each opening of the test classes, in order.

    An opening is identified by the configuration and the checkpoints it tests. Continuing one that was interrupted is
    not another one, unless another reason is given; every other opening needs a reason given by a person. Reading and
    writing is one step for `open` and `finish`: of two processes that open at once, the second sees the first's line.
    Each line holds the SHA-256 of the one before it, so that an edited, inserted or removed line shows. What a
    checkpoint scores on another set (`transfer`) has a line, too, and is no opening.

    Args:
        folder: The study's folder, or a fit's; there need be no ledger yet.
        now: Clock, for tests.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path = folder / LEDGER
        self.now = now

    def entries(self) -> list[dict[str, Any]]:
        """All lines, each with its own SHA-256 as `hash`.

        Raises:
            UserError: a line is damaged (an unfinished last line is not: it was cut off before anything was read), or
                does not follow from the one before it.
        """
        if not self.path.exists():
            return []
        *whole, _unfinished = self.path.read_bytes().split(b"\n")
        entries: list[dict[str, Any]] = []
        before = None
        for number, line in enumerate(whole, start=1):
            try:
                entry = json.loads(line)
                whole_entry = set(ENTRY_KEYS[entry["event"]]) <= set(entry)
            except (ValueError, KeyError, TypeError):
                whole_entry = False
            if not whole_entry:
                raise UserError(f"{self.path} line {number} is damaged; {REMEDY}")
            if entry.get("previous") != before:
                raise UserError(f"{self.path} line {number} does not follow from the line before it; {REMEDY}")
            before = line_hash(line)
            entries.append({**entry, "hash": before})
        return entries

    @property
    def openings(self) -> list[dict[str, Any]]:
        """The openings so far."""
        return [entry for entry in self.entries() if entry["event"] == "opened"]

    def line_of(self, opening: int) -> str:
        """SHA-256 of an opening's line, for the scores that follow from it."""
        return next(entry["hash"] for entry in self.openings if entry["opening"] == opening)

    def open(
        self,
        configuration: str,
        checkpoints: Mapping[str, str],
        reopen: str | None = None,
        results: Mapping[str, str] | None = None,
        samples: str | None = None,
    ) -> int:
        """Record an opening, durably, and return its number, from 1.

        Args:
            configuration: Hash of what is tested.
            checkpoints: Name to SHA-256 of each checkpoint tested.
            reopen: Why the test classes are opened again; kept of the first opening, too.
            results: Name to SHA-256 of the results that led to these checkpoints.
            samples: Hash of the list of the test samples: an unfinished opening does not go on with another.

        Raises:
            UserError: they were opened before, for something else or to the end, and no reason is given.
        """
        with self._held():
            entries = self.entries()
            openings = [entry for entry in entries if entry["event"] == "opened"]
            finished = {entry["opening"] for entry in entries if entry["event"] == "finished"}
            if openings:
                last = openings[-1]
                same = last["configuration"] == configuration and last["checkpoints"] == dict(checkpoints)
                same = same and last.get("samples") in (None, samples)
                if same and last["opening"] not in finished and reopen in (None, last["reason"]):
                    return last["opening"]
                if not reopen:
                    self.refuse_reopening()
            number = len(openings) + 1
            self._append(
                {
                    "event": "opened",
                    "opening": number,
                    "time": self.now().isoformat(timespec="seconds"),
                    "reason": reopen or "first opening",
                    "code": code_version(),
                    "configuration": configuration,
                    "checkpoints": dict(checkpoints),
                    **({} if results is None else {"results": dict(results)}),
                    **({} if samples is None else {"samples": samples}),
                }
            )
            return number

    def check_scored(self, scores: Path, opening: int, line: str | None) -> None:
        """Refuse test scores of an opening that is not here as it was when they were computed.

        Args:
            scores: Their file.
            line: SHA-256 of the opening's line; None for a file that does not hold it.

        Raises:
            UserError: the ledger is missing or was edited.
        """
        here = {entry["opening"]: entry["hash"] for entry in self.openings}
        if opening not in here or line not in (None, here[opening]):
            what = "was edited" if self.path.exists() else "is missing"
            raise UserError(f"{self.path} {what}: {scores} is of an opening that it does not hold; {REMEDY}")

    def refuse_reopening(self) -> None:
        """Raise if the test classes were opened before.

        Raises:
            UserError: says when, and how to open them again.
        """
        openings = self.openings
        if openings:
            times = "once" if len(openings) == 1 else f"{len(openings)} times"
            raise UserError(
                f"{self.path}: the test classes were opened {times} already (last {openings[-1]['time']}); "
                'opening them again is recorded and shown: --reopen-test "why", in Python RecordOpening(reopen="why") '
                "among the Trainer's callbacks"
            )

    def finished(self, configuration: str, checkpoints: Mapping[str, str], reopen: str | None = None) -> int | None:
        """Number of the last opening if it was of just this and all its scores are written.

        Args:
            configuration: Hash of what is tested.
            checkpoints: Name to SHA-256 of each checkpoint tested.
            reopen: Why they are to be opened again; the reason of the last opening asks for no other one.
        """
        entries = [entry for entry in self.entries() if entry["event"] != "transfer"]
        if not entries or entries[-1]["event"] != "finished":
            return None
        last = next(entry for entry in reversed(entries) if entry["event"] == "opened")
        same = last["configuration"] == configuration and last["checkpoints"] == dict(checkpoints)
        return last["opening"] if same and reopen in (None, last["reason"]) else None

    def finish(self, opening: int) -> None:
        """Record that all scores of an opening are written; once, whoever else did the same opening."""
        with self._held():
            if not any(entry["event"] == "finished" and entry["opening"] == opening for entry in self.entries()):
                now = self.now().isoformat(timespec="seconds")
                self._append({"event": "finished", "opening": opening, "time": now})

    def transfer(self, data: str, samples: str, checkpoints: Mapping[str, str]) -> int:
        """Record, durably, that checkpoints are scored on another set; returns how often they were by now.

        Args:
            data: What the set is called.
            samples: Hash of the list of its samples.
            checkpoints: Name to SHA-256 of each.
        """
        with self._held():
            same = {"samples": samples, "checkpoints": dict(checkpoints)}
            before = [
                entry for entry in self.entries() if entry["event"] == "transfer" and same.items() <= entry.items()
            ]
            time = self.now().isoformat(timespec="seconds")
            self._append({"event": "transfer", "time": time, "data": data, **same, "code": code_version()})
            return len(before) + 1

    def _held(self) -> Lock:
        """No other process writes the ledger meanwhile."""
        return Lock(self.path.parent, "ledger", "ledger")

    def _append(self, entry: dict[str, Any]) -> None:
        with storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", opener=without_links) as file:
                content = self.path.read_bytes()
                *whole, unfinished = content.split(b"\n")
                if unfinished:
                    file.truncate(len(content) - len(unfinished))
                entry = {**entry, "previous": line_hash(whole[-1]) if whole else None}
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            make_durable(self.path.parent)


def line_hash(line: bytes) -> str:
    """SHA-256 of a line without its end."""
    return hashlib.sha256(line).hexdigest()
