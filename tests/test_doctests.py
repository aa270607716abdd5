"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import levelfield

SOURCES = Path(levelfield.__file__).parent
MODULES = [
    ".".join(("levelfield", *path.relative_to(SOURCES).with_suffix("").parts))
    for path in sorted(SOURCES.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_say(module):
    """Every one of them: none is passed over."""
    source = importlib.import_module(module.removesuffix(".__init__")).__file__
    assert "doctest: +SKIP" not in Path(source).read_text()
    done = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")), optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0
