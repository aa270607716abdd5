"""The page on losses: what it says of its defaults, its own regularizer, and the loss of ten lines that it links to."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import pytorch_metric_learning
import torch

from levelfield import losses, miners

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "losses.md").read_text(encoding="utf-8")


def block_of(name: str, page: str = PAGE) -> str:
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.S) if f"class {name}" in block]
    return source


@pytest.mark.parametrize("ours", [losses, miners], ids=["losses", "miners"])
def test_names_and_defaults_are_those_of_the_version_that_it_names(ours: ModuleType) -> None:
    version = re.search(r"Names and defaults are those of\s+pytorch-metric-learning (\d+\.\d+)", PAGE)[1]
    assert pytorch_metric_learning.__version__.startswith(f"{version}.")
    peers = import_module(f"pytorch_metric_learning.{ours.__name__.rpartition('.')[2]}")
    shared = [name for name in ours.__all__ if hasattr(peers, name)]
    assert len(shared) >= 8
    for name in shared:
        own, peer = (inspect.signature(getattr(module, name)).parameters for module in (ours, peers))
        for argument in set(own) & set(peer):
            assert own[argument].default == peer[argument].default, (name, argument)


def test_the_regularizer_of_ones_own_works_as_shown():
    scope: dict = {}
    exec(compile(block_of("MyRegularizer"), "my_regularizer.py", "exec"), scope)
    assert float(scope["MyRegularizer"](weight=0.5)(torch.tensor([[1.0, -2], [3, 0]]))) == 1.5


def test_the_loss_of_ten_lines_is_its_equation() -> None:
    source = block_of("MyLoss", (DOCS / "tutorial_add_a_loss.md").read_text(encoding="utf-8"))
    assert len([line for line in source.splitlines() if line.strip()]) <= 12
    scope: dict = {}
    exec(compile(source, "my_loss.py", "exec"), scope)
    unit, labels = torch.nn.functional.normalize(torch.randn(16, 8)), torch.arange(16) % 4
    cosines, same = unit @ unit.T, labels[:, None] == labels[None, :]
    pull = (1 - cosines)[same & ~torch.eye(16, dtype=torch.bool)].mean()
    push = (cosines - 0.2).clamp_min(0)[~same].mean()
    torch.testing.assert_close(scope["MyLoss"](margin=0.2)(unit, labels), pull + push)
