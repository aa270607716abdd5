"""Checkpoints: tensors, import paths and plain values, and how to build a learner from them."""

import inspect
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn

from levelfield.core.configuration import init_args
from levelfield.core.errors import UserError, nearest
from levelfield.core.paths import strip_paths
from levelfield.data.datamodule import MetricDataModule
from levelfield.training import settings
from levelfield.training.frozen_trunk import KEY, trunk_hash, with_trunk
from levelfield.training.import_paths import class_named, is_buildable, plain_value
from levelfield.training.trust import Missing, check_content, checked, named_class
from levelfield.training.weight_averaging import save_average

# Parts that embedding does not need.
NOT_NEEDED = ("loss", "miner", "regularizer", "optimizer", "lr_scheduler")
USUAL_LEARNER = "levelfield.training.learner.MetricLearner"  # which imports this file
USUAL_DATA = "levelfield.data.datamodule.MetricDataModule"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint without running code.

    Raises:
        UserError: no such file, unreadable, not written by levelfield, or with content that is not allowed.
    """
    if not Path(path).is_file():
        raise UserError(f"no checkpoint '{path}': give the best.ckpt of a fit with --ckpt_path")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"cannot read checkpoint '{path}' ({type(error).__name__}): is the file complete?") from error
    if not isinstance(checkpoint, dict) or "levelfield" not in checkpoint:
        raise UserError(f"'{path}' is not a levelfield checkpoint: give the best.ckpt of a fit")
    check_content(checkpoint, path)
    return checkpoint


def complete_checkpoint(learner: Any, checkpoint: dict[str, Any]) -> None:
    """Add the averaged weights, data, classes and the origin of the trunk's weights to the checkpoint of any module.

    Local folders are removed, so a checkpoint does not depend on them.
    """
    save_average(learner, checkpoint)
    for section in {"hyper_parameters", "datamodule_hyper_parameters"} & checkpoint.keys():
        checkpoint[section] = strip_paths(plain_value(dict(checkpoint[section])))
    checkpoint.get("datamodule_hyper_parameters", {}).pop("num_workers", None)
    datamodule, trunk = getattr(learner._trainer, "datamodule", None), getattr(learner, "trunk", None)
    checkpoint["levelfield"] = {
        "num_classes": getattr(learner, "num_classes", None),
        "data": datamodule.identity() if isinstance(datamodule, MetricDataModule) else None,
        "trunk_args": strip_paths(dict(getattr(trunk, "checkpoint_args", {}))),
        "weights": strip_paths(getattr(trunk, "weights_origin", None)),
        "licence": strip_paths(getattr(trunk, "licence", None)),
    }
    if trunk is not None and (getattr(learner, "freeze_trunk", False) or getattr(trunk, "adapter", None) is not None):
        checkpoint["levelfield"][KEY] = trunk_hash(trunk)


def has_frozen_trunk_of(learner: Any, path: str | Path) -> bool:
    """Whether a learner's trunk is frozen and equal to the trunk of a checkpoint."""
    return learner.freeze_trunk and read_checkpoint(path)["levelfield"].get(KEY) == trunk_hash(learner.trunk)


def load_learner(
    kind: type[LightningModule] | None,
    origin: Path | str,
    map_location: torch.device | str | None = None,
    trust: Iterable[str] = (),
    parts: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The learner of a checkpoint, in eval mode; see `MetricLearner.load_from_checkpoint`.

    Args:
        kind: The class of the learner; None takes the one in the checkpoint.
    """
    checkpoint, trusted = read_checkpoint(origin), tuple(trust)
    with one_line(origin):
        stored = dict(checkpoint["hyper_parameters"])
        kind = kind or named_class("model.learner", stored.get("learner", USUAL_LEARNER), trusted)
        arguments, left_out = _arguments(checkpoint, kind, parts, trusted)
        made = {**built(kind, "model", arguments, trusted), **parts}
        if "loss" in left_out:
            made["loss"] = nn.Identity()
        learner: Any = kind(**made)
        learner.save_hyperparameters({**stored, **{name: plain_value(part) for name, part in parts.items()}})
        given = plain_value(parts["loss"]) if "loss" in parts else stored.get("loss")
        other_loss = "loss" in left_out or class_named(given) != class_named(stored.get("loss"))
        own = {**checkpoint["levelfield"], **({"num_classes": None} if other_loss else {})}
        learner.on_load_checkpoint({**checkpoint, "levelfield": own})
    if "loss" in left_out:
        why = left_out.pop("loss")
        warnings.warn(f"'{origin}' is loaded for embedding, without its loss: {why}", stacklevel=3)
    load_weights(learner, with_trunk(checkpoint, origin, parts.get("trunk")), origin, with_loss=not other_loss)
    learner.checkpoint_path, learner._left_out = Path(origin), left_out
    learner._trains_when_fitted = [module for module in learner.modules() if module.training]
    return learner.eval().to(map_location)


def load_weights(learner: Any, checkpoint: dict[str, Any], origin: object, with_loss: bool) -> None:
    """Load the tensors of a checkpoint, or all except those of the loss.

    Raises:
        UserError: the learner has others.
    """
    state = checkpoint["state_dict"]
    if not with_loss:  # the state of the learner would have its tokenizer, which may be read by its name
        loss = getattr(learner, "loss", None)
        state = {name: tensor for name, tensor in state.items() if not name.startswith("loss.")}
        state |= loss.state_dict(prefix="loss.") if isinstance(loss, nn.Module) else {}
    try:
        learner.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"'{origin}' has weights of another architecture: {line}") from error


def _arguments(
    checkpoint: dict[str, Any], kind: type, parts: Mapping[str, Any], trusted: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The stored arguments that the class `kind` takes and that are not among `parts`, and why others are left out."""
    taken = inspect.signature(kind).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    stored = dict(checkpoint["hyper_parameters"])
    known = {*settings.parameters(kind), *(stored if takes_all else ())}
    if unknown := sorted(parts.keys() - known):
        raise UserError(f"{kind.__name__} takes no argument '{unknown[0]}'{nearest(unknown[0], known, '')}")
    if of_trunk := checkpoint["levelfield"].get("trunk_args"):
        stored["trunk"] = {**stored["trunk"], "init_args": {**init_args(stored["trunk"]), **of_trunk}}
    found, left_out = dict[str, Any](), dict[str, str]()
    for name in stored.keys() - {*parts, "learner"}:
        if not (takes_all or name in taken):
            continue
        try:
            if not is_buildable(stored[name]):
                again = f"{kind.__name__}.load_from_checkpoint(..., {name}={name})"
                raise Missing(f"its {name} was an object in Python: give it again, {again}")
            checked(f"model.{name}", stored[name], trusted)
            found[name] = stored[name]
        except Missing as reason:
            if name not in NOT_NEEDED:
                raise
            left_out[name] = str(reason)
    return found, left_out


def built(kind: type, section: str, values: Mapping[str, Any], trusted: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a learner or datamodule from plain values of a checkpoint.

    Names are checked (`checked`), then the parser of the settings builds the values.

    Raises:
        UserError: A class that is not allowed, or an invalid value.
    """
    checked(section, dict.fromkeys(values), trusted)  # the names
    given = {name: checked(f"{section}.{name}", value, trusted) for name, value in values.items()}
    made = dict[str, Any]()
    if kind is not _WithLoss and not init_args(given.get("loss")).keys().isdisjoint(settings.SUPPLIED):
        made = built(_WithLoss, section, {"loss": given.pop("loss")}, trusted)
    allowed = {pkgutil.resolve_name(path) for path in settings.classes_named(given)}
    parser = _parser(kind, section, instantiate=False)
    parsed = settings.parse(parser, {section: given}, complete=False, in_any=True)
    for path in settings.classes_named([parsed[section].get(name) for name in given]):
        kind_here = pkgutil.resolve_name(path)
        if kind_here not in allowed and not is_dataclass(kind_here):  # a parser finds classes by short names, too
            raise UserError(f"it names the class {path} without its module")
    with settings.restricted(in_any=True):  # all classes are checked
        found = settings.instantiate(parser, parsed)[section]
    return {**made, **{name: found[name] for name in given}}


_parser = cache(settings.class_parser)  # making one takes as long as some training steps


class _WithLoss:
    """Its parser builds a loss that has its number of classes; that of a learner waits for the number."""

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss


def data_arguments(checkpoint: dict[str, Any], origin: Path | str, trust: Iterable[str] = ()) -> dict[str, Any]:
    """The arguments of a checkpoint's datamodule as plain values, with checked classes.

    Raises:
        UserError: A class that is not allowed.
    """
    trusted = tuple(trust)
    with one_line(origin):
        arguments = dict(checkpoint["datamodule_hyper_parameters"])
        checked("data.num_workers", arguments.pop("num_workers", None), trusted)  # depends on the machine
        named_class("data.dataset", arguments["dataset"]["class_path"], trusted)
    return arguments


def load_data(arguments: dict[str, Any], origin: Path | str, trust: Iterable[str] = ()) -> Any:
    """The datamodule of a checkpoint, from `data_arguments` with the folder of the data set on this machine.

    Raises:
        UserError: A class that is not allowed, or an invalid argument.
    """
    trusted, given = tuple(trust), dict(arguments)
    with one_line(origin):
        kind = named_class("data.datamodule", given.pop("datamodule", USUAL_DATA), trusted)
        return kind(**built(kind, "data", given, trusted))


@contextmanager
def one_line(origin: object) -> Iterator[None]:
    """Turn any error of a damaged or foreign checkpoint into one line that names the file."""
    try:
        yield
    except UserError as error:
        raise error if str(origin) in str(error) else UserError(f"'{origin}': {error}") from error
    except Exception as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(f"'{origin}' is no learner of this levelfield ({type(error).__name__}: {problem})") from error
