"""The private parts of jsonargparse, Lightning and torchmetrics that have no public way: all there, no other used.

Where one is gone, the line says which file must find another way.
"""

import ast
import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonargparse
import pytest
from jsonargparse import ArgumentParser, _common, _stubs_resolver, _typehints
from jsonargparse._parameter_resolvers import ParamData, get_signature_parameters
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loops.loop import _Loop
from timm.models._manipulate import group_with_matcher
from torchmetrics import Metric
from typeshed_client import Resolver

import levelfield

SOURCE = Path(levelfield.__file__).parent
# Of Python's own: named tuples, argparse, os; of torch's: the base of all batch norms.
NOT_OF_THEM = {"_asdict", "_fields", "_replace", "_exit", "_actions", "_version", "_BatchNorm"}


@cache
def trainer() -> Trainer:
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")


# Name to what gets it, and what it must still take or be.
PARTS: dict[str, Callable[[], Any]] = {
    "_accelerator_connector": lambda: trainer()._accelerator_connector.cluster_environment,
    "_apply_actions": lambda: takes(ArgumentParser._apply_actions, "cfg", "parent_key"),
    "_common": lambda: {"import_path_verdicts", "import_paths_enforced"} <= set(_common.parsing_settings),
    "_data_fetcher": lambda: hasattr(trainer().fit_loop, "_data_fetcher"),
    "_get": lambda: takes(LightningCLI._get, "config", "key"),
    "_is_synced": lambda: hasattr(MetricOfNothing(), "_is_synced"),
    "_logger_connector": lambda: isinstance(type(trainer()._logger_connector).should_update_logs, property),
    "_Loop": lambda: callable(_Loop.restarting.fset),  # type: ignore[attr-defined]
    "_manipulate": lambda: takes(group_with_matcher, "named_objects", "group_matcher", "reverse"),
    "_model_class": lambda: "self._model_class = " in inspect.getsource(LightningCLI.__init__),
    "_monitor_candidates": lambda: takes(ModelCheckpoint._monitor_candidates, "trainer"),
    "_parameter_resolvers": lambda: callable(get_signature_parameters) and inspect.isclass(ParamData),
    "_parse_ckpt_path": lambda: takes(LightningCLI._parse_ckpt_path),
    "_parser": lambda: takes(LightningCLI._parser, "subcommand"),
    "_prepare_subcommand_kwargs": lambda: takes(LightningCLI._prepare_subcommand_kwargs, "subcommand"),
    "_save_topk_checkpoint": lambda: takes(ModelCheckpoint._save_topk_checkpoint, "trainer", "monitor_candidates"),
    "_set_seed": lambda: takes(LightningCLI._set_seed),
    "_stubs_resolver": lambda: (
        hasattr(_stubs_resolver, "stubs_resolver") and issubclass(_stubs_resolver.StubsResolver, Resolver)
    ),
    "_trainer": lambda: hasattr(LightningModule(), "_trainer"),
    "_typehints": lambda: (
        callable(_typehints.discard_init_args_on_class_path_change) and callable(_typehints.union_subtype_sort_key)
    ),
}


class MetricOfNothing(Metric):
    def update(self) -> None:
        """Nothing is counted."""

    def compute(self) -> None:
        """Nothing is computed."""


def takes(function: Callable, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


def used() -> dict[str, set[str]]:
    """Private names that the source takes of something else, none of which it defines, and its files."""
    found: dict[str, set[str]] = {}
    own: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        note = partial(_note, found, file.relative_to(SOURCE).as_posix())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                own |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
                note(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                inherited = any(hasattr(each, node.name) for each in (LightningCLI, LightningArgumentParser))
                own |= set() if inherited else {node.name}
                if inherited:
                    note(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("levelfield"):
                for name in [*(node.module or "").split("."), *(each.name for each in node.names)]:
                    note(name)
    return {name: files for name, files in found.items() if name not in own | NOT_OF_THEM}


def _note(found: dict[str, set[str]], file: str, name: str) -> None:
    if name.startswith("_") and not name.startswith("__"):
        found.setdefault(name, set()).add(file)


def test_the_source_uses_no_other() -> None:
    assert set(used()) | {"_parser"} == set(PARTS), "list it here, or find a public way"


@pytest.mark.parametrize("name", PARTS)
def test_it_is_there(name: str) -> None:
    try:
        there = bool(PARTS[name]())
    except (AttributeError, TypeError):
        there = False
    files = ", ".join(sorted(used().get(name, {"training/build.py"})))
    assert there, (
        f"{name} of jsonargparse {jsonargparse.__version__}, Lightning or torchmetrics has changed: see {files}"
    )
