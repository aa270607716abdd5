"""Checkpoints that load alone: import paths and plain values, and how a learner comes out of them."""

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule

from levelfield.errors import UserError
from levelfield.models.text_files import architecture
from levelfield.models.trunks import check_timm_arguments
from levelfield.storage.without_places import without_places
from levelfield.training.checkpoint_content import check_content
from levelfield.training.frozen_trunk import KEY, trunk_hash, with_trunk
from levelfield.training.own_learner import learner_class
from levelfield.training.settings import class_parser, instantiate, plain, restricted
from levelfield.training.trust import BUILT_PARTS, Missing, check_kinds, check_names, importing_only

# What stands for the parts that the caller of `load_from_checkpoint` has.
STAND_INS = {
    "trunk": {"class_path": "torch.nn.Identity"},
    "embedder": {"class_path": "torch.nn.Linear"},
    "loss": {"class_path": "torch.nn.Identity"},
    "miner": None,
    "regularizer": None,
}


def read_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint's content, read without running code.

    Raises:
        UserError: no such file, unreadable, not written by levelfield, or a content that is refused.
    """
    if not Path(path).is_file():
        raise UserError(f"no checkpoint '{path}': give the best.ckpt of a fit with --ckpt_path")
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        raise UserError(f"cannot read checkpoint '{path}' ({type(error).__name__}): is it a complete file?") from error
    if not isinstance(checkpoint, dict) or "levelfield" not in checkpoint:
        raise UserError(f"'{path}' is not a levelfield checkpoint: give the best.ckpt of a fit")
    check_content(checkpoint, path)
    return checkpoint


def add_own_part(learner: Any, checkpoint: dict[str, Any]) -> None:
    """Adds to what Lightning stores: data, classes, and where the trunk's weights came from.

    A checkpoint is the same wherever the data are and however many processes load them: the rest loses each place.
    """
    for section in ("hyper_parameters", "datamodule_hyper_parameters"):
        if section in checkpoint:
            checkpoint[section] = without_places(checkpoint[section])
    datamodule = getattr(learner._trainer, "datamodule", None)
    data = datamodule.identity() if datamodule is not None and hasattr(datamodule, "identity") else None
    if data is not None:
        checkpoint.get("datamodule_hyper_parameters", {}).pop("num_workers", None)
    checkpoint["levelfield"] = {
        "num_classes": learner.num_classes,
        "data": data,
        "trunk_args": without_places(dict(learner.trunk.checkpoint_args)),
        "weights": without_places(learner.trunk.weights_origin),
        "licence": without_places(learner.trunk.licence),
        **({KEY: trunk_hash(learner.trunk)} if learner.freeze_trunk or learner.trunk.adapter is not None else {}),
    }


class LearnerConfig(NamedTuple):
    """What a checkpoint says of its learner, looked at.

    Attributes:
        kind: the learner's class.
        arguments: the learner's, as plain values: a trunk without pretrained weights, and `torch.nn.Identity` for a
            loss that is left out.
        missing: why the loss is left out; None where it is there.
    """

    kind: type[LightningModule]
    arguments: dict[str, Any]
    missing: str | None


def has_frozen_trunk_of(learner: Any, path: str | Path) -> bool:
    """Whether a learner's trunk is frozen and the one that a checkpoint was trained on."""
    return learner.freeze_trunk and read_checkpoint(path)["levelfield"].get(KEY) == trunk_hash(learner.trunk)


def learner_config(
    checkpoint: dict[str, Any],
    origin: Path | str,
    kind_of: Callable[[str | None], type[LightningModule]],
    trust: Iterable[str] = (),
) -> LearnerConfig:
    """The arguments that a checkpoint's learner is rebuilt from. Only trusted modules are imported; nothing is built.

    A loss, miner or regularizer that was an object, or that is of a library which is not installed here, is left out.

    Args:
        kind_of: the learner's class, given the one that the checkpoint names.
        trust: modules, or classes, that may be used beside the known libraries'.

    Raises:
        UserError: a class that nobody trusts or that is of another kind than its place asks for, or a damaged
            checkpoint.
    """
    trusted, origin, missing = tuple(trust), str(origin), None
    with _described(origin):
        arguments = dict(checkpoint["hyper_parameters"])
        trunk, of_trunk = arguments["trunk"], checkpoint["levelfield"].get("trunk_args", {})
        arguments["trunk"] = {**trunk, "init_args": {**trunk.get("init_args", {}), **of_trunk}}
        if not _has_name(arguments.get("loss")):
            arguments["loss"], missing = None, "it was an object"
        for key in ("miner", "regularizer"):
            if not _has_name(arguments.get(key)):
                arguments.pop(key, None)
        check_names("model", arguments, trusted, origin)
        for place in (place for place in BUILT_PARTS if place.startswith("model.")):
            key = place.removeprefix("model.")
            try:
                check_kinds(place, arguments.get(key), trusted, origin)
            except Missing as absent:
                if key not in ("loss", "miner", "regularizer"):
                    raise
                arguments[key] = None
                if key == "loss":
                    missing = absent.reason
        if arguments["loss"] is None:
            arguments["loss"] = {"class_path": "torch.nn.Identity"}
        named = arguments.pop("learner", None)
        kind = kind_of(named)
        resolved = _resolved("model", kind, arguments, trusted, origin)
        for key in ("trunk", "embedder"):
            resolved[key] = _without_files(resolved[key], origin)
        return LearnerConfig(kind, {**resolved, **({"learner": named} if named else {})}, missing)


def data_config(checkpoint: dict[str, Any], origin: Path | str, trust: Iterable[str] = ()) -> dict[str, Any]:
    """The arguments of a checkpoint's datamodule, as plain values; see `learner_config`.

    Raises:
        UserError: a class that nobody trusts or that is no data set, or a checkpoint without our datamodule.
    """
    from levelfield.data.datamodule import MetricDataModule

    trusted, origin = tuple(trust), str(origin)
    with _described(origin):
        arguments = dict(checkpoint["datamodule_hyper_parameters"])
        check_names("data", arguments, trusted, origin)
        arguments.pop("num_workers", None)  # this machine's
        for part in ("dataset", "sampler"):
            check_kinds(f"data.{part}", arguments.get(part), trusted, origin)
        return _resolved("data", MetricDataModule, arguments, trusted, origin)


def with_parts_given(checkpoint: dict[str, Any], parts: Collection[str], origin: Path | str) -> dict[str, Any]:
    """The checkpoint with stand-ins for the parts that the caller has, which its configuration then need not name.

    Raises:
        UserError: a part that there is none of, or one that the checkpoint cannot name and nobody gives.
    """
    for name in parts:
        if name not in STAND_INS:
            raise UserError(f"'{origin}' takes {', '.join(STAND_INS)} from its caller, no '{name}'")
    arguments = {**checkpoint.get("hyper_parameters", {}), **{name: STAND_INS[name] for name in parts}}
    for name in ("trunk", "embedder"):
        if name in arguments and arguments[name] is None:
            raise UserError(
                f"'{origin}' was trained with its {name} an object of Python: give it again, "
                f"MetricLearner.load_from_checkpoint(..., {name}={name})"
            )
    own = {**checkpoint["levelfield"], **({"trunk_args": {}} if "trunk" in parts else {})}
    return {**checkpoint, "hyper_parameters": arguments, "levelfield": own}


def build_learner(
    config: LearnerConfig, origin: Path | str, parts: Mapping[str, Any] = MappingProxyType({})
) -> LightningModule:
    """The learner of a configuration, with random weights.

    Args:
        parts: objects in place of what the checkpoint says.

    Raises:
        UserError: a class of the checkpoint does not take what the checkpoint has for it.
    """
    parser = class_parser(config.kind, "model")
    with _described(str(origin)), restricted():
        arguments = {**copy.deepcopy(config.arguments), **parts}
        arguments.pop("learner", None)
        learner = instantiate(parser, parser.parse_object({"model": arguments})).model
    learner.save_hyperparameters(config.arguments)
    return learner


def load_learner(
    kind: type[LightningModule],
    origin: Path | str,
    map_location: Any,
    strict: bool,
    trust: Iterable[str],
    parts: Mapping[str, Any],
) -> LightningModule:
    """The learner of a checkpoint, in eval mode: what `MetricLearner.load_from_checkpoint` says.

    Args:
        kind: the learner's class; `MetricLearner` for the one that the checkpoint names.
    """
    from levelfield.training.learner import MetricLearner

    def kind_of(named: str | None) -> type[LightningModule]:
        return learner_class(named, MetricLearner) if kind is MetricLearner else kind

    checkpoint = with_parts_given(read_checkpoint(origin, map_location), parts, origin)
    config = learner_config(checkpoint, origin, kind_of, trust)
    state, whole = checkpoint["state_dict"], config.missing is None
    if not whole:
        warnings.warn(
            f"'{origin}' is loaded for embedding, without its loss: {config.missing}", UserWarning, stacklevel=3
        )
        state = {name: tensor for name, tensor in state.items() if not name.startswith("loss.")}
    learner: Any = build_learner(config, origin, parts)
    with _described(str(origin)):
        learner.on_load_checkpoint(checkpoint if whole else {})
    given = learner.trunk if "trunk" in parts else None
    state = with_trunk({**checkpoint, "state_dict": state}, origin, map_location, given)["state_dict"]
    try:
        missing = learner.load_state_dict(state, strict=strict).missing_keys
    except (RuntimeError, TypeError, AttributeError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"'{origin}' is of another architecture than its configuration says: {line}") from error
    # Without its tokenizer a text trunk would look where its name leads.
    networks = {"trunk", "embedder"} - set(parts)
    if any(key.partition(".")[0] in networks and key.endswith("._extra_state") for key in missing):
        raise UserError(f"'{origin}' does not hold the tokenizer of its trunk: it is not loaded")
    learner.checkpoint_path = Path(origin)
    learner._trains_when_fitted = [module for module in learner.modules() if module.training]
    return learner.eval()


def _has_name(spec: Any) -> bool:
    """Whether a part is described by a name; a class within a function has none by which it can be imported."""
    return spec is not None and "<locals>" not in str(spec.get("class_path") if isinstance(spec, dict) else spec)


def _without_files(value: Any, origin: str) -> Any:
    """A part as a checkpoint may build it: it and the networks within it without weights, and without anything that
    they would have to fetch."""
    if isinstance(value, list | tuple):
        return [_without_files(part, origin) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_files(part, origin) for key, part in value.items()}
    if "class_path" not in kept:
        return kept
    arguments = {**kept.get("dict_kwargs", {}), **kept.get("init_args", {})}
    if "weights" in arguments:
        arguments["weights"] = None
    if kept["class_path"].startswith("levelfield."):
        if "config" in arguments:
            arguments["config"] = architecture(arguments["config"], f"'{origin}'")
        if arguments.get("arguments") is not None:
            check_timm_arguments(arguments["arguments"], f"'{origin}'")
    return {"class_path": kept["class_path"], "init_args": arguments}


def _resolved(
    section: str, kind: type, arguments: dict[str, Any], trusted: tuple[str, ...], origin: str
) -> dict[str, Any]:
    """The arguments with all defaults and full names, each class looked at again: a string may have named one."""
    parser = class_parser(kind, section)
    with restricted(), importing_only(section, arguments, trusted):
        found = plain(parser, parser.parse_object({section: copy.deepcopy(arguments)}))[section]
    check_names(section, found, trusted, origin)
    for place in BUILT_PARTS:
        if place.startswith(f"{section}."):
            check_kinds(place, found.get(place.partition(".")[2]), trusted, origin)
    return found


@contextmanager
def _described(origin: str) -> Iterator[None]:
    """Turns whatever goes wrong with a damaged or a foreign checkpoint into one line."""
    try:
        yield
    except UserError as error:
        raise error if origin in str(error) else UserError(f"'{origin}': {error}") from error
    except Exception as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(
            f"'{origin}' describes no learner of this version of levelfield ({type(error).__name__}: {problem})"
        ) from error
