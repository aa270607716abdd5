"""Banking77: questions to a bank, each with one of 77 intents."""

import csv
from collections.abc import Iterator
from pathlib import Path

from levelfield.data.dataset import NamedTextDataset


class Banking77(NamedTextDataset):
    """Casanueva, Temčinas, Gerz, Henderson and Vulić, "Efficient Intent Detection with Dual Sentence Encoders", 2020.

    Every intent is in both official parts, so the parts are merged and split by class. Classes are sorted by name.
    Tested with: the real files.

    Args:
        root: holds `banking77/` with `train.csv` and `test.csv`, as in the official repository; None takes the
            environment's LEVELFIELD_DATA.
    """

    name = "banking77"

    def read_samples(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        for archive in self.archives:
            with self.sound(folder / archive.file), (folder / archive.file).open(encoding="utf-8", newline="") as file:
                rows = csv.reader(file, strict=True)
                next(rows)  # text,category
                number = 2  # an editor's number of the row's first line: some texts have several
                for text, intent in rows:
                    yield f"{archive.file} row {number}", text.strip(), intent
                    number = rows.line_num + 1
