"""Each test here has a cache of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of caches, which is not there yet."""
    folder = tmp_path_factory.mktemp("own") / "cache"
    monkeypatch.setenv("LEVELFIELD_CACHE", str(folder))
    return folder
