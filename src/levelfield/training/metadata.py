"""Further columns of a table, for a loss whose `forward` has a parameter `metadata`."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from levelfield.core.errors import UserError, nearest
from levelfield.training.batches import Batch, gather_rows


class Metadata(Mapping[str, Tensor]):
    """Numeric columns by name, one value per sample. Access to a column of text raises an error.

    Args:
        numeric: name to a float64 tensor (samples,), with NaN for empty cells.
        others: name to the first value that is not a number.
    """

    def __init__(self, numeric: Mapping[str, Tensor], others: Mapping[str, str]) -> None:
        self._numeric, self._others = numeric, others

    def __getitem__(self, name: str) -> Tensor:
        if name in self._others:
            raise UserError(f"metadata['{name}']: the column has text ({self._others[name]!r}); give it numbers")
        if name not in self._numeric:
            raise UserError(f"metadata['{name}']: the table has no such column{nearest(name, list(self._numeric))}")
        return self._numeric[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numeric)

    def __len__(self) -> int:
        return len(self._numeric)

    def of_batch(self, learner: LightningModule, batch: Batch) -> "Metadata":
        """The values for the whole batch of all processes, on the device of the learner.

        Raises:
            UserError: the loader yields no positions in the data set.
        """
        if batch.index is None:
            raise UserError("the loss takes metadata: let the loader yield (samples, labels, index)")
        return self.rows(gather_rows(learner, batch.index))

    def rows(self, index: Tensor) -> "Metadata":
        """The values of the samples at these positions in the data set, on the device of `index`."""
        places = index.cpu()
        return Metadata({name: column[places].to(index.device) for name, column in self.items()}, self._others)


def takes_metadata(loss: nn.Module) -> bool:
    """Whether a loss, or one in a sum, has a parameter `metadata`."""
    if isinstance(losses := getattr(loss, "losses", None), nn.ModuleDict):
        return any(map(takes_metadata, losses.values()))
    return "metadata" in inspect.signature(loss.forward).parameters


def read_metadata(datamodule: Any, loss: nn.Module) -> Metadata:
    """The columns of the data set's samples, by their positions.

    Raises:
        UserError: the data have no further column.
    """
    dataset: Any = getattr(datamodule, "dataset", None)
    columns = dataset.read_metadata(dataset.kept_index()) if hasattr(dataset, "read_metadata") else {}
    if not columns:
        raise UserError(
            f"--model.loss {type(loss).__name__} takes metadata, but {type(dataset).__name__} has no further column: "
            "give an ImageTable or a TextTable with one"
        )
    numeric, others = dict[str, Tensor](), dict[str, str]()
    for name, column in columns.items():
        texts = column.dictionary.to_pylist()
        values = [_number(text) for text in texts]
        wrong = next((text for text, value in zip(texts, values, strict=True) if value is None), None)
        if wrong is not None:
            others[name] = wrong
        else:
            numeric[name] = torch.from_numpy(np.array(values, np.float64)[column.indices.to_numpy()])
    return Metadata(numeric, others)


def _number(text: str) -> float | None:
    try:
        return float(text) if text.strip() else float("nan")
    except ValueError:
        return None
