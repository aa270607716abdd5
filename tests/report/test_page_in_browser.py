"""The page in a browser: nothing is asked of a network, and all that is on it works."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
from chromium import axe, browser_tab, chromium

from levelfield.report.page import write_report
from levelfield.study.folder import StudyFolder

COLUMN = "[...document.querySelector('.scores').tBodies[0].rows].map(row => row.children[1])"
UNFOLD = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
FOLDED = "[...document.querySelectorAll('details')].filter(each => !each.open).length"
IMAGES = (
    "Promise.all([...document.querySelectorAll('.query img')].map(async each => {"
    "await each.decode(); return each.alt ? each.naturalWidth : 0; }))"
)


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    chromium()
    folder = tmp_path_factory.mktemp("seen") / "study"
    return write_report(StudyFolder.begun(Path(shutil.copytree(finished, folder))))


@pytest.mark.processes
def test_the_page_works_in_a_browser(page: Path) -> None:
    asyncio.run(looked_at(page))


async def looked_at(page: Path) -> None:
    async with browser_tab() as tab:
        await tab.open(page)
        assert tab.requests == [page.resolve().as_uri()]

        before = await tab.run(f"{COLUMN}.map(cell => Number(cell.dataset.value))")
        for wanted in (sorted(before, reverse=True), sorted(before)):
            await tab.run("document.querySelectorAll('.scores th button')[1].click()")
            assert await tab.run(f"{COLUMN}.map(cell => Number(cell.dataset.value))") == wanted
        assert await tab.run("document.querySelectorAll('.scores th')[1].ariaSort") == "ascending"

        ground = "getComputedStyle(document.body).backgroundColor"
        assert await tab.run(ground) == "rgb(255, 255, 255)"
        await tab.theme("dark")
        dark = await tab.run(ground)
        assert sum(map(int, re.findall(r"\d+", dark))) < 150

        assert await tab.run(FOLDED) == await tab.run("document.querySelectorAll('details').length") > 6
        await tab.run("location.hash = '#cost'")
        assert await tab.run("document.getElementById('cost').parentNode.open"), "a link unfolds its section"
        await tab.run(UNFOLD)
        for width in (390, 1280):
            await tab.resize(width)
            assert await tab.run("document.documentElement.scrollWidth") <= width, "the page is not scrolled sideways"
        widths = await tab.run(IMAGES)
        assert (len(widths), min(widths) > 0) == (9 * (1 + 3 * 8), True)
        assert tab.problems == []
        assert len(tab.requests) == 1


@pytest.mark.full
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_no_serious_fault(theme: str, width: int, page: Path) -> None:
    async def violations() -> list[dict]:
        async with browser_tab() as tab:
            await tab.open(page, width, theme=theme)
            await tab.run(UNFOLD)
            await tab.run(axe() + ";0")
            return json.loads(await tab.run("axe.run().then(found => JSON.stringify(found.violations))"))

    serious = [fault for fault in asyncio.run(violations()) if fault["impact"] in ("serious", "critical")]
    assert [(fault["id"], [node["html"][:160] for node in fault["nodes"]][:5]) for fault in serious] == []
