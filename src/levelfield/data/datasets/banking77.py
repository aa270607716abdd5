"""Banking77: questions to a bank, each with one of 77 intents."""

from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.table import read_labelled_rows
from levelfield.data.datasets.texts import LabelledText, TextDataset, index_of
from levelfield.data.index import SampleIndex

PARTS = ("train.csv", "test.csv")
URL = "https://raw.githubusercontent.com/PolyAI-LDN/task-specific-datasets/master/banking_data"


class Banking77(TextDataset, NamedDataset):
    """Casanueva, Temčinas, Gerz, Henderson and Vulić, "Efficient Intent Detection with Dual Sentence Encoders", 2020.

    Every intent is in both official parts, so the parts are merged and split by class. Classes are sorted by name.
    Tested with: the real files.

    Args:
        root: holds `banking77/` with `train.csv` and `test.csv`, as in the official repository; None takes the
            environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a missing or malformed file, or a row without a text or a category.
    """

    name = "banking77"
    licence = "CC BY 4.0"
    source = "https://github.com/PolyAI-LDN/task-specific-datasets"
    archives = (
        Archive(
            file="train.csv",
            url=f"{URL}/train.csv",
            size=839073,
            sha256="b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b",
        ),
        Archive(
            file="test.csv",
            url=f"{URL}/test.csv",
            size=239961,
            sha256="d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d",
        ),
    )
    num_classes_published = 77
    num_samples_published = 13083

    def read_texts(self) -> tuple[SampleIndex, list[str], list[str]]:
        folder = self.named_folder()
        parts = {part: read_labelled_rows(folder / part, "text", "category") for part in PARTS}
        samples = [
            LabelledText(f"{part} row {number}", text, found.labels.names[code])
            for part, found in parts.items()
            for number, text, code in zip(found.numbers, found.contents, found.labels.codes, strict=True)
        ]
        return *index_of(samples), [problem for labelled in parts.values() for problem in labelled.problems]
