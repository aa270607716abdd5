"""CLINC150: requests to an assistant, each with one of 150 intents of 10 domains."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.table import content_fault
from levelfield.data.datasets.texts import LabelledText, TextDataset, index_of, read_bytes
from levelfield.data.index import SampleIndex

PARTS = ("train", "val", "test")
# Domain of each intent, from data/domains.json of the official repository.
DOMAINS = Path(__file__).with_suffix(".csv")


class CLINC150(TextDataset, NamedDataset):
    """Larson et al., "An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction", EMNLP 2019.

    Every intent is in each official part, so the parts are merged and split by class. The 1,200 out-of-scope requests
    have no intent and are left out. Classes are in the order of their names. Coarse classes: the domains.
    Tested with: the real files.

    Args:
        root: holds `clinc150/` with `data_full.json`, as in the official repository; None takes the environment's
            LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a missing or malformed file, or an entry without a text or an intent.
    """

    name = "clinc150"
    licence = "CC BY 3.0"
    source = "https://github.com/clinc/oos-eval"
    archives = (
        Archive(
            file="data_full.json",
            url="https://raw.githubusercontent.com/clinc/oos-eval/"
            "828f8093932c8fe6ca7936c3d2e52903b1c523de/data/data_full.json",
            size=2495390,
            sha256="36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
        ),
    )
    num_classes_published = 150
    num_samples_published = 22500

    def read_texts(self) -> tuple[SampleIndex, list[str], list[str]]:
        file = self.named_folder() / "data_full.json"
        content = self._parts_of(file)
        samples, problems = [], []
        for part in PARTS:
            for number, entry in enumerate(content[part]):
                if fault := self._fault(entry):
                    problems.append(f"{file}, {part}[{number}]: {fault}")
                else:
                    samples.append(LabelledText(f"{part}[{number}]", *entry))
        index, texts = index_of(samples)
        with DOMAINS.open(encoding="utf-8", newline="") as rows:
            domains = {row["intent"]: row["domain"] for row in csv.DictReader(rows)}
        if domains.keys() >= set(index.class_names):
            index = replace(index, coarse_names=tuple(domains[name] for name in index.class_names))
        return index, texts, problems

    def _parts_of(self, file: Path) -> dict[str, list[Any]]:
        written = read_bytes(file, self.remedy)
        try:
            content = json.loads(written.decode("utf-8-sig", errors="surrogateescape"))
        except ValueError as error:
            raise UserError(f"{file} is not JSON ({error}): {self.remedy}") from None
        for part in PARTS:
            if not isinstance(content, dict) or not isinstance(content.get(part), list):
                raise UserError(f"{file} has no list '{part}' of [text, intent] pairs: {self.remedy}")
        return content

    def _fault(self, entry: Any) -> str:
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(value, str) for value in entry)):
            return f"it is not a [text, intent] pair; {self.remedy}"
        return content_fault("text", entry[0].strip()) or content_fault("intent", entry[1].strip())
