"""Checkpoints that load alone: import paths and plain values, and how a learner comes out of them."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from levelfield.building import instantiate as build
from levelfield.building import restrict_parser
from levelfield.errors import UserError

if TYPE_CHECKING:
    from levelfield.learner import MetricLearner


def read_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint's content, read without running code.

    Raises:
        UserError: no such file, unreadable, or not written by levelfield.
    """
    if not Path(path).is_file():
        raise UserError(f"no checkpoint '{path}': give the best.ckpt of a fit with --ckpt_path")
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        raise UserError(f"cannot read checkpoint '{path}' ({type(error).__name__}): is it a complete file?") from error
    if not isinstance(checkpoint, dict) or "levelfield" not in checkpoint:
        raise UserError(f"'{path}' is not a levelfield checkpoint: give the best.ckpt of a fit")
    return checkpoint


def loadable_config(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The learner's arguments in a checkpoint: trunk without pretrained weights, None for what cannot be imported."""
    config = dict(checkpoint["hyper_parameters"])
    config["trunk"] = _without_weights(config["trunk"], checkpoint["levelfield"].get("trunk_args", {}))
    for name in ("loss", "miner"):
        if not _importable(config.get(name)):
            config[name] = None
    return config


def instantiate(config: dict[str, Any]) -> MetricLearner:
    """The learner of a configuration; without a loss where it has none."""
    from jsonargparse import ArgumentParser

    from levelfield.learner import MetricLearner

    if config["loss"] is None:
        config = {**config, "loss": {"class_path": "torch.nn.Identity"}}
    restrict_parser()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MetricLearner, "model", fail_untyped=False)
    learner = build(parser, parser.parse_object({"model": config})).model
    learner.save_hyperparameters(config)
    return learner


def import_spec(thing: Any) -> Any:
    """A module, class or partial as import path and plain arguments; None for an object that does not know its own."""
    if isinstance(thing, nn.Module):
        arguments = getattr(thing, "init_args", None)
        return None if arguments is None else {"class_path": _import_path(type(thing)), "init_args": arguments}
    if isinstance(thing, partial):
        return {"class_path": _import_path(thing.func), "init_args": dict(thing.keywords)}
    return {"class_path": _import_path(thing)} if inspect.isclass(thing) else None


def _import_path(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _importable(spec: dict[str, Any] | None) -> bool:
    if spec is None:
        return False
    module, _, name = spec["class_path"].rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def _without_weights(spec: dict[str, Any], trunk_args: dict[str, Any]) -> dict[str, Any]:
    arguments = {**spec.get("init_args", {}), **trunk_args}
    if "weights" in arguments:
        arguments["weights"] = None
    return {**spec, "init_args": arguments}
