"""A LightningModule or datamodule of the user's, by the name that `--model` or `--data` and a checkpoint give it."""

from lightning.pytorch import LightningModule

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.runtime.import_path import import_named
from levelfield.training.learner import MetricLearner
from levelfield.training.make_loss import parameters

# What a section's class is where none is named, and what a named one must extend.
CLASSES: dict[str, tuple[type, type]] = {
    "model": (MetricLearner, LightningModule),
    "data": (MetricDataModule, MetricDataModule),
}


def own_class(section: str, path: str | None) -> type:
    """The class that `--model` or `--data` names. One that extends the usual class takes all that this one takes.

    Args:
        section: `model` or `data`.
        path: import path; None for the usual class.

    Raises:
        UserError: there is none, or another.
    """
    usual, base = CLASSES[section]
    if path is None:
        return usual
    option = f"--{section} {path}"
    if "." not in path:
        raise UserError(f"{option}: give the class with its module, my_module.{path}")
    kind = import_named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{option} is no {base.__name__}: write a class that extends {usual.__name__}")
    missing = sorted(parameters(usual).keys() - parameters(kind).keys()) if issubclass(kind, usual) else []
    if missing:
        raise UserError(
            f"{option} does not take {', '.join(missing[:3])}, ...: write __init__(self, ..., **kwargs) with "
            "super().__init__(**kwargs)"
        )
    return kind
