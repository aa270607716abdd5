"""A plugin: where CI is set, a test that lacks what it compares with fails, whatever it skips elsewhere.

Real data are left out in one way only: by saying so, `LEVELFIELD_DATA=none`.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# How pytest and `real_data` say that something is missing; skips for other reasons stay.
MISSING = ("could not import", "needs the extra", "no real data")


def real_data(name: str = "") -> Path:
    """The folder of named data sets, or of one: LEVELFIELD_DATA, or shared/data beside the repository."""
    given = os.environ.get("LEVELFIELD_DATA")
    if given == "none":
        pytest.skip("LEVELFIELD_DATA=none")
    root = Path(given or Path(__file__).parents[2] / "shared" / "data")
    if not (root / name).is_dir():
        pytest.skip(f"no real data at {root / name}: set LEVELFIELD_DATA")
    return root / name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if report.skipped and os.environ.get("CI", "false").lower() not in ("", "0", "false"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if any(words in reason for words in MISSING):
            report.outcome = "failed"
            report.longrepr = (
                f"{reason.removeprefix('Skipped: ')} (CI is set, so this may not be missing: install the extra dev, "
                "and set LEVELFIELD_DATA to the data's folder, or to none to leave them out)"
            )
    return report


pytest_make_collect_report = pytest_runtest_makereport
