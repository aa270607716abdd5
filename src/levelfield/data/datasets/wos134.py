"""WOS-134: abstracts of papers in the Web of Science, in 134 areas."""

from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.table import content_fault
from levelfield.data.datasets.texts import LabelledText, TextDataset, index_of, read_bytes
from levelfield.data.index import SampleIndex


class WOS134(TextDataset, NamedDataset):
    """Kowsari et al., "HDLTex: Hierarchical Deep Learning for Text Classification", 2017: the set WOS-46985.

    A line of `X.txt` is an abstract; the same line of `Y.txt` is the number of its area, the class. `YL1.txt` and
    `YL2.txt` number domains, and areas within a domain; they are not used.
    Tested with: a small replica.

    Args:
        root: holds `wos134/WOS46985/` with `X.txt` and `Y.txt`, as in the official archive; None takes the
            environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a missing file, files of different lengths, or a line that is empty, not UTF-8
            or not a number.
    """

    name = "wos134"
    inner_folder = "WOS46985"
    licence = "CC BY 4.0"
    source = "https://data.mendeley.com/datasets/9rw3vkcfy4/6"
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            file="WebOfScience.zip",
            gives="WOS46985",
            url="https://data.mendeley.com/public-files/datasets/9rw3vkcfy4/files/"
            "c9ea673d-5542-44c0-ab7b-f1311f7d61df/file_downloaded",
        ),
    )
    num_classes_published = 134
    num_samples_published = 46985

    def read_texts(self) -> tuple[SampleIndex, list[str], list[str]]:
        folder = self.named_folder()
        texts, areas = (self._lines(folder / name) for name in ("X.txt", "Y.txt"))
        if len(texts) != len(areas):
            raise UserError(f"{folder / 'X.txt'} has {len(texts)} lines, but Y.txt has {len(areas)}: {self.remedy}")
        samples, problems = [], []
        for row, (text, area) in enumerate(zip(texts, areas, strict=True), start=1):
            if fault := content_fault("the abstract", text):
                problems.append(f"{folder / 'X.txt'}, row {row}: {fault}")
            elif not area.isdecimal():
                problems.append(f"{folder / 'Y.txt'}, row {row} is '{area}' instead of an area's number: {self.remedy}")
            else:
                samples.append(LabelledText(f"X.txt row {row}", text, area))
        return *index_of(samples), problems

    def _lines(self, file: Path) -> list[str]:
        content = read_bytes(file, self.remedy).decode("utf-8-sig", errors="surrogateescape")
        # Not `splitlines`, which also splits at other characters within an abstract.
        lines = [line.strip() for line in content.replace("\r\n", "\n").split("\n")]
        return lines[:-1] if lines[-1] == "" else lines
