"""A study in tests: in this process, or as a process that starts in a moment."""

import csv
import sys
from pathlib import Path
from typing import Any

from forked import Forked, levelfield
from toy_study import TOY, run_study

from levelfield.core import source_identity
from levelfield.core.ledger import EVALUATED, read_lines
from levelfield.study import training_job
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

TABLES = ("results.csv", "summary.csv")
# The toy study without a search: two methods x two folds, one run of one epoch.
SMALL = f"""
name: small
{TOY[TOY.index("base:") : TOY.index("methods:")].replace("max_epochs: 2", "max_epochs: 1")}methods:
  contrastive: {{model: {{loss: ContrastiveLoss}}}}
  mine: {{model: {{loss: my_loss.Mine}}}}
folds: 2
runs: 1
threads: 1
"""
PLAIN = SMALL.replace("  mine: {model: {loss: my_loss.Mine}}\n", "")
ADDED = {"arcface": {"model": {"loss": "ArcFaceLoss"}, "data": {"samples_per_class": 1}}}
MINE = """
import torch

from levelfield.losses import ContrastiveLoss


class Mine(ContrastiveLoss):
    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        {before}
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
"""


def forget(module: str) -> None:
    """Import a module of one's own again, as another process does."""
    sys.modules.pop(module, None)
    training_job._imported.clear()
    source_identity._read.cache_clear()  # an edit of the same size in the same tick of the clock


def small_study(folder: Path, before: str = "pass", text: str = SMALL) -> Path:
    """A study file with a loss of one's own beside it, which does something before it computes."""
    forget("my_loss")
    (folder / "my_loss.py").write_text(MINE.format(before=before.replace("\n", "\n        ")))
    (folder / "small.yaml").write_text(text)
    return folder / "small.yaml"


def run_file(file: Path, folder: Path, *args: Any, **kwargs: Any) -> StudyFolder:
    return run_study(folder, load_spec(file), *args, **kwargs)


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def scores(folder: Path, **wanted: str) -> dict[tuple[str, ...], float]:
    """The values of the rows of results.csv that have these texts, by their other columns."""
    with open(folder / "results.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    known = {"value", *wanted}
    return {tuple(text for key, text in row.items() if key not in known): float(row["value"]) for row in rows}


def evaluations(folder: Path) -> int:
    return sum(line["event"] == EVALUATED for line in read_lines(folder / "ledger.jsonl"))


def results(folder: Path, pattern: str = "*/*/fold*") -> list[Path]:
    return sorted(folder.glob(f"jobs/{pattern}/result.json"))


def study_process(file: Path, output: Path, *options: str) -> Forked:
    """A running study; the file's folder is the working directory, and what it prints is beside `output`."""
    words = levelfield("study", "run", file, "--output", output, *(options or ("--executor.workers", "1")))
    return Forked(words, output.with_suffix(".log"), file.parent, group=True)
