"""What a checkpoint may hold, which may come from anyone: plain values within limits, and names of allowed classes."""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from levelfield.core.configuration import Loader
from levelfield.core.errors import UserError
from levelfield.core.paths import is_place
from levelfield.core.shape import has_shape
from levelfield.data.dataset import MetricDataset
from levelfield.data.samplers import TrainingBatchSampler
from levelfield.data.transforms import Transforms
from levelfield.models.adapters import LoRA
from levelfield.models.text_files import architecture
from levelfield.training.settings import classes_named, parameters

SECTIONS = ("hyper_parameters", "datamodule_hyper_parameters", "levelfield")
# Text of a data set, which no code uses as a path.
CLASS_NAMES = ("levelfield.data.train_classes", "levelfield.data.val_classes")
MOST_VALUES, DEEPEST = 100_000, 32
MOST = 2**63 - 1
LIMITS = {
    **{"batch_size": 2**20, "eval_batch_size": 2**16, "num_folds": 10_000, "num_workers": 1024},
    **{"crop_size": 8192, "image_size": 8192, "resize": 8192},
    **{"embedding_size": 2**20, "num_classes": 2**31},
}
_TRUNKS = ("levelfield.models", "timm.models", "torchvision.models", "torch.nn")
_LOSSES = (
    *("levelfield.losses", "torch.nn", "timm.loss", "torchvision.ops"),
    *(f"pytorch_metric_learning.{name}" for name in ("losses", "distances", "reducers", "regularizers")),
)
_MINERS = ("levelfield.miners", "pytorch_metric_learning.miners", "pytorch_metric_learning.distances")

# Building a class of these libraries reads, writes or downloads nothing, because trunks get no weights.
PARTS = {
    "model.trunk": _TRUNKS,
    "model.learner": ("levelfield.training.learner",),
    "model.embedder": ("levelfield.models", "torch.nn"),
    "model.loss": _LOSSES,
    "model.miner": _MINERS,
    "model.regularizer": ("levelfield.regularizers",),
    "model.optimizer": (
        *("levelfield.training.optimization.adamw", "torch.optim", "timm.optim"),
        *("transformers.Adafactor", "transformers.optimization"),
    ),
    "model.lr_scheduler": ("torch.optim.lr_scheduler",),
    **{f"data.{name}": ("levelfield.data",) for name in ("dataset", "sampler", "datamodule", "transforms")},
}
_OTHER = (*_TRUNKS, *_LOSSES, *_MINERS, "levelfield.regularizers")  # in an argument that only your own learner has
BASES: dict[str, Any] = {
    "model": (nn.Module, Optimizer, LRScheduler, LoRA),
    "data": (MetricDataset, TrainingBatchSampler, Transforms, LightningDataModule),
}
TRUSTED_PACKAGES = frozenset(package.partition(".")[0] for packages in PARTS.values() for package in packages)
# Parts without networks: `weights` has another meaning there.
WITHOUT_NETWORKS = tuple(f"model.{name}" for name in ("loss", "miner", "regularizer", "optimizer", "lr_scheduler"))
SUFFIXES = ("csv", "tsv", "txt", "parquet", "gz", "json", "jsonl", "zip", "tar")  # a file's name is no import path


class Missing(UserError):  # noqa: N818 no error if the weights are enough
    """An allowed class is not installed here."""


# Names.


def checked(key: str, value: Any, trusted: Iterable[str], is_inside: bool = False) -> Any:
    """An argument of a checkpoint, whose classes and functions a parser may import; networks get no weights.

    Args:
        key: The argument, such as `model.loss`.
        trusted: Modules or classes that are allowed in addition to the known libraries.
        is_inside: Whether the value is an argument of the part at that key.

    Raises:
        UserError: A name is not allowed there, or is of another kind.
        Missing: A class is allowed but not installed.
    """
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(checked(key, each, trusted, is_inside) for each in value)
    if isinstance(value, str):
        if key in PARTS and not is_inside:
            return {"class_path": value} if inspect.isclass(named_class(key, value, trusted)) else value
        _check_text(key, value, trusted, is_inside)
    if not isinstance(value, dict):
        return value
    for name in (*value, *(value.get("init_args") or ()), *(value.get("dict_kwargs") or ())):
        if isinstance(name, str) and "." in name:  # the parser would reach into another argument
            raise UserError(f"it has the name {name[:80]!r} with a dot at '{key}'")
    if "class_path" not in value:
        return {name: checked(key, each, trusted, True) for name, each in value.items()}
    kind = named_class(key, value["class_path"], trusted, is_inside)
    given = {**(value.get("dict_kwargs") or {}), **(value.get("init_args") or {})}
    given = {name: checked(key, each, trusted, True) for name, each in _without_weights(key, kind, given).items()}
    further = {name: given.pop(name) for name in given.keys() - parameters(kind).keys()}  # for `**kwargs`
    return {"class_path": value["class_path"], "init_args": given, **({"dict_kwargs": further} if further else {})}


def named_class(key: str, name: Any, trusted: Iterable[str], is_inside: bool = False) -> Any:
    """The class or function with a name from a checkpoint: check the name, import it, check its kind; see `checked`.

    The parser checks the type of each argument.
    """
    section, _, part = key.partition(".")
    packages = PARTS.get(key, _OTHER if section == "model" else None)
    if packages is None:
        raise UserError(f"it names the class {str(name)[:80]!r} at '{key}', where no class is allowed")
    if not isinstance(name, str) or not all(word.isidentifier() for word in name.split(".")):
        raise UserError(f"its {part} {str(name)[:80]!r} is not a class")
    allowed = (*packages, *trusted, *(_MINERS if is_inside and key == "model.loss" else ()))
    if not _is_allowed(name, allowed):
        raise UserError(
            f"its {part} {name} is not among the classes that a checkpoint may name; if you trust its code, "
            f"allow it: --trust {name.rpartition('.')[0] or name}"
        )
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Missing(f"its {part} {name} is not installed here ({error})") from None
    is_trusted = _is_allowed(name, trusted)
    made = found
    if inspect.isfunction(found) and (is_trusted or name in packages):
        with suppress(NameError):
            made = get_type_hints(found).get("return")
    # A data set or transforms of yours may take any object.
    base = object if is_inside and is_trusted and section == "data" else BASES[section]
    if not (isinstance(made, type) and issubclass(made, base)):
        raise UserError(f"its {part} {name} is not a part of that kind")
    defined = f"{found.__module__}.{found.__qualname__}"
    if not _is_allowed(defined, allowed):
        raise UserError(f"its {part} {name} is {defined}; if you trust its code, allow it: --trust {found.__module__}")
    return found


def _check_text(key: str, text: str, trusted: Iterable[str], is_inside: bool) -> None:
    """Check what a parser would read in a text: it takes YAML, and the name of a class or function."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if isinstance(node, yaml.CollectionNode):
        checked(key, yaml.load(text, Loader), trusted, is_inside)
    for name in {text.strip(), str(node.value).strip()} if isinstance(node, yaml.ScalarNode) else {text.strip()}:
        module, _, last = name.rpartition(".")
        is_file = key.startswith("data.") and last in SUFFIXES
        is_activation = module == "torch.nn.functional" and callable(getattr(nn.functional, last, None))
        if not is_file and not is_activation and _is_importable(name):
            named_class(key, name, trusted, is_inside)


def _is_importable(name: str) -> bool:
    """Whether an existing module begins a name with dots, so that importing the name would run it."""
    root, _, rest = name.partition(".")
    try:
        return bool(root and rest) and (root in sys.modules or find_spec(root) is not None)
    except (ImportError, ValueError):
        return False


def _without_weights(key: str, kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """A network's arguments without weights, so that it downloads nothing; the checkpoint has the weights."""
    if not key.startswith("model.") or key in WITHOUT_NETWORKS:
        return given
    known = parameters(kind)
    if "weights" in known and not isinstance(given.get("weights"), dict):  # of the losses of a sum
        given = {**given, "weights": None}
    if kind.__module__.startswith("levelfield."):
        if "config" in known:
            given = {**given, "config": architecture(given.get("config"), "it")}
        for name, value in (given.get("arguments") or {}).items():  # of a model of timm
            numbers = value if isinstance(value, list) else [value]
            is_word = isinstance(value, str) and value.isidentifier()
            if not is_word and not all(part is None or isinstance(part, int | float) for part in numbers):
                raise UserError(f"it has the argument {str(name)[:80]!r} for its trunk, which may name a file")
    return given


def _is_allowed(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{each}.") for each in packages) or imported_by_user(name)


def imported_by_user(name: str) -> bool:
    """Whether a class is in a module of the user that the running program has already imported."""
    root, _, rest = name.partition(".")
    if root in TRUSTED_PACKAGES or root in sys.stdlib_module_names or not rest:
        return False
    module = sys.modules.get(name.rpartition(".")[0])
    if module is None:
        return False
    files = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return not any({"site-packages", "dist-packages"} & set(Path(file).parts) for file in files)


def user_packages(config: Any) -> set[str]:
    """The user's own packages in the configuration of learner and data."""
    sections = [(name, config.get(name)) for name in ("model", "data")] if isinstance(config, dict) else []
    parts = [(f"{name}.{key}", part) for name, section in sections if section for key, part in section.items()]
    named = [*classes_named([part for _, part in parts]), *(part for key, part in parts if key in PARTS)]
    return {name.partition(".")[0] for name in named if isinstance(name, str) and "." in name} - TRUSTED_PACKAGES


# Values.


def check_content(checkpoint: dict[str, Any], origin: object) -> None:
    """Check the content of a checkpoint except its tensors.

    Raises:
        UserError: a part of another type, a path, a number above its limit, or too many values.
    """
    described = {section: checkpoint[section] for section in SECTIONS if section in checkpoint}
    names = checkpoint.get("state_dict")
    if not has_shape(names, {str: object}) or not all(isinstance(part, dict) for part in described.values()):
        raise UserError(f"'{origin}' is not a levelfield checkpoint: give the best.ckpt of a fit")
    _check_values(described, origin, is_place)


def check_callbacks(states: Any, origin: object) -> None:
    """Check the stored states of callbacks, for a fit that continues: callbacks write and delete the files named there.

    Raises:
        UserError: an address, or a path with a part `..`.
    """
    _check_values({"callbacks": states}, origin, partial(is_place, absolute=False))


def _check_values(described: Any, origin: object, is_refused: Callable[[str], bool]) -> None:
    """Check all nested values, and each key of a mapping."""
    to_do, count = [("", described, 0)], 0
    while to_do:
        key, value, depth = to_do.pop()
        count += 1
        fault = ""
        if count > MOST_VALUES or depth > DEEPEST:
            fault = f"holds more than {MOST_VALUES:,} values, or one inside itself,"
        elif key in CLASS_NAMES:
            fault = "" if has_shape(value, [str]) else "has no list of names"
        elif isinstance(value, dict):
            to_do += [(key, name, depth + 1) for name in value]
            to_do += [(f"{key}.{name}".strip("."), part, depth + 1) for name, part in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            to_do += [(key, part, depth + 1) for part in value]
        elif isinstance(value, str) and is_refused(value):
            fault = f"has the path or address {value[:80]!r}, which a checkpoint may not have,"
        elif isinstance(value, int) and abs(value) > (most := LIMITS.get(key.rpartition(".")[2], MOST)):
            fault = f"has a number above {most:,}"
        if fault:
            raise UserError(f"'{origin}' {fault} at {key[:80]!r}: not loaded")
