"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import levelfield

PACKAGES = (Path(levelfield.__file__).parent, Path(__file__).parents[1] / "papers")
MODULES = [
    ".".join(path.relative_to(package.parent).with_suffix("").parts)
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
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
