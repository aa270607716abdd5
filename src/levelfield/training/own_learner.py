"""A LightningModule or datamodule of the user's, by the name that `--model` or `--data` and a checkpoint give it."""

from typing import Any, TypeVar

from lightning.pytorch import LightningModule

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.runtime.import_path import import_named
from levelfield.training.make_loss import parameters

Learner = TypeVar("Learner", bound=LightningModule)


def learner_class(path: str | None, base: type[Learner]) -> type[Any]:
    """The class that `--model` names: any LightningModule, of which one that extends `base` takes all that it takes.

    Args:
        path: import path; None for `base` itself, `MetricLearner`.

    Raises:
        UserError: there is none, or another.
    """
    if path is None:
        return base
    option = f"--model {path}"
    kind = _named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, LightningModule)):
        raise UserError(f"{option} is no LightningModule: write a class that extends one, or levelfield.MetricLearner")
    if issubclass(kind, base):
        _refuse_missing_arguments(option, kind, base)
    return kind


def datamodule_class(path: str | None) -> type[MetricDataModule]:
    """The class that `--data` names: one that extends `MetricDataModule` and takes all that it takes.

    Args:
        path: import path; None for `MetricDataModule` itself.

    Raises:
        UserError: there is none, or another.
    """
    if path is None:
        return MetricDataModule
    option = f"--data {path}"
    kind = _named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, MetricDataModule)):
        raise UserError(f"{option} is no datamodule: write a class that extends levelfield.MetricDataModule")
    _refuse_missing_arguments(option, kind, MetricDataModule)
    return kind


def _named(path: str, option: str) -> Any:
    if "." not in path:
        raise UserError(f"{option}: give the class with its module, my_module.{path}")
    return import_named(path, option)


def _refuse_missing_arguments(option: str, kind: type, base: type) -> None:
    if missing := sorted(parameters(base).keys() - parameters(kind).keys()):
        raise UserError(
            f"{option} does not take {', '.join(missing[:3])}, ...: write __init__(self, ..., **kwargs) with "
            "super().__init__(**kwargs)"
        )
