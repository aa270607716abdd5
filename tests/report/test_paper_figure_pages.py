"""The papers' figures that need no training: the pages in docs/papers are what the code says, and all are drawn."""

import re
from pathlib import Path

import pytest

from levelfield.report.figures.style import style
from levelfield.report.paper_figures import paper_figures, to_png, write_paper_figure

PAGES = Path("docs/papers")


@pytest.mark.parametrize("name", list(paper_figures()))
def test_the_page_in_the_docs_has_these_numbers(name: str, tmp_path: Path) -> None:
    """`python scripts/paper_figures.py` writes them anew."""
    written = write_paper_figure(paper_figures()[name], tmp_path)
    for path in written:
        there = PAGES / path.relative_to(tmp_path)
        if path.suffix == ".md":
            assert path.read_text() == there.read_text()
        else:
            assert there.read_bytes()[:8] == path.read_bytes()[:8]  # a PNG; its bytes depend on the fonts' library


def test_a_figure_is_the_same_twice() -> None:
    figure = paper_figures()["reality_check/figure3"]
    with style():
        assert to_png(figure.draw(())) == to_png(figure.draw(()))


def test_what_the_pages_link_to_is_there() -> None:
    for page in PAGES.glob("*.md"):
        links = re.findall(r"\]\(([\w./]+)\)", page.read_text())
        assert links
        assert [link for link in links if not (PAGES / link).exists()] == []
        named = re.findall(r"`(configs/[\w./]+)`", page.read_text())
        assert [file for file in named if not Path(file).exists()] == []
