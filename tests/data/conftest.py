"""Where the real data lie."""

from pathlib import Path

import pytest
from no_skips_in_ci import real_data


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of named data sets."""
    return real_data()
