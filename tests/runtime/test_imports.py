"""Importing without a search for garbage, which goes on afterwards."""

import gc

import pytest

from levelfield.runtime.imports import without_collecting


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with without_collecting():
        with without_collecting():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collecting():
        import no_such_module  # noqa: F401
    assert gc.isenabled()
