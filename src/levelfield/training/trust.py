"""Which classes a checkpoint may have built: known libraries', of the kind that a place asks for, and the caller's."""

import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from levelfield.core.configuration import Config, texts
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.samplers import TrainingBatchSampler
from levelfield.errors import UserError
from levelfield.models.adapters import LoRA
from levelfield.regularizers import Regularizer
from levelfield.training.settings import CLASS_PATH, classes_named

_LOSSES = (
    *("levelfield.losses", "torch.nn", "timm.loss", "torchvision.ops"),
    *(f"pytorch_metric_learning.{room}" for room in ("losses", "distances", "reducers", "regularizers")),
)
_MINERS = ("levelfield.miners", "pytorch_metric_learning.miners", "pytorch_metric_learning.distances")


class Part(NamedTuple):
    """A place for a class: what it is called, what the class extends, and the libraries that it may come from.

    `inside` are those that its arguments may come from too.
    """

    title: str
    base: type
    packages: tuple[str, ...]
    functions: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


# None of these libraries' classes reads, writes or fetches anything when it is made, given that trunks get no weights.
BUILT_PARTS = {
    "model.trunk": Part("trunk", nn.Module, ("levelfield.models", "timm.models", "torchvision.models", "torch.nn")),
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
}
TRUSTED_PACKAGES = frozenset(package.partition(".")[0] for part in BUILT_PARTS.values() for package in part.packages)


class Missing(UserError):  # noqa: N818 it is no error where the weights can do without
    """A class that may be used is not installed here."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: install it")
        self.reason = reason


class _Asked(NamedTuple):
    """A class that a checkpoint asks for; `inner` where it is an argument of another one."""

    place: str
    name: Any
    inner: bool = False


def check_names(section: str, arguments: dict[str, Any], trusted: Iterable[str], origin: str) -> None:
    """Looks at the name of every class that a checkpoint asks for; imports none.

    Raises:
        UserError: a class that nobody trusts, or one where none belongs.
    """
    for key, value in arguments.items():
        for place, name, inner in _asked(f"{section}.{key}", value):
            part = BUILT_PARTS.get(place)
            if part is None:
                raise UserError(f"'{origin}' names the class {name!r} at '{place}', where none belongs")
            if not isinstance(name, str) or not all(word.isidentifier() for word in name.split(".")):
                raise UserError(f"'{origin}' names {str(name)[:80]!r} as its {part.title}, which is no class")
            if not _may_be_used(name, part, trusted, inner):
                raise UserError(
                    f"'{origin}' asks for {name} as its {part.title}, which is none of the classes that a checkpoint "
                    f"may have built; if you trust its code, allow it: --trust {name.rpartition('.')[0] or name}"
                )


def check_kinds(place: str, value: Any, trusted: Iterable[str], origin: str) -> None:
    """Imports the classes of a part whose names `check_names` let pass, and looks at what they are.

    Raises:
        UserError: a class of another kind than the part's, or one that the named module only has from another.
        Missing: a class that is not installed here.
    """
    part = BUILT_PARTS[place]
    for _, name, inner in _asked(place, value):
        if name in part.functions and not inner:
            continue
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise Missing(f"'{origin}' asks for {name} as its {part.title}; there is none here ({error})") from None
        # What a part takes as an argument, say the loss in a memory of embeddings, is checked by its type too.
        base = (nn.Module, LoRA) if inner and issubclass(part.base, nn.Module) else part.base
        own = _within(name, trusted) or own_and_imported(name)
        made = _returned(found) if own and inspect.isfunction(found) else found
        if not (isinstance(made, type) and issubclass(made, base)):
            raise UserError(f"'{origin}' asks for {name} as its {part.title}, which it is not")
        defined = f"{found.__module__}.{found.__qualname__}"
        if not _may_be_used(defined, part, trusted, inner):
            raise UserError(
                f"'{origin}' asks for {name} as its {part.title}, which is {defined}; if you trust its code, allow it: "
                f"--trust {found.__module__}"
            )


def _returned(function: Any) -> Any:
    """What a function says that it returns; None if it says nothing."""
    try:
        return get_type_hints(function).get("return")
    except NameError:
        return None


def _asked(place: str, value: Any) -> Iterator[_Asked]:
    if place not in BUILT_PARTS:
        yield from (_Asked(place, name) for name in classes_named(value))
    elif isinstance(value, dict) and "class_path" in value:
        yield _Asked(place, value["class_path"])
        arguments = [argument for key, argument in value.items() if key != "class_path"]
        yield from (_Asked(place, name, inner=True) for name in classes_named(arguments))
    elif value is not None:
        yield _Asked(place, value)


def _may_be_used(name: str, part: Part, trusted: Iterable[str], inner: bool) -> bool:
    allowed = (*part.packages, *part.functions, *trusted, *(part.inside if inner else ()))
    return _within(name, allowed) or own_and_imported(name)


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def own_and_imported(name: str) -> bool:
    """Whether a class is of a module that is no installed one and that the running program has imported already."""
    root, _, rest = name.partition(".")
    if root in TRUSTED_PACKAGES or root in sys.stdlib_module_names or not rest:
        return False
    module = sys.modules.get(name.rpartition(".")[0])
    if module is None:
        return False
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return not any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places)


@contextmanager
def importing_only(section: str, arguments: dict[str, Any], trusted: Iterable[str]) -> Iterator[None]:
    """Has jsonargparse import nothing for a value but what `check_names` lets pass.

    It imports what a string names wherever an argument may be a class, and only it knows where that is.
    """
    from jsonargparse import _common  # its settings can be set, but not be taken back

    packages = {name for part in BUILT_PARTS.values() for name in (*part.packages, *part.functions)}
    names = {asked.name for key, value in arguments.items() for asked in _asked(f"{section}.{key}", value)}
    seen = {name for name in names if own_and_imported(name)}
    before = dict(_common.parsing_settings)
    _common.parsing_settings["import_path_verdicts"] = {"*": False, **dict.fromkeys({*packages, *trusted, *seen}, True)}
    _common.parsing_settings["import_paths_enforced"] = True
    try:
        yield
    finally:
        _common.parsing_settings.update(before)


def named_by_configuration(config: Config) -> set[str]:
    """The packages of the classes that files and options name: `--model.loss my_loss.MyLoss` trusts `my_loss`."""
    named = [text for key, text in texts(config) if key.startswith(("model.", "data."))]
    return {text.partition(".")[0] for text in named if CLASS_PATH.fullmatch(text)} - TRUSTED_PACKAGES


def own_packages(config: Any) -> set[str]:
    """The packages of the classes that a configuration of the user's own names for learner and data, libraries' aside:
    what those may give a checkpoint is said in `BUILT_PARTS`."""
    sections = [config.get(name) for name in ("model", "data")] if isinstance(config, dict) else []
    named = [name for place in BUILT_PARTS for section in sections for name in _named_at(place, section)]
    return {name.partition(".")[0] for name in named if "." in name} - TRUSTED_PACKAGES


def _named_at(place: str, section: Any) -> list[str]:
    value = section.get(place.partition(".")[2]) if isinstance(section, dict) else None
    return [asked.name for asked in _asked(place, value) if isinstance(asked.name, str)]
