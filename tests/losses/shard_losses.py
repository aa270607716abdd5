"""Losses whose class weights lie over groups of two and three processes; run once by `test_class_shard.py`.

Writes `<folder>/<world size>_<rank>.pt`: of each case the value, the gradients, and the class weights as they began.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import fork
from torch import Tensor

from levelfield import losses
from levelfield.losses import class_shard

D = 6
# Neither 2 nor 3 divides 11; a batch of classes that one process holds; fewer classes than processes.
BATCHES = {
    "mixed": (11, [0, 5, 10, 3, 3, 7, 0, 9]),
    "first process": (11, [0, 1, 2, 1, 0, 0, 2, 1]),
    "two classes": (2, [0, 1, 1, 0]),
    "one class": (1, [0, 0, 0]),
}
ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("NormalizedSoftmaxLoss", {"label_smoothing": 0.1}),
    ("NormalizedSoftmaxLoss", {"temperature": 1e-3}),
    ("CosFaceLoss", {"weight_init": "uniform"}),
    ("ArcFaceLoss", {}),
    ("SphereFaceLoss", {}),
    ("SubCenterArcFaceLoss", {}),
    ("ProxyNCALoss", {"softmax_scale": 9.0}),
    ("ProxyNCALoss", {"softmax_scale": 9.0, "exclude_positive": True}),
    ("ProxyAnchorLoss", {}),
    ("AdaFaceLoss", {}),
    ("MagFaceLoss", {"lower_norm": 2.0, "upper_norm": 8.0}),
]
FRACTIONS = (1.0, 0.5, 0.2)


def cases() -> dict[str, tuple[str, dict[str, Any], str, float, bool]]:
    found = {}
    for name, arguments in ARGUMENTS:
        for batch in BATCHES:
            for fraction in FRACTIONS:
                for mined in (False, True) if (batch, fraction) == ("mixed", 0.5) else (False,):
                    case = (name, arguments, batch, fraction, mined)
                    found[str(case)] = case
    return found


def batch_of(name: str, mined: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:
    """Embeddings with gradient, of several lengths; labels; a miner's choice."""
    labels = torch.tensor(BATCHES[name][1])
    embeddings = 2 * torch.randn(len(labels), D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = (torch.tensor([0, 0, 3, 5]), torch.tensor([6, 6, 4, 5]), torch.tensor([1, 2, 1, 1])) if mined else None
    return embeddings.requires_grad_(), labels, chosen


def run(name: str, arguments: dict[str, Any], batch: str, fraction: float, mined: bool) -> dict[str, Any]:
    torch.manual_seed(3)
    loss = getattr(losses, name)(BATCHES[batch][0], D, class_fraction=fraction, shard_classes=True, **arguments)
    began = loss.shard.whole(loss.class_weights.detach().clone())
    loss = loss.double()
    embeddings, labels, chosen = batch_of(batch, mined)
    torch.manual_seed(7)
    value = loss(embeddings, labels, chosen)
    value.backward()
    of_weights = loss.class_weights.grad
    if of_weights is None:
        of_weights = torch.zeros_like(loss.class_weights)
    found = {
        "value": value.detach(),
        "embeddings": embeddings.grad,
        "class_weights": loss.shard.whole(of_weights.to_dense()),
        "began": began,
        "sparse": of_weights.is_sparse,
    }
    whole = {"class_weights": began.double()} if loss.shard.rank == 0 else {}
    loss.load_state_dict({**loss.state_dict(), **whole})
    return {**found, "loaded": loss.shard.whole(loss.class_weights.detach())}


def in_group(folder: Path, rank: int, world_size: int) -> None:
    if world_size > 1:
        store = f"file://{folder}/store_{world_size}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    class_shard.BLOCK = 8  # more blocks than one
    torch.save({name: run(*case) for name, case in cases().items()}, folder / f"{world_size}_{rank}.pt")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in (1, 2, 3):
        fork(size, lambda rank, size=size: in_group(Path(sys.argv[1]), rank, size))
