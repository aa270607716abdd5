"""The private parts of other libraries that the source uses, each with its reason: all there, no other used.

Where one changes, the failure says which file must find another way. `BOUNDS` are the versions that nobody has tried.
"""

import ast
import inspect
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from jsonargparse import _common, _typehints
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from timm.models._manipulate import group_with_matcher
from tiny_fit import REPOSITORY
from torchmetrics import Metric

import levelfield

SOURCE = Path(levelfield.__file__).parent
# The first version of a library in which its private parts may be others; pyproject.toml has the same bound.
BOUNDS = {"jsonargparse": "5", "lightning": "2.7", "torchmetrics": "2", "timm": "1.1", "torch": "3"}
# Of Python's own: named tuples, argparse, os, importlib.
OF_PYTHON = {"_asdict", "_fields", "_replace", "_exit", "_actions", "_option_string_actions"}


class Part(NamedTuple):
    """A private part: whose it is, why it is used, and whether it is still what the source takes it for."""

    library: str
    reason: str
    works: Callable[[], Any]


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


def source(module: Any) -> str:
    """A module's source: settings.py may have replaced its functions."""
    return inspect.getsource(module)


def sets(kind: type, name: str) -> bool:
    return f"self.{name}" in inspect.getsource(kind.__init__)


PARTS = {
    "_accelerator_connector": Part(
        "lightning",
        "the Trainer's own cluster environment, which has no public name",
        lambda: trainer()._accelerator_connector.cluster_environment,
    ),
    "_average_model": Part(
        "lightning",
        "a second fit of one callback must not go on with the average of the first",
        lambda: sets(WeightAveraging, "_average_model"),
    ),
    "_BatchNorm": Part(
        "torch",
        "the base of all batch norms",
        lambda: issubclass(torch.nn.BatchNorm2d, torch.nn.modules.batchnorm._BatchNorm),
    ),
    "_common": Part(
        "jsonargparse",
        "`--print_config` of what is not complete, and the options of `validate` beside a checkpoint",
        lambda: callable(_common.parser_context) and hasattr(_common, "lenient_check"),
    ),
    "_data_fetcher": Part(
        "lightning",
        "batches of the wrong epoch, which loader processes have opened, are requested again",
        lambda: sets(type(trainer().fit_loop), "_data_fetcher"),
    ),
    "_evaluation_loop": Part(
        "lightning", "each loader's output keeps its own scores", lambda: isinstance(Trainer._evaluation_loop, property)
    ),
    "_logged_outputs": Part(
        "lightning", "each loader's output keeps its own scores", lambda: trainer().validate_loop._logged_outputs == []
    ),
    "_is_synced": Part("torchmetrics", "rows are gathered once", lambda: hasattr(MetricOfNothing(), "_is_synced")),
    "_layer_sync": Part(
        "lightning", "timm's batch norm is converted by timm", lambda: sets(DDPStrategy.__mro__[1], "_layer_sync")
    ),
    "_logger_connector": Part(
        "lightning",
        "whether anybody hears what a step logs",
        lambda: isinstance(type(trainer()._logger_connector).should_update_logs, property),
    ),
    "_Loop": Part(
        "lightning",
        "a loop that goes on after a stop",
        lambda: callable(_Loop.restarting.fset),  # type: ignore[attr-defined]
    ),
    "_manipulate": Part(
        "timm",
        "the layer of each weight",
        lambda: takes(group_with_matcher, "named_objects", "group_matcher", "reverse"),
    ),
    "_monitor_candidates": Part(
        "lightning", "a checkpoint before the first step", lambda: takes(ModelCheckpoint._monitor_candidates, "trainer")
    ),
    "_save_on_train_epoch_end": Part(
        "lightning",
        "the default checkpoint keeps the best epoch",
        lambda: sets(ModelCheckpoint, "_save_on_train_epoch_end"),
    ),
    "_save_topk_checkpoint": Part(
        "lightning",
        "a checkpoint before the first step",
        lambda: takes(ModelCheckpoint._save_topk_checkpoint, "trainer", "monitor_candidates"),
    ),
    "_start_method": Part(
        "lightning",
        "a strategy that sends the training to other processes is refused",
        lambda: takes(_MultiProcessingLauncher.__init__, "start_method") and sets(DDPStrategy, "_start_method"),
    ),
    "_step_supports_amp_scaling": Part(
        "torch", "Lightning refuses to clip gradients of a fused optimizer", lambda: fused()._step_supports_amp_scaling
    ),
    "_trainer": Part(
        "lightning",
        "whether a learner has a Trainer: `trainer` raises without one",
        lambda: hasattr(LightningModule(), "_trainer"),
    ),
    "_typehints": Part(
        "jsonargparse",
        "another class keeps no arguments of the class that a signature has by default",
        lambda: "\ndef discard_init_args_on_class_path_change(parser_or_action, prev_val, value" in source(_typehints),
    ),
}


def fused() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)


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
    assert set(used()) == set(PARTS), "list it here with its reason, or find a public way"


@pytest.mark.parametrize("name", PARTS)
def test_it_is_there(name: str) -> None:
    try:
        there = bool(PARTS[name].works())
    except (AttributeError, TypeError):
        there = False
    assert there, f"{name} of {PARTS[name].library} has changed: see {', '.join(sorted(used()[name]))}"


def test_the_project_stays_below_the_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {part.library for part in PARTS.values()} == set(BOUNDS)
    for library, bound in BOUNDS.items():
        (line,) = (each for each in project["dependencies"] if each.partition(">")[0].partition("[")[0] == library)
        assert line.endswith(f",<{bound}"), line
