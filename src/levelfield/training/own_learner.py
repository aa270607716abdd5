"""Import the user's LightningModule or datamodule of `--model`, `--data` or a checkpoint."""

from lightning.pytorch import LightningModule

from levelfield.core.errors import UserError
from levelfield.core.import_path import import_named
from levelfield.data.datamodule import MetricDataModule
from levelfield.training.learner import MetricLearner
from levelfield.training.make_loss import parameters

# The default class of a section, and the required base class.
CLASSES: dict[str, tuple[type, type]] = {
    "model": (MetricLearner, LightningModule),
    "data": (MetricDataModule, MetricDataModule),
}


def own_class(section: str, path: str | None) -> type:
    """The class of `--model` or `--data`. A subclass of the default must take all arguments of the default.

    Args:
        section: `model` or `data`.
        path: import path; None for the default.

    Raises:
        UserError: no such class, or a wrong one.
    """
    usual, base = CLASSES[section]
    if path is None:
        return usual
    option = f"--{section} {path}"
    if "." not in path:
        raise UserError(f"{option}: give a class with its module (my_module.{path}), or a file with --config")
    kind = import_named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{option} is not a {base.__name__}: write a class that extends {usual.__name__}")
    missing = sorted(parameters(usual).keys() - parameters(kind).keys()) if issubclass(kind, usual) else []
    if missing:
        raise UserError(
            f"{option} does not take {', '.join(missing[:3])}, ...: write __init__(self, ..., **kwargs) with "
            "super().__init__(**kwargs)"
        )
    return kind
