"""The user's learner and datamodule, and plain LightningModules in fits and studies.

A plain module's `validation_step` returns the embeddings of its batch, or a dictionary with `embeddings`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor
from torch.utils.data import DataLoader

from levelfield.core.configuration import as_list
from levelfield.core.errors import UserError
from levelfield.core.import_path import import_named
from levelfield.data.datamodule import MetricDataModule
from levelfield.metrics.distributed import first_of_each
from levelfield.training.batches import Batch
from levelfield.training.callbacks.retrieval_validation import embeddings_of
from levelfield.training.checkpoint import complete_checkpoint
from levelfield.training.embed import EmbeddedSet
from levelfield.training.learner import MetricLearner
from levelfield.training.settings import parameters

# The key of a class in its section, the default class, and the required base class.
CLASSES: dict[str, tuple[str, type, type]] = {
    "model": ("learner", MetricLearner, LightningModule),
    "data": ("datamodule", MetricDataModule, MetricDataModule),
}


def user_class(section: str, settings: Any) -> type:
    """The class of `--model` or `--data`. A subclass of the default must take all arguments of the default.

    Raises:
        UserError: no such class, or a wrong one.
    """
    key, usual, base = CLASSES[section]
    named = settings.get(key) if isinstance(settings, Mapping) else None
    if named is None:
        return usual
    path, option = str(named), f"--{section} {named}"
    if "." not in path:
        raise UserError(f"{option}: give a class with its module (my_module.{path}), or a file with --config")
    kind = import_named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{option} is not a {base.__name__}: write a class that extends {usual.__name__}")
    missing = sorted(parameters(usual).keys() - parameters(kind).keys()) if issubclass(kind, usual) else []
    if missing:
        raise UserError(f"{option} does not take {', '.join(missing[:3])}, ...: pass **kwargs to super().__init__")
    return kind


def adapted(module: LightningModule) -> LightningModule:
    """The module. A plain one gets the usual callbacks and checkpoints, and tests and predicts by `validation_step`."""
    if isinstance(module, MetricLearner):
        return module
    kind, own, save = type(module), module.configure_callbacks, module.on_save_checkpoint

    def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
        save(checkpoint)
        complete_checkpoint(module, checkpoint)

    def predict_step(batch: Any, *numbers: int) -> dict[str, Tensor | None]:
        return {"embeddings": _embed(module, batch, *numbers), "index": Batch.read(batch).index}

    def forward(samples: Any) -> Tensor:
        nothing = torch.zeros(len(samples), dtype=torch.long, device=module.device)
        return _embed(module, (samples, nothing, nothing), 0, 0)

    vars(module).update(on_save_checkpoint=on_save_checkpoint, predict_step=predict_step)
    vars(module)["configure_callbacks"] = lambda: [*as_list(own()), *MetricLearner.configure_callbacks(module)]  # type: ignore[arg-type]
    if kind.test_step is LightningModule.test_step:
        vars(module)["test_step"] = module.validation_step
    if kind.forward is LightningModule.forward:  # Lightning needs one
        vars(module)["forward"] = forward
    return module


def _embed(module: LightningModule, *arguments: Any) -> Tensor:
    """The result of `validation_step`, without logging; as many of the arguments as it takes."""
    vars(module).update(dict.fromkeys(("log", "log_dict"), lambda *_, **__: None))
    try:
        return embeddings_of(module.validation_step(*arguments[: len(parameters(module.validation_step)) or None]))
    finally:
        del module.log, module.log_dict


def embed_by_steps(module: LightningModule, loader: DataLoader, trainer: Mapping[str, Any]) -> EmbeddedSet:
    """The result of `validation_step` for each batch of `loader`, with labels and positions, on the CPU.

    Args:
        trainer: the Trainer's `accelerator` and the like.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(_trainer: Trainer, _module: LightningModule, outputs: Any, batch: Any, *numbers: int) -> None:
        read = Batch.read(batch)
        assert read.index is not None  # the datamodule's loaders yield it
        parts.append((embeddings_of(outputs).float(), read.labels, read.index))

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    kept = LambdaCallback(on_validation_batch_end=keep)
    Trainer(**{**trainer, **quiet}, devices=1, callbacks=[kept]).validate(module, loader, verbose=False)
    embeddings, labels, index = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    first = first_of_each(index)
    return EmbeddedSet(embeddings[first], labels[first], index[first])
