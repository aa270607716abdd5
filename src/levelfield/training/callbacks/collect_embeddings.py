"""Keep the embeddings of a validation or a test."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from levelfield.metrics.distributed import first_of_each
from levelfield.training.batches import Batch, gather_rows
from levelfield.training.callbacks.retrieval_validation import embeddings_of
from levelfield.training.embed import EmbeddedSet


class CollectEmbeddings(Callback):
    """Keeps the embeddings of the first loader and all processes on the CPU, each sample once, in the data set's order.

    Attributes:
        samples: The embeddings in float32, with labels and positions; set when the validation or test has ended.
    """

    samples: EmbeddedSet

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx:
            return
        read = Batch.read(batch)
        assert read.index is not None  # the datamodule's loaders yield it
        self._parts.append((embeddings_of(outputs), read.labels, read.index))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        columns = zip(*self._parts, strict=True)
        embeddings, labels, index = (gather_rows(pl_module, torch.cat(parts)).cpu() for parts in columns)
        first = first_of_each(index)
        self.samples = EmbeddedSet(embeddings[first].float(), labels[first], index[first])
        self._parts = []

    on_validation_batch_end, on_validation_end = on_test_batch_end, on_test_end
