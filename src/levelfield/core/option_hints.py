"""Names of commands and options in other programs, and what to give here: the table `option_hints.csv`."""

import csv
from collections.abc import Mapping
from pathlib import Path


def _hints(where: str) -> dict[str, str]:
    """Name to hint; names are in lower case, with `_` for `-`."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: row["here"] for row in csv.DictReader(file) if row["where"] == where}


COMMANDS, OF_TRAINING, OF_A_CHECKPOINT = map(_hints, ("command", "training", "checkpoint"))
OF_A_STUDY = {**OF_TRAINING, **_hints("study")}
OF_COMPARE = {**OF_A_STUDY, **_hints("compare")}
OF_AN_EVALUATION = {**OF_A_CHECKPOINT, **_hints("evaluation")}


def option_here(name: str, names: Mapping[str, str]) -> str | None:
    """What to give for an option of another program, with or without its dashes and its section.

    Example:
        >>> option_here("--trainer.num-epochs", OF_TRAINING)
        '--trainer.max_epochs'
    """
    return names.get(name.rpartition(".")[2].lstrip("-").lower().replace("-", "_"))
