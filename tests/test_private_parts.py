"""The private parts of other libraries that the source uses, all there, no other used.

Where one changes, the failure says which file must find another way. `BOUNDS` are the versions that nobody has tried.
"""

import ast
import inspect
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import _common, _typehints
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher as Launcher
from timm.models._manipulate import group_with_matcher
from tiny_fit import REPOSITORY
from torchmetrics import Metric

import levelfield

SOURCE = Path(levelfield.__file__).parent
# The first version of a library in which its private parts may be others; pyproject.toml has the same bound.
BOUNDS = {"jsonargparse": "5", "lightning": "2.7", "torchmetrics": "2", "timm": "1.1", "torch": "3"}
DISCARD = "discard_init_args_on_class_path_change"  # looked for in the source: settings.py may have replaced it
# Of Python's own: named tuples, argparse, os, importlib.
OF_PYTHON = {"_asdict", "_fields", "_replace", "_exit", "_actions", "_option_string_actions"}


@cache
def trainer() -> Trainer:
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")


class MetricOfNothing(Metric):
    def update(self) -> None:
        """Nothing is counted."""

    def compute(self) -> None:
        """Nothing is computed."""


def takes(function: Callable, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


def sets(kind: type, name: str) -> bool:
    return f"self.{name}" in inspect.getsource(kind.__init__)


def fused() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)


# Of each library, whether a part is still what the source takes it for; the source says why it is used.
PARTS: dict[str, dict[str, Callable[[], Any]]] = {
    "jsonargparse": {
        "_common": lambda: callable(_common.parser_context) and hasattr(_common, "lenient_check"),
        "_typehints": lambda: f"\ndef {DISCARD}(parser_or_action, prev_val, value" in inspect.getsource(_typehints),
    },
    "lightning": {
        "_accelerator_connector": lambda: trainer()._accelerator_connector.cluster_environment,
        "_average_model": lambda: sets(WeightAveraging, "_average_model"),
        "_data_fetcher": lambda: sets(type(trainer().fit_loop), "_data_fetcher"),
        "_evaluation_loop": lambda: isinstance(Trainer._evaluation_loop, property),
        "_layer_sync": lambda: sets(DDPStrategy.__mro__[1], "_layer_sync"),
        "_logged_outputs": lambda: trainer().validate_loop._logged_outputs == [],
        "_logger_connector": lambda: isinstance(type(trainer()._logger_connector).should_update_logs, property),
        "_Loop": lambda: callable(_Loop.restarting.fset),  # type: ignore[attr-defined]
        "_monitor_candidates": lambda: takes(ModelCheckpoint._monitor_candidates, "trainer"),
        "_save_on_train_epoch_end": lambda: sets(ModelCheckpoint, "_save_on_train_epoch_end"),
        "_save_topk_checkpoint": lambda: takes(ModelCheckpoint._save_topk_checkpoint, "trainer", "monitor_candidates"),
        "_start_method": lambda: takes(Launcher.__init__, "start_method") and sets(DDPStrategy, "_start_method"),
        "_trainer": lambda: hasattr(LightningModule(), "_trainer"),
    },
    "timm": {"_manipulate": lambda: takes(group_with_matcher, "named_objects", "group_matcher", "reverse")},
    "torch": {
        "_BatchNorm": lambda: issubclass(torch.nn.BatchNorm2d, torch.nn.modules.batchnorm._BatchNorm),
        "_step_supports_amp_scaling": lambda: fused()._step_supports_amp_scaling,
    },
    "torchmetrics": {"_is_synced": lambda: hasattr(MetricOfNothing(), "_is_synced")},
}


@cache
def used() -> dict[str, set[str]]:
    """Private names that the source takes of something else, none of which it defines, and the files."""
    found: dict[str, set[str]] = {}
    own: set[str] = set(OF_PYTHON)
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        own |= set(_defined(tree))
        for name in _taken(tree):
            if name.startswith("_") and not name.startswith("__"):
                found.setdefault(name, set()).add(file.relative_to(SOURCE).as_posix())
    return {name: files for name, files in found.items() if name not in own}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _taken(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            if isinstance(node.args[1], ast.Constant):
                yield str(node.args[1].value)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("levelfield"):
            yield from (node.module or "").split(".")
            yield from (each.name for each in node.names)


def test_the_source_uses_no_other() -> None:
    assert set(used()) == {name for parts in PARTS.values() for name in parts}, "list it here, or find a public way"


@pytest.mark.parametrize(("library", "name"), [(library, name) for library, parts in PARTS.items() for name in parts])
def test_it_is_there(library: str, name: str) -> None:
    try:
        there = bool(PARTS[library][name]())
    except (AttributeError, TypeError):
        there = False
    assert there, f"{name} of {library} has changed: see {', '.join(sorted(used()[name]))}"


def test_the_project_stays_below_the_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(PARTS) == set(BOUNDS)
    for library, bound in BOUNDS.items():
        (line,) = (each for each in project["dependencies"] if each.partition(">")[0].partition("[")[0] == library)
        assert line.endswith(f",<{bound}"), line
