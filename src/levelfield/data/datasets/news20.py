"""20 Newsgroups: 18,846 posts to 20 discussion groups."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from levelfield.data.dataset import NamedTextDataset

ARCHIVE = "20news-bydate.tar.gz"


class News20(NamedTextDataset):
    """Lang, "NewsWeeder: Learning to Filter Netnews", ICML 1995, in the version that is sorted by date.

    The text is the whole post: the header lines of this version (from, subject, organization, lines and a few more; 131
    posts name their group there), quotations and signature. The trunk truncates it to its `max_length`. The papers do
    not mention headers. Every group is in both official parts, so the parts are merged and split by class. Classes are
    in the order of group names.
    Tested with: the real files.

    Args:
        root: holds `20newsgroups/` with `20news-bydate.tar.gz`; None takes the environment's LEVELFIELD_DATA.
    """

    name = "news20"

    def read_samples(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        posts = {}
        with self.sound(folder / ARCHIVE), tarfile.open(folder / ARCHIVE) as archive:
            for member in archive:
                if opened := archive.extractfile(member):  # None for a folder
                    posts[member.name] = opened.read().decode("latin-1").strip()
        for name in sorted(posts, key=lambda name: name.split("/")):
            yield name, posts[name], name.split("/")[1]
