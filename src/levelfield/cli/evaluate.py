"""`levelfield validate`, `test` and `predict`: learner and data come from the checkpoint."""

import argparse
from pathlib import Path
from typing import Any, Self

import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer, seed_everything
from safetensors.torch import save

from levelfield.cli.options import configuration
from levelfield.core.configuration import Config, flatten, init_args, merge
from levelfield.core.errors import UserError, nearest
from levelfield.core.files import write_atomically
from levelfield.core.ledger import EVALUATED, LEDGER, read_lines
from levelfield.core.processes import is_first_rank
from levelfield.core.terminal import say
from levelfield.data.own import dataset_with_paths
from levelfield.training.batches import gather_rows
from levelfield.training.build import Training
from levelfield.training.callbacks import RecordEvaluation, RetrievalValidation
from levelfield.training.checkpoint import data_arguments, load_data, load_learner, read_checkpoint
from levelfield.training.initial_weights import refuse_other, refuse_other_data
from levelfield.training.plain_module import adapted
from levelfield.training.settings import class_parser, instantiate, plain

# Where the data are and how they are loaded, and where and how a Trainer computes. The checkpoint has everything else.
OF_DATA = ("root", "dataset", "eval_batch_size", "num_workers", "cache", "features")
OF_A_TRAINER = (
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "deterministic", "benchmark", "inference_mode"),
    *("plugins", "profiler", "callbacks", "enable_progress_bar"),
    *("limit_val_batches", "limit_test_batches", "limit_predict_batches"),
)
TAKEN = (*(f"data.{key}" for key in OF_DATA), *(f"trainer.{key}" for key in OF_A_TRAINER))


def main(given: argparse.Namespace) -> int:
    """Run `levelfield validate`, `test` or `predict`; return the exit code."""
    if len(given.ckpt_path) > 1:
        raise UserError("--ckpt_path is given twice: leave one out")
    evaluation = Evaluation(given, configuration(given.config, given.settings))
    getattr(evaluation.build(), given.command)()
    return 0


class Evaluation(Training):
    """A trained checkpoint with its data.

    Args:
        given: The options of the command.
        asked: Settings in addition to those of the checkpoint.

    Raises:
        UserError: No checkpoint, or a setting that only the checkpoint may give.
    """

    def __init__(self, given: argparse.Namespace, asked: Config) -> None:
        self.given = given
        self.checkpoint_path = path = Path(given.ckpt_path[0])
        self.checkpoint = read_checkpoint(path)
        identified = isinstance(self.checkpoint["levelfield"].get("data"), dict)
        if "datamodule_hyper_parameters" not in self.checkpoint or not identified:
            raise UserError(
                f"'{path}' was trained on your own loaders, which it does not store: in Python, call "
                "Trainer().test(MetricLearner.load_from_checkpoint(...), loader)"
            )
        for key in (key.replace(".init_args", "") for key, _ in flatten(asked)):
            if not key.startswith(TAKEN):
                meant = nearest(key, TAKEN, "; leave it out", cutoff=0.8)
                raise UserError(f"--{key}: {given.command} does not use it, or reads it from '{path}'{meant}")
        stored = data_arguments(self.checkpoint, path, given.trust)
        dataset = stored["dataset"]
        data_asked = merge({"dataset": {"class_path": dataset["class_path"]}}, asked.get("data") or {})
        super().__init__({**asked, "data": data_asked}, command=given.command, complete=False)
        found = plain(self.parser, self.config)["data"]
        refuse_other("data.dataset", found["dataset"]["class_path"], dataset["class_path"], path)
        # Only what was given: the checkpoint has the rest.
        in_dataset = {"root", *init_args(data_asked["dataset"])}
        stored |= {key: found[key] for key in data_asked}
        again = dataset_with_paths(dataset, path.with_name("config.yaml"))
        here = {key: value for key, value in init_args(found["dataset"]).items() if key in in_dataset}
        self.data = {**stored, "dataset": {**again, "init_args": {**init_args(again), **here}}}

    def build(self) -> Self:
        """Build the parts with the weights of the checkpoint."""
        seed_everything(self.config.seed_everything, workers=True)
        self.model = adapted(load_learner(None, self.checkpoint_path, trust=self.given.trust))
        self.datamodule = load_data(self.data, self.checkpoint_path, self.given.trust)
        parser = class_parser(Trainer, "trainer", instantiate=False)
        self.parts = instantiate(parser, Namespace(trainer=self.config.trainer))
        self.trainer = self.make_trainer()
        self.datamodule.device = self.trainer.strategy.root_device
        refuse_other_data(self.checkpoint["levelfield"]["data"], self.datamodule.identity(), self.checkpoint_path)
        return self

    def validate(self) -> None:
        """Score the checkpoint's validation fold."""
        self.trainer.validate(self.model, datamodule=self.datamodule)

    def test(self) -> None:
        """Evaluate on the test classes. The ledger gets its line before any test label is used."""
        from levelfield.use.card import keep_scores, write_card
        from levelfield.use.transfer import with_intervals

        record = RecordEvaluation(reason=self.given.reopen_test, by="levelfield test")
        self.trainer.callbacks.append(record)  # type: ignore[attr-defined]
        self.trainer.test(self.model, datamodule=self.datamodule)
        if record.evaluation is not None and is_first_rank():
            say(record.summary())
            lines = read_lines(record.folder / LEDGER)
            line = next(each for each in lines if (each["event"], each["id"]) == (EVALUATED, record.evaluation))
            scored = next(each for each in self.trainer.callbacks if isinstance(each, RetrievalValidation))  # type: ignore[attr-defined]
            scores, tested = with_intervals(*scored.of_queries[0]), self.datamodule.test_subset
            counts = len(tested.classes), len(tested)
            keep_scores(self.checkpoint_path, scores, *counts, {**line, "number": record.count})
            folder, modality = self.checkpoint_path.parent, self.datamodule.dataset.modality
            say(f"model card: {write_card(folder, [self.checkpoint_path], [self.checkpoint], modality)}")

    def predict(self) -> None:
        """Embed all samples of the data set, without labels, into `embeddings.safetensors` next to the checkpoint.

        The file has the `embeddings` (N, D) in float32, in the order of the data set; the sample keys are lines of its
        metadata.
        """
        path = self.checkpoint_path.parent / "embeddings.safetensors"
        batches: Any = self.trainer.predict(self.model, datamodule=self.datamodule)  # of this process
        rows, index = (self._gather([batch[name] for batch in batches]) for name in ("embeddings", "index"))
        if not self.trainer.is_global_zero:
            return
        keys = self.datamodule.predict_subset.index.keys
        if left_out := len(keys) - len(index.unique()):
            raise UserError(f"limit_predict_batches leaves {left_out:,} of {len(keys):,} samples out: remove it")
        embeddings = torch.empty(len(keys), rows.shape[1])
        embeddings[index] = rows.float()
        write_atomically(path, save({"embeddings": embeddings}, metadata={"keys": "\n".join(keys)}))
        say(f"embeddings and sample keys: {path}")

    def _gather(self, batches: list[torch.Tensor]) -> torch.Tensor:
        """The rows of the batches of all processes."""
        return gather_rows(self.model, torch.cat(batches).to(self.trainer.strategy.root_device)).cpu()
