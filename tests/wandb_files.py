"""What W&B's offline files hold: a log of LevelDB's format, whose records are W&B's own protocol messages."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

BLOCK, HEADER = 32768, 7
# `finish` returns before W&B's process has written the last of it; a run that was killed has no end to wait for.
LONGEST_WAIT = 5
ENDS = (1, 4)  # of a whole record, and of the last piece of one in pieces


class OfflineRun(NamedTuple):
    run: Any
    history: list[dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    artifacts: list[Any]
    files: Path
    """The folder of its tables."""

    def table(self, key: str) -> list[list[Any]]:
        """The rows of a table; an image is the word `Image`."""
        return json.loads((self.files / self.summary[f"{key}/path"]).read_text())["data"]

    def series(self, key: str) -> dict[int, Any]:
        """Step to value."""
        return {row["trainer/global_step"]: row[key] for row in self.history if key in row}

    @property
    def keys(self) -> set[str]:
        return {key for row in self.history for key in row if not key.startswith("_")}


def offline_runs(folder: Path) -> list[OfflineRun]:
    """All runs below a folder, in the order of their paths, once they are written."""
    latest = time.monotonic() + LONGEST_WAIT
    paths = sorted(folder.glob("**/offline-run-*/run-*.wandb"))
    for path in paths:
        while "exit" not in dict(_records(path)) and time.monotonic() < latest:
            time.sleep(0.02)
    return list(map(read_run, paths))


def read_run(path: Path) -> OfflineRun:
    run, history, config, summary, artifacts = None, [], {}, {}, []
    for kind, record in _records(path):
        if kind == "run":
            run = record.run
        if kind in ("run", "config"):
            config |= _items((record.run.config if kind == "run" else record.config).update)
        elif kind == "history":
            history.append(_items(record.history.item))
        elif kind == "summary":
            summary |= _items(record.summary.update)
        elif kind == "artifact":
            artifacts.append(record.artifact)
        elif kind == "request" and record.request.HasField("log_artifact"):
            artifacts.append(record.request.log_artifact.artifact)
    return OfflineRun(run, history, config, summary, artifacts, path.parent / "files")


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(path: Path) -> list[tuple[str, Any]]:
    """The kind of each record, and the record."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, found, place, pieces = path.read_bytes(), list[tuple[str, Any]](), HEADER, b""
    assert content[:4] in (b":W&B", b"")
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:  # a block's last bytes hold no header
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        place += HEADER + length
        pieces += content[place - length : place]
        if kind in ENDS:
            record = Record.FromString(pieces)
            found.append((record.WhichOneof("record_type"), record))
            pieces = b""
    return found
