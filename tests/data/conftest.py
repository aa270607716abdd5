"""Where the real data lie."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of named data sets: LEVELFIELD_DATA, or shared/data beside the repository."""
    root = Path(os.environ.get("LEVELFIELD_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not root.is_dir():
        pytest.skip(f"no real data at {root}: set LEVELFIELD_DATA")
    return root
