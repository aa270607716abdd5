"""Nearest neighbours from a bfloat16 or faiss first pass whose candidates are decided in float32.

Shapes: Q queries, G gallery items, B queries of one block, C candidates, K neighbours, D dimensions.
"""

import time
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from levelfield.metrics.ranking import largest

# Gathered candidates of so many values stay in the processor's cache.
GATHERED_VALUES = 2**18


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 matrices natively (AVX512-BF16 or AMX), and faster than float32."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    is_native = device.type == "cpu" and any(getattr(torch.cpu, probe, bool)() for probe in probes)
    return is_native and product_seconds(torch.bfloat16) < 0.8 * product_seconds(torch.float32)


@cache
def product_seconds(dtype: torch.dtype) -> float:
    """The least processor time of a product of milliseconds, taken once a process: oneDNN's settings decide too."""
    rows, columns = torch.ones(256, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
    times = []
    for _ in range(4):
        begin = time.process_time()
        torch.mm(rows, columns.T)
        times.append(time.process_time() - begin)
    return min(times)


@dataclass(frozen=True)
class Candidates:
    """What a first pass found, ordered by inner products of the float32 vectors, equal ones by index.

    Attributes:
        items_BC: the candidates.
        values_BC: their inner products, -inf for the query itself.
        ceiling_B: what no item outside the candidates exceeds.
        rounding: two values that are further apart are in the same order in any float32 product: twice what its sum of
            D products of unit vectors' coordinates may differ from the exact one, and this one's products from theirs.
    """

    items_BC: Int64[Tensor, "block candidates"]
    values_BC: Float64[Tensor, "block candidates"]
    ceiling_B: Float[Tensor, " block"]
    rounding: float

    def proven(self, hits_BC: Bool[Tensor, "block candidates"], num_neighbors: int) -> Bool[Tensor, " block"]:
        """For which queries the places of the matches among the first `num_neighbors` are those of a whole product."""
        complete_B = self.values_BC[:, num_neighbors - 1] > self.ceiling_B + self.rounding
        is_close_BC = self.values_BC[:, :-1] - self.values_BC[:, 1:] <= self.rounding
        doubtful_BC = is_close_BC & (hits_BC[:, :-1] != hits_BC[:, 1:])
        return complete_B & ~doubtful_BC[:, :num_neighbors].any(dim=1)


class Bfloat16Gallery:
    """Items to retrieve from, ready for a bfloat16 first pass.

    Args:
        gallery_GD: (G, D) float32 rows of length 1 or 0.
    """

    def __init__(self, gallery_GD: Float[Tensor, "gallery dim"]) -> None:
        self.exact_GD = gallery_GD
        self.coarse_GD = gallery_GD.bfloat16()
        # Fresh memory for each block would cost as much as the product, in page faults.
        self.buffer_BG = self.coarse_GD.new_empty((0, len(gallery_GD)))
        self.largest_error = max(
            float((exact - coarse.float()).norm(dim=1).max())
            for exact, coarse in zip(gallery_GD.split(8192), self.coarse_GD.split(8192), strict=True)
        )

    def candidates(
        self, queries_BD: Float[Tensor, "block dim"], num_neighbors: int, self_index_B: Int64[Tensor, " block"] | None
    ) -> Candidates:
        """More than `num_neighbors` of the nearest items.

        A query's inner products differ from their bfloat16 version by at most |q - q'| |g| + |q'| |g - g'| plus the
        rounding of the result.
        """
        num_candidates = min(max(32, num_neighbors + num_neighbors // 2 + 8), len(self.coarse_GD))
        coarse_BD = queries_BD.bfloat16()
        if len(self.buffer_BG) < len(coarse_BD):
            self.buffer_BG = self.coarse_GD.new_empty((len(coarse_BD), len(self.coarse_GD)))
        coarse_BG = self.buffer_BG[: len(coarse_BD)]
        torch.mm(coarse_BD, self.coarse_GD.T, out=coarse_BG)
        if self_index_B is not None:
            coarse_BG.scatter_(1, self_index_B[:, None], -torch.inf)
        coarse_BC, candidates_BC = largest(coarse_BG, num_candidates)
        floor_B = coarse_BC[:, -1].float()
        query_error_B = (queries_BD - coarse_BD.float()).norm(dim=1)
        accumulation = 2 * queries_BD.shape[1] * 2.0**-24
        error_B = query_error_B + 1.005 * self.largest_error + floor_B.abs() * 2.0**-8 + accumulation
        return decide(queries_BD, self.exact_GD, candidates_BC, floor_B + error_B, self_index_B)


class FaissGallery:
    """Items to retrieve from in an exact faiss index, which searches on its own threads.

    Args:
        gallery_GD: (G, D) float32 rows of length 1 or 0.

    Raises:
        ImportError: faiss is not installed.
    """

    def __init__(self, gallery_GD: Float[Tensor, "gallery dim"]) -> None:
        import faiss  # an optional extra

        self.exact_GD = gallery_GD
        self.index = faiss.IndexFlatIP(gallery_GD.shape[1])
        self.index.add(gallery_GD.cpu().numpy())

    def candidates(
        self, queries_BD: Float[Tensor, "block dim"], num_neighbors: int, self_index_B: Int64[Tensor, " block"] | None
    ) -> Candidates:
        """More than `num_neighbors` of the nearest items."""
        num_candidates = min(num_neighbors + 16, len(self.exact_GD))
        coarse, candidates = self.index.search(queries_BD.cpu().numpy(), num_candidates)
        device = queries_BD.device
        ceiling_B = torch.from_numpy(coarse[:, -1]).to(device) + 2 * queries_BD.shape[1] * 2.0**-24
        return decide(queries_BD, self.exact_GD, torch.from_numpy(candidates).to(device), ceiling_B, self_index_B)


def decide(
    queries_BD: Float[Tensor, "block dim"],
    gallery_GD: Float[Tensor, "gallery dim"],
    candidates_BC: Int64[Tensor, "block candidates"],
    ceiling_B: Float[Tensor, " block"],
    self_index_B: Int64[Tensor, " block"] | None,
) -> Candidates:
    """Order candidates; the ceiling falls away where they are all that there is."""
    num_candidates, dim = candidates_BC.shape[1], gallery_GD.shape[1]
    candidates_BC = candidates_BC.sort(dim=1).values
    similarities_BC = queries_BD.new_empty(candidates_BC.shape, dtype=torch.float64)
    rows = max(1, GATHERED_VALUES // (num_candidates * dim))
    for start in range(0, len(candidates_BC), rows):
        here = slice(start, start + rows)
        gathered = gallery_GD.index_select(0, candidates_BC[here].flatten()).view(-1, num_candidates, dim)
        # Not a matrix product: its rounding depends on a candidate's place, and duplicates would not tie.
        similarities_BC[here] = gathered.mul_(queries_BD[here, None]).sum(dim=2, dtype=torch.float64)
    if self_index_B is not None:
        similarities_BC.masked_fill_(candidates_BC == self_index_B[:, None], -torch.inf)
    values_BC, order_BC = similarities_BC.sort(dim=1, descending=True, stable=True)
    if num_candidates == len(gallery_GD):
        ceiling_B = torch.full_like(ceiling_B, -torch.inf)
    return Candidates(candidates_BC.gather(1, order_BC), values_BC, ceiling_B, 2 * (dim + 2) * 2.0**-24)
