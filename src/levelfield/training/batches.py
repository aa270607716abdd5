"""The batches of any loader, and gathering rows of all processes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from levelfield.core.errors import UserError

FORMS = "(samples, labels), (samples, labels, index) or a dictionary with these keys"


class Batch(NamedTuple):
    """Samples with labels and, if the loader has them, positions in the data set.

    With `are_features` the samples are features of a trunk.
    """

    samples: Any
    labels: Int[Tensor, " batch"]
    index: Int[Tensor, " batch"] | None = None  # type: ignore[assignment] # a field, not tuple's method of that name
    are_features: bool = False

    @classmethod
    def read(cls, batch: Any, labelled: bool = True) -> "Batch":
        """The batch of any loader; if not `labelled`, also a dictionary without labels, or only samples.

        Raises:
            UserError: it is neither a pair, nor a triple, nor a dictionary with `samples` and `labels`.
        """
        if isinstance(batch, Mapping):
            of = "features" if "features" in batch else "samples"
            if missing := [key for key in (of, *["labels"] * labelled) if key not in batch]:
                found = ", ".join(str(key) for key in batch)
                raise UserError(f"the loader's dictionaries have no '{missing[0]}' (they have {found}): yield {FORMS}")
            return cls(batch[of], batch.get("labels"), batch.get("index"), of == "features")  # type: ignore[arg-type]
        if isinstance(batch, tuple | list) and len(batch) in (2, 3) and (labelled or isinstance(batch[1], Tensor)):
            return cls(*batch)
        if not labelled:
            return cls(batch, None)  # type: ignore[arg-type]
        found = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise UserError(f"the loader yields a {found}: yield {FORMS}")


def read_known(batch: Any) -> Batch | None:
    """The batch; None for another form, which only the user's own `training_step` can read."""
    try:
        return Batch.read(batch)
    except UserError:
        return None


def broken_samples(batch: Batch | None) -> str:
    """Says which samples have NaN or infinite values; empty if none has, or if they are no tensor."""
    if batch is None or not isinstance(batch.samples, Tensor):
        return ""
    rows = (~torch.isfinite(batch.samples).flatten(1).all(1)).nonzero().flatten()
    positions = rows if batch.index is None else batch.index.to(rows.device)[rows]
    where = "batch" if batch.index is None else "data set"
    shown = ", ".join(map(str, positions[:5].tolist()))
    counted = f"{len(rows)} of {len(batch.samples)} samples"
    return f"NaN or infinite values in {counted}: {shown} in the {where}" if len(rows) else ""


def match_dtype(samples: Tensor, module: nn.Module) -> Tensor:
    """Samples in the dtype of a module's weights, which half-precision training may have changed."""
    if samples.dtype == torch.uint8:
        from levelfield.data.transforms import as_floats  # imports all data sets

        samples = as_floats(samples)
    weights = next((weight for weight in module.parameters() if weight.is_floating_point()), None)
    return samples if weights is None or not samples.is_floating_point() else samples.to(weights.dtype)


def gather_rows(module: LightningModule, rows: Tensor, sync_grads: bool = False) -> Tensor:
    """The rows of all processes, in the order of ranks; each process must have the same number."""
    if module.trainer.world_size == 1:
        return rows
    gathered = module.all_gather(rows, sync_grads=sync_grads)
    assert isinstance(gathered, Tensor)
    return gathered.flatten(0, 1)
