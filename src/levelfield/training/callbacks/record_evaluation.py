"""Record each `trainer.test` in the ledger before a test label is used."""

import hashlib
import json
from functools import partial
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info

from levelfield.core.files import file_hash
from levelfield.core.ledger import EVALUATED, LEDGER, Evaluation, begin, evaluations_of, finish, read_lines
from levelfield.data.loaders import LedgerLoader, first_process_does
from levelfield.models.weights import content_hash
from levelfield.training.import_paths import plain_value


class RecordEvaluation(Callback):
    """Records `trainer.test` in the ledger with the checkpoint and the reason.

    A copy of the line is in `ledger.jsonl` next to the tested checkpoint: `ckpt_path`, or the one that the learner was
    loaded from. For a learner without a checkpoint, the line has the hash of the weights, and the copy is in the
    Trainer's `default_root_dir`. A repeated test after an interruption is the same evaluation. A `fast_dev_run` counts:
    it gives a batch of test labels to the learner. A loader with the id of a line gets no second line. Each loader of
    a datamodule has its own line, and your own loaders have one together.

    A `MetricLearner` adds this callback. Give one to the Trainer to record a reason. Without it, the datamodule writes
    a line without the checkpoint.

    Args:
        reason: Why the test classes are evaluated, for the line.
        by: Who evaluates, for the line.

    Attributes:
        evaluation: Id of the last test's first line; None if each loader brought one.
        folder: Where the copy is.
        count: Number of evaluations of this data set so far, on the first process; for your own loaders, of this
            folder.

    Raises:
        UserError: the line cannot be written; on every process.

    Example:
        >>> trainer = Trainer(callbacks=[RecordEvaluation(reason="two test images were restored")], logger=False)
    """

    def __init__(self, reason: str | None = None, by: str = "trainer.test") -> None:
        self.reason = reason
        self.by = by
        self.evaluation: str | None = None
        self.folder = Path()
        self.count = 0
        self._lines: list[tuple[str, LedgerLoader | None]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.evaluation, self._lines = None, []
        found = CombinedLoader(trainer.test_dataloaders).flattened
        # None is for all of your own loaders.
        loaders = [each if isinstance(each, LedgerLoader) else None for each in found]
        new = [each for each in dict.fromkeys(loaders) if each is None or each.evaluation is None]
        if not new:
            return
        path = trainer.ckpt_path or getattr(pl_module, "checkpoint_path", None)
        checkpoint = Path(path) if path is not None and Path(path).is_file() else None
        self.folder = Path(trainer.default_root_dir) if checkpoint is None else checkpoint.parent
        # All processes must call this, to gather sharded weights.
        hashed = content_hash(trainer.strategy.lightning_module_state_dict()) if checkpoint is None else ""
        parts = {"model": pl_module, "data": getattr(trainer, "datamodule", None)}
        described = {name: plain_value(dict(getattr(part, "hparams", {}))) for name, part in parts.items()}

        def line(recorded: LedgerLoader | None) -> str:
            samples = [] if recorded is None else recorded.sample_hashes()
            evaluation = Evaluation(
                data=type(parts["data"]).__name__ if recorded is None else recorded.subset.dataset.name,
                samples=samples,
                by=f"{self.by}, fast_dev_run" if trainer.fast_dev_run else self.by,  # type: ignore[attr-defined]
                checkpoints={checkpoint.name: file_hash(checkpoint)} if checkpoint else {"weights": hashed},
                configuration=hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest(),
                reason=self.reason or "",
            )
            identity = begin(evaluation, self.folder)
            of_folder = [each for each in read_lines(self.folder / LEDGER) if each["event"] == EVALUATED]
            self.count = len(evaluations_of(samples) if samples else of_folder)
            return identity

        for recorded in new:
            identity = first_process_does(partial(line, recorded))
            self._lines.append((identity, recorded))
            if recorded is not None:
                recorded.evaluation = identity
        self.evaluation = self._lines[0][0]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for identity, recorded in self._lines:
            if recorded is not None:
                recorded.evaluation = None  # another pass over it is another evaluation
            if trainer.is_global_zero:
                finish(identity, {}, self.folder)
        if self._lines:
            rank_zero_info(self.summary())

    def summary(self) -> str:
        """One line: how many evaluations there have been, and where the copy is."""
        return f"evaluation {self.count} on these test classes, recorded in {self.folder / LEDGER}"
