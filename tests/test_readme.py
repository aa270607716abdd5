"""The README stays what one reads in two minutes: a picture or two, two commands, one table of results."""

import re

from tiny_fit import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def test_it_is_short_and_its_commands_are_two() -> None:
    assert len(README.splitlines()) <= 120
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures[0] == "docs/neighbours.png"
    assert len(pictures) <= 2
    assert re.findall(r"^    (make \w+)", README, re.M) == ["make quickstart", "make test"]
    assert re.findall(r"^    (?!make )\S.*", README, re.M) == []


def test_what_it_links_to_is_there() -> None:
    for link in re.findall(r"\]\((?!https:)([^)#]+)", README):
        assert (REPOSITORY / link).is_file(), link
