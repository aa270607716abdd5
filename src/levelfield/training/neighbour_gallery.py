"""Validation samples with their nearest neighbours, as the rows of a table of W&B."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.table import SELECTED_BY

NEIGHBOURS = 5


def neighbour_gallery(
    embeddings: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    index: Int[Tensor, " N"],
    data: Any,
    queries: int,
    distance: str,
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table: a query a row, from the worst MAP@R to the best, and its nearest others.

    Args:
        index: where in the validation samples each is.
        data: what has the pictures or texts: a `MetricDataModule`.
        queries: how many.
        distance: the learner's.

    Raises:
        UserError: other data, whose pictures nothing here can open.
    """
    if not isinstance(data, MetricDataModule) or data.val_subset is None:
        raise UserError("TrackTraining.galleries shows samples of a MetricDataModule: leave it 0 with data of your own")
    subset = data.val_subset
    scores = retrieval_metrics(embeddings.float(), labels, metrics=(SELECTED_BY,), distance=distance, per_query=True)[
        SELECTED_BY
    ]
    assert isinstance(scores, Tensor)
    order = scores.argsort()[: int(scores.isfinite().sum())]  # those left out, as NaN, come last
    places = torch.linspace(0, len(order) - 1, min(queries, len(order))).round().long()
    rows = []
    for query in order[places.to(order.device)].tolist():
        near = _nearest(embeddings.float(), query, distance)
        cells = [_shown(subset, int(index[each]), labels[each] == labels[query]) for each in near]
        rows.append([_shown(subset, int(index[query])), float(scores[query]), *cells])
    return ["query", SELECTED_BY, *(f"neighbour {place + 1}" for place in range(len(rows[0]) - 2))], rows


def _nearest(embeddings: Float[Tensor, "N D"], query: int, distance: str) -> list[int]:
    held, similarity = DISTANCES[distance]
    points = held(embeddings)
    alike = similarity(points[query : query + 1], points)[0]
    alike[query] = -torch.inf
    return alike.topk(min(NEIGHBOURS, len(alike) - 1)).indices.tolist()


def _shown(subset: Any, position: int, is_right: Any = None) -> Any:
    """A picture with its class, or a text behind it; a neighbour says whether it is right."""
    import wandb

    row = int(np.searchsorted(subset.positions, position))

    said = "" if is_right is None else "right: " if is_right else "wrong: "
    sample = subset.dataset.load(subset.index.keys[row])
    name = subset.class_names[subset.labels[row]]
    return f"{said}{name}: {sample}" if isinstance(sample, str) else wandb.Image(sample, caption=f"{said}{name}")
