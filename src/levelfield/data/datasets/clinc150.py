"""CLINC150: requests to an assistant, each with one of 150 intents of 10 domains."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from levelfield.data.dataset import NamedTextDataset, SampleIndex

# Domain of each intent, from data/domains.json of the official repository.
DOMAINS = Path(__file__).with_suffix(".csv")


class CLINC150(NamedTextDataset):
    """Larson et al., "An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction", EMNLP 2019.

    Every intent is in each official part, so the parts are merged and split by class. The 1,200 out-of-scope requests
    have no intent and are left out. Classes are in the order of their names. Coarse classes: the domains.
    Tested with: the real files.

    Args:
        root: holds `clinc150/` with `data_full.json`, as in the official repository; None takes the environment's
            LEVELFIELD_DATA.
    """

    name = "clinc150"

    def read_samples(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        with self.sound(file := folder / "data_full.json"):
            parts = json.loads(file.read_bytes())
            for part in ("train", "val", "test"):
                for number, (text, intent) in enumerate(parts[part]):
                    yield f"{part}[{number}]", text, intent

    def read_index(self) -> SampleIndex:
        index = super().read_index()
        with DOMAINS.open(encoding="utf-8", newline="") as rows:
            domains = {row["intent"]: row["domain"] for row in csv.DictReader(rows)}
        return replace(index, coarse_names=tuple(domains.get(name, "") for name in index.class_names))
