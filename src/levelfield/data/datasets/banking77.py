"""Banking77: questions to a bank, each with one of 77 intents."""

import csv
from collections.abc import Iterator
from pathlib import Path

from levelfield.data.dataset import Archive, NamedTextDataset

URL = "https://raw.githubusercontent.com/PolyAI-LDN/task-specific-datasets/master/banking_data"


class Banking77(NamedTextDataset):
    """Casanueva, Temčinas, Gerz, Henderson and Vulić, "Efficient Intent Detection with Dual Sentence Encoders", 2020.

    Every intent is in both official parts, so the parts are merged and split by class. Classes are sorted by name.
    Tested with: the real files.

    Args:
        root: holds `banking77/` with `train.csv` and `test.csv`, as in the official repository; None takes the
            environment's LEVELFIELD_DATA.
    """

    name = "banking77"
    licence = "CC BY 4.0"
    source = "https://github.com/PolyAI-LDN/task-specific-datasets"
    archives = (
        Archive(f"{URL}/train.csv", 839_073, "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b"),
        Archive(f"{URL}/test.csv", 239_961, "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d"),
    )
    num_classes_published = 77
    num_samples_published = 13083

    def read_samples(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        for archive in self.archives:
            with self.sound(folder / archive.file), (folder / archive.file).open(encoding="utf-8", newline="") as file:
                rows = csv.reader(file, strict=True)
                next(rows)  # text,category
                number = 2  # an editor's number of the row's first line: some texts have several
                for text, intent in rows:
                    yield f"{archive.file} row {number}", text.strip(), intent
                    number = rows.line_num + 1
