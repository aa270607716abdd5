"""Every loss, and every regularizer, on groups of two and three processes, with and without gradient caching.

Run once by `test_over_ranks.py`; writes `<folder>/<world size>.pt`, of rank 0: for each case the loss and the gradients
as DistributedDataParallel would leave them, that is averaged over the processes; world size 1 stands for one process
with the whole batch.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from forked_ranks import fork
from loss_cases import needs_classes, shipped
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather

from levelfield import losses, miners, regularizers
from levelfield.training.gradient_caching import embed_in_chunks
from levelfield.training.learner import MetricLearner

# 12 samples for 1, 2 and 3 processes. Of two processes the second, of three the last holds no positive pair of its own
# among its rows; in "alone" its samples have none in the whole batch.
LABELS = {
    "uneven": [4, 4, 4, 4, 1, 1, 4, 1, 0, 2, 3, 5],
    "alone": [1, 1, 1, 1, 4, 4, 0, 2, 3, 5, 6, 7],
    "nothing": list(range(12)),
    "one class": [3] * 12,
}
ARGUMENTS = {
    "MarginLoss": [{}, {"learn_beta": True, "nu": 0.1}, {"learn_beta": True, "nu": 0.1, "num_classes": 12},
                   {"triplets_per_anchor": 2}, {"pairs": True}],
    "MagFaceLoss": [{"lower_norm": 1.0, "upper_norm": 5.0}],
    "RankedListLoss": [{"margin": 0.4, "Tn": 10}, {"margin": 0.4, "Tn": 10, "reduction": "nonzero"}],
    "TripletMarginLoss": [{}, {"triplets_per_anchor": "semihard"}, {"triplets_per_anchor": 3}, {"swap": True},
                          {"smooth_loss": True}, {"power": 2}],
    "ContrastiveLoss": [{}, {"hinge_power": 2}],
    "SignalToNoiseRatioContrastiveLoss": [{}, {"regularizer_weight": 0.3}],
    "NTXentLoss": [{}, {"probability_floor": 1e-3}],
    "RecallAtKLoss": [{}, {"similarity_mixup": True}],
    "SoftTripleLoss": [{}, {"reg_weight": 0.2}, {"class_fraction": 0.6}],
    "PotentialFieldLoss": [{}, {"class_fraction": 0.6}],
    "HISTLoss": [{"hidden_size": 8}],
    "ProxyTripletLoss": [{}, {"reduction": "mean"}],
    "ProxyNCALoss": [{}, {"exclude_positive": True}],
    "ArcFaceLoss": [{}, {"class_fraction": 0.6}],
    "NormalizedSoftmaxLoss": [{"label_smoothing": 0.1, "class_fraction": 0.6}],
}  # fmt: skip
MINERS = {
    "TripletMarginMiner": miners.TripletMarginMiner(margin=0.5),
    "MultiSimilarityMiner": miners.MultiSimilarityMiner(),
    "DistanceWeightedMiner": miners.DistanceWeightedMiner(nonzero_loss_cutoff=1.9),
    "BatchHardMiner": miners.BatchHardMiner(),
    "HDCMiner": miners.HDCMiner(),
    "AngularMiner": miners.AngularMiner(),
    "BatchEasyHardMiner": miners.BatchEasyHardMiner(),
    "UniformHistogramMiner": miners.UniformHistogramMiner(5, 4, 4),
}


class Penalty(nn.Module):
    """A regularizer, as the learner calls it: of the gathered batch, on each process."""

    def __init__(self, regularizer: regularizers.Regularizer) -> None:
        super().__init__()
        self.regularizer = regularizer

    def over_ranks(self, embeddings: Tensor, labels: Tensor, indices: None) -> Tensor:
        return self.regularizer(embeddings)


def cases() -> dict[str, tuple[nn.Module, str, str | None]]:
    found: dict[str, tuple[nn.Module, str, str | None]] = {}
    for loss in shipped():
        for arguments in ARGUMENTS.get(loss.__name__, [{}]):
            sizes = {"num_classes": 12, "embedding_size": 6} if needs_classes(loss) else {}
            told = ", ".join(f"{name}={value}" for name, value in arguments.items())
            shared = loss(**sizes, **arguments).rows_are_independent
            choices = list(MINERS)[: len(MINERS) if loss is losses.TripletMarginLoss else 2] if shared else []
            for labels in LABELS:
                for chosen in [None, *choices] if labels == "uneven" else [None]:
                    torch.manual_seed(3)
                    made = loss(**sizes, **arguments).double()
                    found[f"{loss.__name__}({told}), {labels}, miner {chosen}"] = (made, labels, chosen)
    for labels in LABELS:
        torch.manual_seed(3)
        parts = {
            "rows": losses.ContrastiveLoss(),
            "whole": losses.LiftedStructureLoss(),
            "c": losses.ArcFaceLoss(12, 6),
        }
        found[f"WeightedSum(), {labels}, miner None"] = (losses.WeightedSum(parts, {"c": 0.3}).double(), labels, None)
    for name in regularizers.__all__:
        if name != "Regularizer":
            found[f"{name}(), uneven, miner None"] = (Penalty(getattr(regularizers, name)()), "uneven", None)
    return found


def chunked_cases() -> dict[str, tuple[nn.Module, str, str | None]]:
    """Each loss once, to train a network: of several processes by gradient caching, of one in one piece."""
    found = {name: case for name, case in cases().items() if case[1:] == ("uneven", None)}
    first = {name.partition("(")[0]: name for name in reversed(found)}
    return {f"{loss} in chunks": found[name] for loss, name in first.items()}


def gradients(
    loss: nn.Module, labels_name: str, chosen: str | None, rank: int, world_size: int, in_chunks: bool = False
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    samples = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    embedder = torch.randn(5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.tensor(LABELS[labels_name])
    share = 12 // world_size
    samples = samples[rank * share : (rank + 1) * share]
    learnt = {"embedder": embedder}
    if in_chunks:
        torch.manual_seed(2)
        trunk = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
        learner = MetricLearner(trunk, loss=loss, num_features=7, embedding_size=6, normalize=False).double()
        learnt = {name: weight for name, weight in learner.named_parameters() if not name.startswith("loss.")}
        rows = learner(samples) if world_size == 1 else embed_in_chunks(learner, samples, share, 3)
    else:
        rows = (samples @ embedder).requires_grad_()
    rows.retain_grad()
    embeddings = rows if world_size == 1 else torch.cat(all_gather(rows))
    torch.manual_seed(7)
    indices = None if chosen is None else MINERS[chosen](embeddings, labels)
    value = loss.over_ranks(embeddings, labels, indices)
    value.backward()
    learnt |= dict(loss.named_parameters())
    found = {"value": value.detach(), **{name: weight.grad for name, weight in learnt.items()}}
    of_rows = rows.grad / world_size  # the gather's backward pass has summed
    if world_size > 1:
        for name, gradient in found.items():
            if name != "value":
                dist.all_reduce(gradient)
                gradient /= world_size
        parts = [torch.empty_like(of_rows) for _ in range(world_size)]
        dist.all_gather(parts, of_rows)
        of_rows = torch.cat(parts)
    return {**found, "embeddings": of_rows}


def in_group(folder: Path, rank: int, world_size: int) -> None:
    if world_size > 1:
        store = f"file://{folder}/store_{world_size}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    found = {name: gradients(*case, rank, world_size) for name, case in cases().items()}
    found |= {name: gradients(*case, rank, world_size, in_chunks=True) for name, case in chunked_cases().items()}
    if rank == 0:
        torch.save(found, folder / f"{world_size}.pt")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for size in (1, 2, 3):
        fork(size, lambda rank, size=size: in_group(Path(sys.argv[1]), rank, size))
