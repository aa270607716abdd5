"""Every table and figure of the papers with experiments: what it shows, and which studies give it here."""

from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

import yaml

from levelfield.analysis.papers import dataset_name
from levelfield.errors import UserError, nearest
from levelfield.study.definition.miniature import data_and_weights
from levelfield.study.definition.study_file import find_study, load_spec


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper.

    Args:
        name: Paper and number, `reality_check/table4`.
        what: What it shows.
        published: What the paper has in it, in short.
        studies: The studies that give it, as `levelfield study run` takes them.
        drawn: Whether it follows from published numbers alone (`levelfield.report.paper_figures`).
        read: Where its content stands, for a list or a picture in which nothing is measured.
    """

    name: str
    what: str
    published: str
    studies: tuple[str, ...] = field(default=())
    drawn: bool = False
    read: str = ""

    @property
    def paper(self) -> str:
        """Key of the paper."""
        return self.name.partition("/")[0]

    @property
    def needs(self) -> str:
        """Data sets, and trunks with pretrained weights, that do not come with levelfield."""
        data: set[str] = set()
        weights: set[str] = set()
        for study in self.studies:
            there, pretrained = data_and_weights(load_spec(find_study(study)))
            data |= {dataset_name(path) or path for path in there}
            weights |= pretrained
        return "; ".join(filter(None, (", ".join(sorted(data)), ", ".join(sorted(weights))))) or "nothing"


@lru_cache(maxsize=1)
def exhibits() -> dict[str, Exhibit]:
    """All of them by name, in the papers' order."""
    content = yaml.safe_load(files("levelfield.published").joinpath("exhibits.yaml").read_text(encoding="utf-8"))
    found = {}
    for paper, rows in content.items():
        for number, row in rows.items():
            studies = tuple(f"{paper}/{study}" for study in row.pop("studies", ()))
            found[f"{paper}/{number}"] = Exhibit(f"{paper}/{number}", studies=studies, **row)
    return found


def exhibit(name: str) -> Exhibit:
    """One of them.

    Raises:
        UserError: there is none of that name.
    """
    known = exhibits()
    if name not in known:
        raise UserError(f"no table or figure {name!r}{nearest(name, known, '')} (levelfield paper list)")
    return known[name]
