"""`validate`, `test` and `predict`: everything comes from the checkpoint, and what contradicts it is refused."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import save_file

from levelfield.checkpoint import loadable_config, read_checkpoint
from levelfield.contradictions import refuse_other_data, refuse_other_folds, refuse_other_model
from levelfield.errors import UserError
from levelfield.learner import MetricLearner, gather_rows
from levelfield.run_folder import is_first_process
from levelfield.training import TrainingCLI


class EvaluationCLI(TrainingCLI):
    """The command line of a checkpoint that was trained before.

    Args:
        args: command-line words, `--ckpt_path FILE` among them.

    Raises:
        UserError: no checkpoint, or options that contradict it.
    """

    def __init__(self, args: list[str]) -> None:
        self.checkpoint_path = _checkpoint_path(args)
        self.checkpoint = read_checkpoint(self.checkpoint_path)
        config = {"model": loadable_config(self.checkpoint), "data": self.checkpoint["datamodule_hyper_parameters"]}
        if config["model"]["loss"] is None:
            config["model"]["loss"] = {"class_path": "torch.nn.Identity"}
        self._expected = config
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoint.yaml"
            file.write_text(yaml.safe_dump(config))
            super().__init__(args=[args[0], "--config", str(file), *args[1:]])

    def before_instantiate_classes(self) -> None:
        given = self.plain_config()
        refuse_other_model(self._expected["model"], given["model"], self.checkpoint_path)
        refuse_other_folds(self._expected["data"], given["data"], self.checkpoint_path)

    def after_instantiate_classes(self) -> None:
        self.model = MetricLearner.load_from_checkpoint(self.checkpoint_path)
        refuse_other_data(self.checkpoint["levelfield"]["data"], self.datamodule.identity(), self.checkpoint_path)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        kwargs["ckpt_path"] = None  # its weights are in the model already
        return kwargs

    def test(self, **kwargs: Any) -> None:
        """Opens the test classes, which the ledger beside the checkpoint records before any test label is used."""
        from levelfield.storage.ledger import Ledger

        ledger = Ledger(self.checkpoint_path.parent / "ledger.jsonl")
        configuration = hashlib.sha256(yaml.safe_dump(self._expected).encode()).hexdigest()
        checkpoints = {self.checkpoint_path.name: hashlib.sha256(self.checkpoint_path.read_bytes()).hexdigest()}
        if not is_first_process():
            self.trainer.test(**kwargs)
            return
        opening = ledger.open(configuration, checkpoints, self.config.test.reopen_test)
        self.trainer.test(**kwargs)
        ledger.finish(opening)
        print(f"opening {opening} of the test classes, recorded in {ledger.path}")

    def predict(self, **kwargs: Any) -> None:
        """Embeds every sample of the data set, without a label, into `embeddings.safetensors` beside the checkpoint."""
        path = self.checkpoint_path.parent / "embeddings.safetensors"
        self.trainer.callbacks.append(EmbeddingWriter(path))  # type: ignore[attr-defined]
        self.trainer.predict(**{**kwargs, "return_predictions": False})
        print(f"embeddings and the samples' keys: {path}")

    def add_arguments_to_parser(self, parser: Any) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--reopen_test",
            "--reopen-test",
            type=str | None,
            default=None,
            help="Why the test classes are opened again.",
        )


class EmbeddingWriter(Callback):
    """Writes what `predict` embeds, in the data set's order, from all processes, each sample once.

    Args:
        path: the safetensors file: `embeddings` (N, D) float32; the samples' keys, in order, as lines of the metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: list[dict[str, torch.Tensor]] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        self._parts.append(outputs)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        embeddings = gather_rows(pl_module, torch.cat([part["embeddings"] for part in self._parts]))
        index = gather_rows(pl_module, torch.cat([part["index"] for part in self._parts]))
        subset = trainer.datamodule.predict_subset  # type: ignore[attr-defined]
        ordered = embeddings.new_empty((len(subset), embeddings.shape[1]))
        ordered[index] = embeddings
        if trainer.is_global_zero:
            save_file({"embeddings": ordered.cpu().float()}, self.path, metadata={"keys": "\n".join(subset.index.keys)})


def _checkpoint_path(args: list[str]) -> Path:
    for position, word in enumerate(args):
        name, _, value = word.partition("=")
        if name == "--ckpt_path":
            return Path(value or (args[position + 1] if position + 1 < len(args) else ""))
    raise UserError(f"levelfield {args[0]} needs --ckpt_path FILE, the best.ckpt of a fit")
