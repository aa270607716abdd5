"""The folder of caches."""

import os
from pathlib import Path

import pytest

from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # no entry in /etc/passwd
    with pytest.raises(UserError, match="LEVELFIELD_CACHE"):
        cache_root()
    monkeypatch.setenv("LEVELFIELD_CACHE", "/somewhere")
    assert cache_root() == Path("/somewhere")
