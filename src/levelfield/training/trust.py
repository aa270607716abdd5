"""The classes that a checkpoint may name: those of known libraries, and those that the user trusts."""

import inspect
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset
from levelfield.data.samplers import TrainingBatchSampler
from levelfield.data.transforms import Transforms
from levelfield.models.adapters import LoRA
from levelfield.regularizers import Regularizer
from levelfield.training.settings import classes_named

_TRUNKS = ("levelfield.models", "timm.models", "torchvision.models", "torch.nn")
_LOSSES = (
    *("levelfield.losses", "torch.nn", "timm.loss", "torchvision.ops"),
    *(f"pytorch_metric_learning.{name}" for name in ("losses", "distances", "reducers", "regularizers")),
)
_MINERS = ("levelfield.miners", "pytorch_metric_learning.miners", "pytorch_metric_learning.distances")


class Part(NamedTuple):
    """A place for a class in a checkpoint.

    Attributes:
        title: Name for messages.
        base: Base of the class.
        packages: Allowed libraries.
        functions: Functions that are allowed instead of a class.
        inside: Further libraries for its arguments.
    """

    title: str
    base: type
    packages: tuple[str, ...]
    functions: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


# Building a class of these libraries reads, writes or downloads nothing, because trunks get no weights.
PARTS = {
    "model.trunk": Part("trunk", nn.Module, _TRUNKS),
    "model.learner": Part("learner", LightningModule, ("levelfield.training.learner",)),
    "model.embedder": Part("embedder", nn.Module, ("levelfield.models", "torch.nn")),
    "model.loss": Part("loss", nn.Module, _LOSSES, inside=_MINERS),
    "model.miner": Part("miner", nn.Module, _MINERS),
    "model.regularizer": Part("regularizer", Regularizer, ("levelfield.regularizers",)),
    "model.optimizer": Part(
        "optimizer",
        Optimizer,
        ("torch.optim", "timm.optim", "transformers.Adafactor", "transformers.optimization"),
        functions=("levelfield.training.optimization.adamw",),
    ),
    "model.lr_scheduler": Part("scheduler", LRScheduler, ("torch.optim.lr_scheduler",)),
    "data.dataset": Part("data set", MetricDataset, ("levelfield.data",)),
    "data.sampler": Part("sampler", TrainingBatchSampler, ("levelfield.data",)),
    "data.datamodule": Part("datamodule", LightningDataModule, ("levelfield.data",)),
    "data.transforms": Part("transforms", Transforms, ("levelfield.data",)),
}
# An argument that only your own learner has.
_OWN_PART = Part("part", nn.Module, (*_TRUNKS, *_LOSSES, *_MINERS, "levelfield.regularizers"))
TRUSTED_PACKAGES = frozenset(package.partition(".")[0] for part in PARTS.values() for package in part.packages)


class Missing(UserError):  # noqa: N818 no error if the weights are enough
    """An allowed class is not installed here."""


def named_class(place: str, name: Any, trusted: Iterable[str], is_inside: bool = False) -> Any:
    """The class or function with a name from a checkpoint: check the name, import it, check its kind.

    Args:
        place: The argument, such as `model.loss`.
        trusted: Modules or classes that are allowed in addition to the known libraries.
        is_inside: Whether it is an argument of the part at that place.

    Raises:
        UserError: The name is not allowed there, or is of another kind.
        Missing: It is allowed but not installed.
    """
    part = PARTS.get(place, _OWN_PART if place.startswith("model.") else None)
    if part is None:
        raise UserError(f"it names the class {str(name)[:80]!r} at '{place}', where no class is allowed")
    if not isinstance(name, str) or not all(word.isidentifier() for word in name.split(".")):
        raise UserError(f"its {part.title} {str(name)[:80]!r} is not a class")
    allowed = (*part.packages, *part.functions, *trusted, *(part.inside if is_inside else ()))
    if not _is_allowed(name, allowed):
        raise UserError(
            f"its {part.title} {name} is not among the classes that a checkpoint may name; if you trust its code, "
            f"allow it: --trust {name.rpartition('.')[0] or name}"
        )
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Missing(f"its {part.title} {name} is not installed here ({error})") from None
    if name in part.functions and not is_inside:
        return found
    is_trusted = _is_allowed(name, trusted)
    base: Any = part.base
    if is_inside and issubclass(part.base, nn.Module):
        base = (nn.Module, LoRA)
    elif is_inside and is_trusted:  # a data set or transforms may take any object of yours
        base = object
    made = _returned(found) if is_trusted else found
    if not (isinstance(made, type) and issubclass(made, base)):
        raise UserError(f"its {part.title} {name} is not a {part.title}")
    defined = f"{found.__module__}.{found.__qualname__}"
    if not _is_allowed(defined, allowed):
        raise UserError(
            f"its {part.title} {name} is {defined}; if you trust its code, allow it: --trust {found.__module__}"
        )
    return found


def _is_allowed(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{each}.") for each in packages) or own_and_imported(name)


def _returned(found: Any) -> Any:
    """The class, or the return annotation of a function; None without one."""
    if not inspect.isfunction(found):
        return found
    try:
        return get_type_hints(found).get("return")
    except NameError:
        return None


def own_and_imported(name: str) -> bool:
    """Whether a class is in a module of the user that the running program has already imported."""
    root, _, rest = name.partition(".")
    if root in TRUSTED_PACKAGES or root in sys.stdlib_module_names or not rest:
        return False
    module = sys.modules.get(name.rpartition(".")[0])
    if module is None:
        return False
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return not any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places)


def own_packages(config: Any) -> set[str]:
    """The user's own packages in the configuration of learner and data."""
    sections = [(name, config.get(name)) for name in ("model", "data")] if isinstance(config, dict) else []
    parts = [(f"{name}.{key}", part) for name, section in sections if section for key, part in section.items()]
    named = [*classes_named([part for _, part in parts]), *(part for place, part in parts if place in PARTS)]
    return {name.partition(".")[0] for name in named if isinstance(name, str) and "." in name} - TRUSTED_PACKAGES
