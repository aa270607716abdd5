"""What W&B's offline files hold: a log of LevelDB's format, whose records are W&B's own protocol messages."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK, HEADER = 32768, 7
# `finish` returns before W&B's process has written the last of it; a run that was killed has no end to wait for.
LONGEST_WAIT = 5
# Of a record in pieces, the last one, or of a whole one.
ENDS = (1, 4)


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
    for path in folder.glob("**/offline-run-*/run-*.wandb"):
        while not _has_ended(path) and time.monotonic() < latest:
            time.sleep(0.02)
    return [read_run(path) for path in sorted(folder.glob("**/offline-run-*/run-*.wandb"))]


def read_run(path: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run, history, config, summary, artifacts = None, [], {}, {}, []
    for content in _records(path.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= _items(record.run.config.update)
        elif kind == "config":
            config |= _items(record.config.update)
        elif kind == "history":
            history.append(_items(record.history.item))
        elif kind == "summary":
            summary |= _items(record.summary.update)
        elif kind == "artifact":
            artifacts.append(record.artifact)
        elif kind == "request" and record.request.HasField("log_artifact"):
            artifacts.append(record.request.log_artifact.artifact)
    return OfflineRun(run, history, config, summary, artifacts, path.parent / "files")


def _has_ended(path: Path) -> bool:
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    kinds = [Record.FromString(record).WhichOneof("record_type") for record in _records(content)] if content else []
    return "exit" in kinds


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    place, pieces = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:  # a block's last bytes hold no header
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        pieces += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in ENDS:
            yield pieces
            pieces = b""
