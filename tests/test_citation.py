"""CITATION.cff says of levelfield what the package says of itself."""

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
