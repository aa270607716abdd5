"""20 Newsgroups: 18,846 posts to 20 discussion groups."""

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.table import content_fault
from levelfield.data.datasets.texts import LabelledText, TextDataset, index_of
from levelfield.data.index import SampleIndex

PARTS = ("20news-bydate-train", "20news-bydate-test")
ARCHIVE = "20news-bydate.tar.gz"
LARGEST_POST = 1 << 24  # 100 times the longest


class News20(TextDataset, NamedDataset):
    """Lang, "NewsWeeder: Learning to Filter Netnews", ICML 1995, in the version that is sorted by date.

    The text is the whole post: the header lines of this version (from, subject, organization, lines and a few more; 131
    posts name their group there), quotations and signature. The trunk truncates it to its `max_length`. The papers do
    not mention headers. Every group is in both official parts, so the parts are merged and split by class. Classes are
    in the order of group names. The data set reads the official archive or its folders.
    Tested with: the real files.

    Args:
        root: holds `20newsgroups/` with `20news-bydate.tar.gz` or its two folders; None takes the environment's
            LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a missing file or part, an incomplete archive, or an empty post.
    """

    name = "news20"
    folder_name = "20newsgroups"
    licence = "none stated; for your own use"
    source = "http://qwone.com/~jason/20Newsgroups/"
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            file=ARCHIVE,
            url="http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
            sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
        ),
    )
    num_classes_published = 20
    num_samples_published = 18846

    def read_texts(self) -> tuple[SampleIndex, list[str], list[str]]:
        folder = self.named_folder()
        posts = _from_folders(folder) if (folder / PARTS[0]).is_dir() else _from_archive(folder / ARCHIVE, self.remedy)
        samples, problems = [], []
        found = set()
        for part, group, number, content in sorted(posts):
            found.add(part)
            key, text = f"{part}/{group}/{number}", content.decode("latin-1").strip()
            if fault := content_fault("the post", text):
                problems.append(f"{folder}: {key}: {fault}")
            else:
                samples.append(LabelledText(key, text, group))
        missing = [part for part in PARTS if part not in found]
        if missing:
            raise UserError(f"{folder} has no posts of {' and '.join(missing)}: {self.remedy}")
        return *index_of(samples), problems


def _from_folders(folder: Path) -> Iterator[tuple[str, str, str, bytes]]:
    for part in PARTS:
        for file in (folder / part).glob("*/*"):
            yield part, file.parent.name, file.name, file.read_bytes()


def _from_archive(file: Path, remedy: str) -> Iterator[tuple[str, str, str, bytes]]:
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                words = member.name.removeprefix("./").split("/")
                if member.isfile() and len(words) == 3 and words[0] in PARTS:
                    if member.size > LARGEST_POST:
                        raise UserError(
                            f"{file}: {member.name} has {member.size:,} bytes, too many for a post: {remedy}"
                        )
                    opened = archive.extractfile(member)
                    assert opened is not None
                    yield words[0], words[1], words[2], opened.read()
    except FileNotFoundError:
        raise UserError(f"neither {file} nor the folders {' and '.join(PARTS)} next to it exist: {remedy}") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{file} is not a complete archive ({error}): {remedy}") from None
