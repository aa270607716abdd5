"""CITATION.cff says of levelfield what the package says of itself."""

import re
import tomllib

import yaml
from tiny_fit import REPOSITORY

from levelfield import __version__


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = {"cff-version": "1.2.0", "type": "software", "version": __version__, "license": project["license"]}
    assert required.items() <= cited.items()
    assert cited["keywords"] == project["keywords"]
    for work in (cited, *cited["references"]):
        assert work["title"]
        assert all("name" in author or "family-names" in author for author in work["authors"])
    assert cited["message"]


def test_the_page_shows_the_same_as_bibtex():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    page = (REPOSITORY / "docs" / "cite.md").read_text()
    own, protocol = (
        dict(re.findall(r"^  (\w+) = \{(.*)\}", entry, re.M)) for entry in re.findall(r"^@.*?^\}", page, re.M | re.S)
    )
    assert own["title"] == cited["title"]
    assert own["version"] == str(cited["version"])
    assert own["year"] == str(cited["date-released"].year)
    assert own["license"] == cited["license"]
    assert own["author"] == "{" + cited["authors"][0]["name"] + "}"
    (reference,) = cited["references"]
    names = (f"{author['family-names']}, {author['given-names']}" for author in reference["authors"])
    assert protocol["author"] == " and ".join(names)
    assert (protocol["title"], protocol["year"]) == (reference["title"], str(reference["year"]))
    assert (protocol["booktitle"], protocol["url"]) == (reference["collection-title"], reference["url"])
