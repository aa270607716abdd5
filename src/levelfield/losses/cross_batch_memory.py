"""Cross-batch memory."""

from inspect import signature

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from levelfield.core.labels import Labels, LabelSets, check_alike, matches
from levelfield.losses.base import IndicesTuple, MetricLoss, PairMasks, Scalar, check_batch, check_indices
from levelfield.losses.pairs import PairLoss, as_pairs


class CrossBatchMemory(MetricLoss):
    """Another loss, computed between each batch and the embeddings of the latest batches.

    The batch enters the memory first, in place of the oldest embeddings if it is full. It is then compared with
    everything there, except each sample with itself. Embeddings in the memory are constants for the gradient. In
    evaluation mode nothing enters. The memory is part of the module's state.

    Args:
        loss: a loss of pairs or triplets, of this package or with the same call. Without a miner it must compare
            everything: the memory names the pairs, so the loss cannot draw its own triplets.
        embedding_size: length D of an embedding.
        memory_size: number of embeddings that the memory holds, at least a batch.
        miner: chooses among batch x memory; None compares everything. If its forward takes `places`, as those of this
            package do, no sample is its own positive; otherwise such pairs are dropped from its choice.
        num_labels: L, if labels are label sets, (N, L) boolean, which the loss must take; None for one label a sample.

    Cost: B x memory. When: batches too small to contain hard pairs.
    Paper: Wang et al. 2020, "Cross-Batch Memory for Embedding Learning", arXiv:1912.06798.

    Differs: the authors add the loss within the batch, with weight 1, and use the memory after 1,000 steps. Here it is
    only the memory, from the first step. `WeightedSum` adds the loss within the batch.
    """

    memory: Tensor
    memory_labels: Tensor

    def __init__(
        self,
        loss: PairLoss | nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: nn.Module | None = None,
        num_labels: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise ValueError(f"loss={loss!r} is no module: make it")
        if isinstance(loss, MetricLoss) and not isinstance(loss, PairLoss):
            raise ValueError(f"{type(loss).__name__} is no loss of pairs or triplets and takes no memory")
        if num_labels is not None and not getattr(loss, "takes_label_sets", False):
            raise ValueError(f"num_labels={num_labels}: {type(loss).__name__} takes no label sets")
        drawn = getattr(loss, "triplets_per_anchor", "all")
        if miner is None and drawn != "all":
            raise ValueError(
                f"triplets_per_anchor={drawn!r} has no meaning within a memory, which names the pairs; "
                "leave it at 'all' or give the memory a miner"
            )
        self.loss = loss
        self.miner = miner
        self.memory_size = memory_size
        self.entered = 0
        self.register_buffer("memory", torch.zeros(memory_size, embedding_size))
        shape, dtype = ((), torch.long) if num_labels is None else ((num_labels,), torch.bool)
        self.register_buffer("memory_labels", torch.zeros(memory_size, *shape, dtype=dtype))

    def forward(
        self,
        embeddings: Float[Tensor, "N D"],
        labels: Labels | LabelSets,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Float[Tensor, "M D"] | None = None,
        ref_labels: Int[Tensor, " M"] | Bool[Tensor, "M L"] | None = None,
    ) -> Scalar:
        """The loss of batch against memory; `indices_tuple` adds pairs within the batch, also in evaluation.

        Raises:
            ValueError: `ref_emb` is given, a batch larger than the memory, or a shape that does not fit.
        """
        check_batch(embeddings, labels, ref_emb, ref_labels, takes_label_sets=True)
        check_alike(self.memory_labels, labels, "labels", "those of the memory (num_labels)")
        if indices_tuple is not None:
            check_indices(indices_tuple)
        if ref_emb is not None:
            raise ValueError("CrossBatchMemory brings its own references and takes no ref_emb")
        if len(embeddings) > self.memory_size:
            raise ValueError(f"a batch of {len(embeddings)} does not fit into memory_size={self.memory_size}")
        places = self._enter(embeddings.detach(), labels) if self.training else None
        memory, memory_labels = self._entered()
        memory = memory.to(embeddings.dtype)
        if len(memory) == 0 and indices_tuple is None:
            return (embeddings * 0).sum()
        chosen = self._choose(embeddings, labels, memory, memory_labels, places)
        if indices_tuple is not None:
            if places is None:  # in evaluation, append the batch to the memory for its own pairs only
                places = len(memory) + torch.arange(len(labels), device=labels.device)
                memory, memory_labels = torch.cat([memory, embeddings.detach()]), torch.cat([memory_labels, labels])
            if len(chosen) != len(indices_tuple):
                chosen, indices_tuple = as_pairs(chosen), as_pairs(indices_tuple)
            a, p, *rest = indices_tuple
            within = (a, places[p], *rest[:-1], places[rest[-1]])
            chosen = tuple(torch.cat(parts) for parts in zip(chosen, within, strict=True))
        return self.loss(embeddings, labels, chosen, memory, memory_labels)

    @torch.compiler.disable  # `entered` changes each step and would cause a recompilation
    def _enter(self, embeddings: Float[Tensor, "N D"], labels: Labels | LabelSets) -> Int[Tensor, " N"]:
        """Write the batch over the oldest entries and return its positions."""
        places = (self.entered + torch.arange(len(labels), device=labels.device)) % self.memory_size
        self.memory[places] = embeddings.to(self.memory.dtype)
        self.memory_labels[places] = labels.to(self.memory_labels.dtype)
        self.entered += len(labels)
        return places

    @torch.compiler.disable
    def _entered(self) -> tuple[Float[Tensor, "M D"], Labels | LabelSets]:
        """A copy of what the memory holds."""
        size = min(self.entered, self.memory_size)
        return self.memory[:size].clone(), self.memory_labels[:size].clone()

    def _choose(
        self,
        embeddings: Float[Tensor, "N D"],
        labels: Labels | LabelSets,
        memory: Float[Tensor, "M D"],
        memory_labels: Labels | LabelSets,
        places: Int[Tensor, " N"] | None,
    ) -> IndicesTuple:
        """What to compare, without each sample with itself."""
        if self.miner is None or len(memory) == 0:
            same = matches(labels, memory_labels, places)
            masks = PairMasks(same, ~same)
            if places is not None:
                same.scatter_(1, places[:, None], False)
            return masks if isinstance(self.loss, MetricLoss) else as_pairs(masks)
        takes_places = "places" in signature(self.miner.forward).parameters
        told = {"places": places} if takes_places else {}
        chosen: IndicesTuple = self.miner(embeddings, labels, memory, memory_labels, **told)
        if places is None or takes_places:
            return chosen
        kept = chosen[1] != places[chosen[0]]
        if len(chosen) == 3:
            return tuple(indices[kept] for indices in chosen)
        return chosen[0][kept], chosen[1][kept], chosen[2], chosen[3]

    def get_extra_state(self) -> int:
        return self.entered

    def set_extra_state(self, state: int) -> None:
        self.entered = state
