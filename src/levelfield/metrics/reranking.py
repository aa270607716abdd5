"""Re-ranking by the neighbours of neighbours: cosine, in bounded memory.

It takes queries and gallery as unit vectors and returns what is ranked instead of them. If the queries are the items of
the gallery, a query is not its own neighbour, but it may be a neighbour of other items.

Shapes: N queries, G gallery items, M items of both (or G where they are the same), B rows of one block, K neighbours,
D dimensions, E entries of a sparse matrix.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from levelfield.metrics.distances import product
from levelfield.metrics.nearest import nearest

# Name of the re-ranking on the command line.
NAME = "k_reciprocal"
# Values of a block's temporaries.
BLOCK_VALUES = 2**22


class Reranked(NamedTuple):
    """What is ranked instead of queries and gallery, and their similarity; larger is nearer, as in `DISTANCES`."""

    queries_ND: Num[Tensor, "queries any"]
    gallery_GD: Num[Tensor, "gallery any"]
    similarity: Callable[..., Tensor]


@dataclass(frozen=True)
class KReciprocal:
    """Re-ranking: two items are near if they are among each other's nearest and share such neighbours.

        d* = (1 - weight) d_J + weight d    d = 1 - cosine
        d_J = 1 - sum min(V_p, V_g) / sum max(V_p, V_g)

    V_p is exp(-d) on R*(p), averaged over the k2 nearest of p. R*(p) are the items among the k1 nearest of p that have
    p among theirs, R(p, k1), with R(q, k1/2) of each such q if two thirds of it are in R(p, k1). As in the authors'
    program an item is its own first neighbour: in addition to the k1, and one of the k2. Neighbours are searched among
    queries and gallery together, so queries other than p take part. As in the paper, and unlike in the program, V_p is
    not divided by its sum, nor d by its maximum.

    Cost: the similarities of all pairs, and for each query some thousand sums. When: classes have many items, k1
    of them or more.

    Args:
        k1: how many neighbours may be reciprocal.
        k2: number of items over which V is averaged; 1 for only itself.
        weight: weight of the plain distance, lambda in the paper.

    Paper: Zhong et al. 2017, "Re-ranking Person Re-identification with k-reciprocal Encoding", arXiv:1701.08398.
    """

    k1: int = 20
    k2: int = 6
    weight: float = 0.3

    def __post_init__(self) -> None:
        if self.k1 < 1 or not 1 <= self.k2 <= self.k1 + 1 or not 0 <= self.weight <= 1:
            raise ValueError(f"{self}: give a k1 of at least 1, a k2 from 1 to k1 + 1, and a weight from 0 to 1")

    def __str__(self) -> str:
        """As `parse_reranking` reads it, with all settings."""
        return f"{NAME}:{','.join(f'{key}={value:g}' for key, value in asdict(self).items())}"

    def __call__(
        self,
        queries_ND: Float[Tensor, "queries dim"],
        gallery_GD: Float[Tensor, "gallery dim"],
        excludes_self: bool,
        memory_budget: int,
    ) -> Reranked:
        rows_MD = gallery_GD if excludes_self else torch.cat([queries_ND, gallery_GD])
        num_queries = 0 if excludes_self else len(queries_ND)
        itself_M = torch.arange(len(rows_MD), device=rows_MD.device)
        _, others_MK = nearest(rows_MD, rows_MD, self.k1, itself_M, memory_budget=memory_budget)
        itself_M1 = itself_M[:, None]
        encoded = Encoded(rows_MD, torch.cat([itself_M1, others_MK], dim=1), self)
        items_M1 = itself_M1 if excludes_self else itself_M1[num_queries:]
        return Reranked(itself_M1[: len(queries_ND)], items_M1, encoded.similarity)


class Encoded:
    """The vectors V of all items, sparse, and the distances d* between them."""

    def __init__(
        self, rows_MD: Float[Tensor, "items dim"], neighbors_MK: Int64[Tensor, "items neighbors"], settings: KReciprocal
    ) -> None:
        from scipy.sparse import csr_array

        self.rows_MD, self.weight = rows_MD, settings.weight
        num_items = len(rows_MD)
        places = [each.cpu().numpy() for each in expanded(neighbors_MK, settings.k1)]
        own = csr_array((np.ones(len(places[0])), (places[0], places[1])), shape=(num_items, num_items))
        own.sum_duplicates()
        rows_E = np.repeat(np.arange(num_items), np.diff(own.indptr))
        own.data = np.exp(_cosines(rows_MD, rows_E, own.indices) - 1)
        if settings.k2 > 1:
            kept = neighbors_MK[:, : settings.k2].cpu().numpy()
            starts = np.arange(num_items + 1) * kept.shape[1]
            own = csr_array((np.full(kept.size, 1 / kept.shape[1]), kept.ravel(), starts), shape=own.shape) @ own
        self.vectors, self.holders = own, own.T.tocsr()
        self.sums_M = np.asarray(own.sum(axis=1)).ravel()

    def similarity(
        self, queries_B1: Int64[Tensor, "block 1"], items_G1: Int64[Tensor, "gallery 1"], out: Tensor | None = None
    ) -> Float[Tensor, "block gallery"]:
        """-d* of items by their numbers, float32."""
        queries_B, items_G = queries_B1[:, 0], items_G1[:, 0]
        cosines_BG = product(self.rows_MD[queries_B], self.rows_MD[items_G])
        if out is None:
            out = torch.empty_like(cosines_BG)
        asked_G = items_G.cpu().numpy()
        for row, query in enumerate(queries_B.tolist()):
            shared_G = self._shared(query)[asked_G]
            jaccard_G = 1 - shared_G / (self.sums_M[query] + self.sums_M[asked_G] - shared_G)
            distances_G = 1 - cosines_BG[row].double()
            jaccard = torch.from_numpy(jaccard_G).to(distances_G.device)
            out[row] = -((1 - self.weight) * jaccard + self.weight * distances_G)
        return out

    def _shared(self, query: int) -> Float[np.ndarray, " items"]:
        """sum min(V_p, V_g) of item p and each item g. Only items that share an entry with p are visited."""
        here = slice(self.vectors.indptr[query], self.vectors.indptr[query + 1])
        columns, values = self.vectors.indices[here], self.vectors.data[here]
        starts, stops = self.holders.indptr[columns], self.holders.indptr[columns + 1]
        lengths = stops - starts
        places_E = np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)
        least_E = np.minimum(self.holders.data[places_E], np.repeat(values, lengths))
        return np.bincount(self.holders.indices[places_E], least_E, minlength=len(self.sums_M))


def parse_reranking(text: str) -> KReciprocal:
    """`k_reciprocal`, with settings or without: `k_reciprocal:k1=10,k2=4`.

    Raises:
        ValueError: an unknown name or setting, or an invalid value.
    """
    name, _, given = text.partition(":")
    if name != NAME:
        raise ValueError(f"no re-ranking {name!r}; there is {NAME}")
    types = {field.name: int if isinstance(field.default, int) else float for field in fields(KReciprocal)}
    settings: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        key, _, value = part.partition("=")
        if key not in types:
            raise ValueError(f"{name} has no setting {key!r}; it has {', '.join(types)}")
        try:
            settings[key] = types[key](value)
        except ValueError:
            raise ValueError(f"{name}: {key}={value} is no {'whole ' * (types[key] is int)}number") from None
    return KReciprocal(**settings)


def expanded(
    neighbors_MK: Int64[Tensor, "items neighbors"], k1: int
) -> tuple[Int64[Tensor, " entries"], Int64[Tensor, " entries"]]:
    """Items and the members of their R*, some repeated; a row of `neighbors_MK` is an item and its k1 nearest."""
    half_MH = neighbors_MK[:, : k1 // 2 + 1]
    within_MK, half_within_MH = reciprocal(neighbors_MK), reciprocal(half_MH)
    items, members = [], []
    width = neighbors_MK.shape[1]
    for rows_B in torch.arange(len(neighbors_MK), device=neighbors_MK.device).split(
        max(1, BLOCK_VALUES // (width * width * half_MH.shape[1]))
    ):
        own_BK, is_own_BK = neighbors_MK[rows_B], within_MK[rows_B]
        further_BKH, is_further_BKH = half_MH[own_BK], half_within_MH[own_BK]
        is_shared_BKH = ((further_BKH[..., None] == own_BK[:, None, None]) & is_own_BK[:, None, None]).any(-1)
        num_shared_BK = (is_shared_BKH & is_further_BKH).sum(-1)
        joins_BK = is_own_BK & (3 * num_shared_BK >= 2 * is_further_BKH.sum(-1))
        for found, is_found in ((own_BK, is_own_BK), (further_BKH, is_further_BKH & joins_BK[..., None])):
            places = is_found.nonzero()
            items.append(rows_B[places[:, 0]])
            members.append(found[is_found])
    return torch.cat(items), torch.cat(members)


def reciprocal(neighbors_MK: Int64[Tensor, "items neighbors"]) -> Bool[Tensor, "items neighbors"]:
    """Which of each item's neighbours have the item among theirs."""
    numbers_M = torch.arange(len(neighbors_MK), device=neighbors_MK.device)
    blocks = numbers_M.split(max(1, BLOCK_VALUES // neighbors_MK.shape[1] ** 2))
    return torch.cat([(neighbors_MK[neighbors_MK[rows_B]] == rows_B[:, None, None]).any(-1) for rows_B in blocks])


def _cosines(
    rows_MD: Float[Tensor, "items dim"], one_E: np.ndarray, other_E: np.ndarray
) -> Float[np.ndarray, " pairs"]:
    found = []
    room = max(1, BLOCK_VALUES // rows_MD.shape[1])
    for start in range(0, len(one_E), room):
        pair = (torch.from_numpy(each[start : start + room]).long().to(rows_MD.device) for each in (one_E, other_E))
        first_PD, second_PD = (rows_MD[each].double() for each in pair)
        found.append((first_PD * second_PD).sum(dim=1).cpu().numpy())
    return np.concatenate(found)
