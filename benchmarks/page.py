"""How long a study's page takes to open in headless Chromium: wall time since its address was asked for, and CPU time.

python benchmarks/page.py [results/heads/grocery_store/archive.tar.xz] [--times 5]

The page is written from the archive first. Each time a new browser, without a cache. The CPU seconds are of all of its
processes and threads.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

from tracking import cpu_seconds

from levelfield.report.page import write_report
from levelfield.study.archive import unpack_study
from levelfield.study.folder import StudyFolder

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from chromium import browser_tab  # noqa: E402

# What has come when the browser has nothing left to do, in ms.
TIMES = """new Promise(done => requestIdleCallback(() => {
  const page = performance.getEntriesByType("navigation")[0];
  done({ "first paint": performance.getEntriesByName("first-contentful-paint")[0].startTime,
    loaded: page.loadEventEnd, "answers the reader": performance.now() });
}))"""


def written(archive: Path, folder: Path) -> Path:
    """The page of a study's archive."""
    unpack_study(archive, folder)
    return write_report(StudyFolder.begun(folder))


async def opened(page: Path) -> dict[str, float]:
    async with browser_tab() as tab:
        began = cpu_seconds()
        await tab.open(page)
        return {**await tab.run(TIMES), "CPU": 1e3 * (cpu_seconds() - began)}


def main() -> None:
    parser = argparse.ArgumentParser()
    archive = REPOSITORY / "results/heads/grocery_store/archive.tar.xz"
    parser.add_argument("archive", type=Path, nargs="?", default=archive)
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        page = written(asked.archive, Path(aside, "study"))
        found = [asyncio.run(opened(page)) for _ in range(asked.times)]
        print(f"{page.stat().st_size / 1e6:.1f} MB, opened {asked.times} times")
    print("| until | median, ms | least | most |\n| --- | ---: | ---: | ---: |")
    for key in found[0]:
        times = [each[key] for each in found]
        print(f"| {key} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")


if __name__ == "__main__":
    main()
