"""`validate`, `test` and `predict`: everything comes from the checkpoint, and what contradicts it is refused."""

from __future__ import annotations

import copy
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from safetensors.torch import save_file

from levelfield.errors import UserError
from levelfield.learner import MetricLearner, loadable_config, read_checkpoint
from levelfield.training import TrainingCLI

IDENTITY = ("num_folds", "split", "fold", "train_classes", "val_classes", "fingerprint")


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
        given = yaml.safe_load(self.parser.dump(self.config, skip_none=False, skip_link_targets=False))[self.subcommand]
        self._refuse_other_model(given["model"])
        for key in ("fold", "num_folds", "split"):
            expected = self._expected["data"][key]
            if given["data"][key] != expected:
                raise UserError(
                    f"--data.{key} {given['data'][key]} contradicts '{self.checkpoint_path}', trained with {expected}: "
                    "leave the option out"
                )
        expected = self._expected["data"]["dataset"]["class_path"]
        if given["data"]["dataset"]["class_path"] != expected:
            raise UserError(
                f"--data.dataset {given['data']['dataset']['class_path'].rpartition('.')[2]} contradicts "
                f"'{self.checkpoint_path}', trained on {expected.rpartition('.')[2]}: leave the option out"
            )

    def after_instantiate_classes(self) -> None:
        self.model = MetricLearner.load_from_checkpoint(self.checkpoint_path)
        expected, found = self.checkpoint["levelfield"]["data"], self.datamodule.identity()
        for key in IDENTITY:
            if expected[key] != found[key]:
                raise UserError(
                    f"the data set differs from the one '{self.checkpoint_path}' was trained on ({key}): "
                    "give the same data, or fit again"
                )

    def _refuse_other_model(self, given: dict[str, Any]) -> None:
        expected, found = _leaves(self._expected["model"]), _leaves(given)
        for key in sorted(expected.keys() | found.keys()):
            if key.startswith("trunk.") and key.endswith(".weights"):
                continue
            if key in expected and expected[key] != found.get(key):
                raise UserError(
                    f"--model.{key} {found.get(key)} contradicts '{self.checkpoint_path}', trained with "
                    f"{expected[key]}: leave the option out"
                )

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        kwargs["ckpt_path"] = None  # its weights are in the model already
        return kwargs

    def test(self, **kwargs: Any) -> None:
        """Opens the test classes, which the ledger beside the checkpoint records before any test label is used."""
        from levelfield.study.ledger import Ledger

        ledger = Ledger(self.checkpoint_path.parent / "ledger.jsonl")
        configuration = hashlib.sha256(yaml.safe_dump(self._expected).encode()).hexdigest()
        checkpoints = {self.checkpoint_path.name: hashlib.sha256(self.checkpoint_path.read_bytes()).hexdigest()}
        if rank_zero_only.rank != 0:
            self.trainer.test(**kwargs)
            return
        opening = ledger.open(configuration, checkpoints, self.config.test.reopen_test)
        self.trainer.test(**kwargs)
        ledger.finish(opening)
        print(f"opening {opening} of the test classes, recorded in {ledger.path}")

    def predict(self, **kwargs: Any) -> None:
        """Embeds every sample of the data set, without a label, into `embeddings.safetensors` beside the checkpoint."""
        path = self.checkpoint_path.parent / "embeddings.safetensors"
        self.trainer.callbacks.append(EmbeddingWriter(path))
        self.trainer.predict(**{**kwargs, "return_predictions": False})
        print(f"embeddings and the samples' keys: {path}")

    def add_arguments_to_parser(self, parser: Any) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--reopen_test", "--reopen-test", type=str | None, default=None, help="Why the test classes are opened again.")


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
        gathered = [pl_module.all_gather(torch.cat([p[name] for p in self._parts])) for name in ("embeddings", "index")]
        embeddings, index = gathered[0].reshape(-1, gathered[0].shape[-1]), gathered[1].reshape(-1)
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


def _leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict) or not config:
        return {prefix: copy.copy(config)}
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _leaves(value, f"{prefix}.{key}" if prefix else key)
    return leaves
