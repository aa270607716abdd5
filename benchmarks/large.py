"""A table of ten million rows: seconds and peak of anonymous memory of each step.

    python benchmarks/large.py                  # 10 million rows
    python benchmarks/large.py --rows 100000    # a look

Each row is a process of its own. Anonymous memory (`RssAnon`, looked at each 10 ms) leaves out what is mapped of files,
which processes share and the system can drop. Seconds are CPU seconds, with those of the wall behind them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CLASS_SIZE = 100
BATCH, EACH, BATCHES = 128, 4, 1000
STEPS = ("imports", "read", "split", "batches")


class Steps:
    """What each step took, and the peak so far."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float, float]] = {}
        self._peak = 0.0
        threading.Thread(target=self._look, daemon=True).start()
        self._since = time.process_time(), time.perf_counter()

    def done(self, step: str) -> None:
        now = time.process_time(), time.perf_counter()
        self.rows[step] = now[0] - self._since[0], now[1] - self._since[1], self._peak
        self._since = time.process_time(), time.perf_counter()

    def _look(self) -> None:
        while True:
            with open("/proc/self/status") as status:
                found = next(line for line in status if line.startswith("RssAnon"))
            self._peak = max(self._peak, int(found.split()[1]) / 1024)
            time.sleep(0.01)


def make_table(file: Path, rows: int, kind: str) -> None:
    """Rows of `rows / 100` classes in no order: paths of 35 letters, or texts of 90."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, 1 << 19):
        labels = rng.integers(0, max(16, rows // CLASS_SIZE), min(1 << 19, rows - start))
        if kind == "path":
            contents = [f"{label:07d}/picture-{start + row:010d}.jpg" for row, label in enumerate(labels.tolist())]
        else:
            contents = [
                f"text {start + row} about {label}," + " and so on" * 7 for row, label in enumerate(labels.tolist())
            ]
        table = pa.table({kind: contents, "label": labels})
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def draw_batches(file: Path, kind: str) -> Steps:
    """From the table to a thousand batches, with the paths or texts of each."""
    steps = Steps()
    import numpy as np

    from levelfield.data import check_validation_classes, class_folds, split_classes
    from levelfield.data.datasets import ImageTable, TextTable
    from levelfield.data.loaders import ClassSubset
    from levelfield.data.samplers import MPerClassBatchSampler

    steps.done("imports")
    dataset = ImageTable(file) if kind == "path" else TextTable(file)
    index = dataset.read_index()
    steps.done("read")
    trainval, _ = split_classes(np.arange(len(index.class_names)))
    folds = class_folds(trainval)
    check_validation_classes(folds, index.labels)
    train, _ = (ClassSubset(dataset, index.select(np.isin(index.labels, classes))) for classes in folds[0])
    steps.done("split")
    for batch in MPerClassBatchSampler(train.labels, BATCH, EACH, BATCHES):
        keys = [train.index.keys[draw] for draw in batch]
        if kind == "text":
            _ = [dataset.load(key) for key in keys]
    steps.done("batches")
    return steps


PARTS = {
    "make_table": make_table,
    "draw_batches": draw_batches,
}


def in_process(part: str, *words: object, cache: Path) -> dict[str, tuple[float, float, float]]:
    """What a part prints, run in a process of its own."""
    environment = {**os.environ, "LEVELFIELD_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--part", part, *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def table_rows(rows: int, folder: Path) -> None:
    print(f"\n| {rows:,} rows | imports | read | split | {BATCHES:,} batches of {BATCH} | anonymous, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in ("path", "text"):
        file = folder / f"{kind}.parquet"
        in_process("make_table", file, rows, kind, cache=folder)
        for when in ("the first time", "again"):
            found = in_process("draw_batches", file, kind, cache=folder / "cache")
            shown = " | ".join(f"{found[step][0]:.1f} ({found[step][1]:.1f})" for step in STEPS)
            print(f"| {kind}s, {when} | {shown} | {found['batches'][2]:,.0f} |", flush=True)
        file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        part, place, *words = given.part
        steps = PARTS[part](Path(place), *(int(word) if word.isdecimal() else word for word in words))
        print(json.dumps(steps.rows if steps else {}))
        return
    with tempfile.TemporaryDirectory() as folder:
        table_rows(given.rows, Path(folder))


if __name__ == "__main__":
    main()
