"""Links to headings lead there on GitHub and in the site. Links to pages are checked by the site's build."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deletable import is_deleted
from myst_parser.slugs import github_slugify
from tiny_fit import REPOSITORY

FOLDERS = ("docs", "results", "papers", "benchmarks", "examples", "notebooks")
PAGES = [*REPOSITORY.glob("*.md"), *(page for folder in FOLDERS for page in (REPOSITORY / folder).rglob("*.md"))]
TO_A_HEADING = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")


def without_code(page: Path) -> str:
    return re.sub(r"^(`{3,}|~{3,}).*?^\1|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def slugs(page: Path) -> Iterator[str]:
    """GitHub's anchors of a page's headings: lower case, spaces are hyphens, punctuation is left out."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(page), re.M):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        assert slug == github_slugify(text.replace("`", "")), "the site has another anchor"
        yield slug if slug not in found else f"{slug}-{found[slug]}"
        found[slug] = found.get(slug, 0) + 1


LINKS = [
    pytest.param(page, name, anchor, id=f"{page.relative_to(REPOSITORY)}: {name}#{anchor}")
    for page in PAGES
    for name, anchor in TO_A_HEADING.findall(without_code(page))
    if not is_deleted(os.path.relpath(page.parent / name, REPOSITORY))
]


def test_they_are_found() -> None:
    assert len(LINKS) > 20


@pytest.mark.parametrize(("page", "name", "anchor"), LINKS)
def test_a_link_to_a_heading_is_github_s(page: Path, name: str, anchor: str) -> None:
    target = (page.parent / name).resolve() if name else page
    assert anchor in set(slugs(target))
