"""Similarities by which neighbours are ranked: cosine, Euclidean, Hamming, Poincare. Larger is nearer, float32.

Shapes: B queries of one block, G gallery items, D dimensions, Y bytes of packed bits, T items of one tile,
R rows of one.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, Num, UInt8
from torch import Tensor

from levelfield.core.labels import check_alike, check_labels
from levelfield.core.numerics import CLIP_RADIUS, CURVATURE, in_ball, true_float32, unit

# The similarity of two sets in the form of a distance, written into `out` if given.
Similarity = Callable[..., Tensor]
# Matrix products of fewer rows may round differently from those of larger blocks.
MIN_BLOCK = 32
# Items at a time whose bits are unpacked, or whose float64 products are computed.
TILE = 4096
# Squared distances below this share of the squares of the points are 0: float32 points differ in the last digit only.
COINCIDENT = 2.0**-46


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute products in true float32, whatever autocast and torch's precision settings are."""
    with true_float32(), torch.autocast(device.type, enabled=False):
        yield


def product(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"], out: Tensor | None = None
) -> Float[Tensor, "block gallery"]:
    """Inner products, rounded the same whatever the number of rows on either side."""
    num_queries, num_gallery = len(queries_BD), len(gallery_GD)
    if min(num_queries, num_gallery) >= MIN_BLOCK:
        return torch.mm(queries_BD, gallery_GD.T, out=out)
    queries_BD = torch.nn.functional.pad(queries_BD, (0, 0, 0, max(0, MIN_BLOCK - num_queries)))
    gallery_GD = torch.nn.functional.pad(gallery_GD, (0, 0, 0, max(0, MIN_BLOCK - num_gallery)))
    products_BG = (queries_BD @ gallery_GD.T)[:num_queries, :num_gallery]
    return products_BG if out is None else out.copy_(products_BG)


def euclidean_similarity(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"], out: Tensor | None = None
) -> Float[Tensor, "block gallery"]:
    """-|q - g|^2 / 2. The products are in float64: large norms would cancel most of float32's digits."""
    queries_BD = queries_BD.double()
    half_norms_B1 = queries_BD.square().sum(dim=1, keepdim=True) / 2

    def tile(gallery_TD: Tensor) -> Tensor:
        gallery_TD = gallery_TD.double()
        products_BT = product(queries_BD, gallery_TD)
        return products_BT.sub_(half_norms_B1).sub_(gallery_TD.square().sum(dim=1) / 2)

    return by_tiles(tile, len(queries_BD), gallery_GD, out)


def poincare_similarity(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"], out: Tensor | None = None
) -> Float[Tensor, "block gallery"]:
    """Minus the Poincare distance in the unit ball, 2 / sqrt(c) asinh sqrt(|q - g|^2 / ((1 - |q|^2) (1 - |g|^2)))."""
    queries_BD = queries_BD.double()
    squares_B1 = queries_BD.square().sum(dim=1, keepdim=True)

    def tile(gallery_TD: Tensor) -> Tensor:
        gallery_TD = gallery_TD.double()
        squares_T = gallery_TD.square().sum(dim=1)
        both_BT = squares_B1 + squares_T
        apart_BT = both_BT.sub(product(queries_BD, gallery_TD), alpha=2)
        apart_BT.masked_fill_(apart_BT < both_BT.mul_(COINCIDENT), 0)  # equal points stay equal despite rounding
        rooms_BT = (1 - squares_B1) * (1 - squares_T)
        return apart_BT.div_(rooms_BT).sqrt_().asinh_().mul_(-2 / math.sqrt(CURVATURE))

    return by_tiles(tile, len(queries_BD), gallery_GD, out)


def pack_bits(embeddings_GD: Float[Tensor, "items dim"]) -> UInt8[Tensor, "items bytes"]:
    """Signs of the embeddings, eight in a byte: ceil(D / 8) bytes an item instead of 4 D; 0 counts as not set.

    Source: Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019 (threshold at zero).
    """
    bits_GD = (embeddings_GD > 0).to(torch.uint8)
    bits_GY8 = torch.nn.functional.pad(bits_GD, (0, -bits_GD.shape[1] % 8)).unflatten(1, (-1, 8))
    return (bits_GY8 << torch.arange(8, dtype=torch.uint8, device=bits_GD.device)).sum(dim=2, dtype=torch.uint8)


def hamming_similarity(
    queries_BY: UInt8[Tensor, "block bytes"], gallery_GY: UInt8[Tensor, "gallery bytes"], out: Tensor | None = None
) -> Float[Tensor, "block gallery"]:
    """8 Y - 2 x (number of different bits), exact. Only a tile of the gallery is unpacked at a time."""
    signs_BD = unpack_signs(queries_BY)
    return by_tiles(lambda tile_TY: product(signs_BD, unpack_signs(tile_TY)), len(queries_BY), gallery_GY, out)


def by_tiles(
    similarity_to: Callable[[Tensor], Tensor],
    num_queries: int,
    gallery_GD: Num[Tensor, "gallery dim"],
    out: Tensor | None,
) -> Float[Tensor, "block gallery"]:
    """Float32 similarities, computed for a tile of gallery items at a time to save memory."""
    num_gallery = len(gallery_GD)
    if out is None:
        out = torch.empty((num_queries, num_gallery), dtype=torch.float32, device=gallery_GD.device)
    num_tiles = max(1, num_gallery // TILE)
    edges = [num_gallery * i // num_tiles for i in range(num_tiles + 1)]
    for start, stop in pairwise(edges):
        out[:, start:stop] = similarity_to(gallery_GD[start:stop])
    return out


def unpack_signs(packed_GY: UInt8[Tensor, "items bytes"]) -> Float[Tensor, "items bits"]:
    """1 for a bit that is set, -1 for one that is not."""
    shifts_8 = torch.arange(8, dtype=torch.uint8, device=packed_GY.device)
    return ((packed_GY[:, :, None] >> shifts_8 & 1).flatten(1)).float().mul_(2).sub_(1)


def normalize(embeddings: Num[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """Rows of length 1 in float32, whatever their scale; a row of zeros stays zero."""
    directions_ND = torch.empty(embeddings.shape, dtype=torch.float32, device=embeddings.device)
    for rows_RD, directions_RD in zip(embeddings.detach().split(TILE), directions_ND.split(TILE), strict=True):
        if rows_RD.dtype == torch.float64:  # squares of its largest numbers would be infinite
            rows_RD = rows_RD / rows_RD.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        directions_RD.copy_(unit(rows_RD if rows_RD.dtype == torch.float64 else rows_RD.float()))
    return directions_ND


def raw(embeddings: Num[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """The embeddings in float32, not normalised."""
    return embeddings.detach().float()


def points_of_ball(embeddings: Num[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """The embeddings in the Poincare ball of unit radius, in float32, whatever their scale (`in_ball`)."""
    points_ND = torch.empty(embeddings.shape, dtype=torch.float32, device=embeddings.device)
    for rows_RD, points_RD in zip(embeddings.detach().split(TILE), points_ND.split(TILE), strict=True):
        rows_RD = rows_RD.double()
        # Squares of the largest numbers would be infinite. Divided rows are still long enough to be clipped.
        beyond_R1 = (rows_RD.abs().amax(dim=1, keepdim=True) / CLIP_RADIUS).clamp_min(1)
        points_RD.copy_(in_ball(rows_RD / beyond_R1))
    return points_ND


def at_one_scale(*sets: Float[Tensor, "items dim"]) -> list[Float[Tensor, "items dim"]]:
    """The sets times one power of two, if squared differences might not fit float32. The ranking does not change."""
    largest = max(float(embeddings.abs().max()) for embeddings in sets)
    if largest == 0 or 2.0**-20 < largest < 2.0**50:
        return list(sets)
    exponent = min(max(math.frexp(largest)[1], -1000), 1000)
    return [embeddings.double() * 2.0**-exponent for embeddings in sets]


def packed(embeddings: Num[Tensor, "items dim"]) -> UInt8[Tensor, "items bytes"]:
    """Packed bits; uint8 counts as packed already."""
    return embeddings if embeddings.dtype == torch.uint8 else pack_bits(embeddings.detach())


# How embeddings are prepared, and the similarity of two prepared sets.
DISTANCES = {
    "cosine": (normalize, product),
    "euclidean": (raw, euclidean_similarity),
    "hamming": (packed, hamming_similarity),
    "poincare": (points_of_ball, poincare_similarity),
}


def check_sets(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    distance: str,
    takes_sets: bool = False,
) -> None:
    """Raise ValueError unless the sets can be compared by this distance; without a gallery, the first with itself."""
    if distance not in DISTANCES:
        raise ValueError(f"no such distance {distance!r}; known are {', '.join(DISTANCES)}")
    check = partial(check_embeddings, packed=distance == "hamming", takes_sets=takes_sets)
    check(embeddings, labels)
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither")
    if gallery is None or gallery_labels is None:
        return
    check(gallery, gallery_labels, "gallery", "gallery_labels")
    check_alike(labels, gallery_labels, "gallery_labels")
    of_bits = [each.dtype == torch.uint8 for each in (embeddings, gallery)]
    if gallery.shape[1] != embeddings.shape[1] or of_bits[0] != of_bits[1]:
        raise ValueError(
            f"gallery is {gallery.dtype} of {gallery.shape[1]} dimensions, "
            f"embeddings are {embeddings.dtype} of {embeddings.shape[1]} dimensions"
        )
    if gallery.device != embeddings.device:
        raise ValueError(f"gallery is on {gallery.device}, embeddings are on {embeddings.device}")


def check_embeddings(
    embeddings: Tensor,
    labels: Tensor,
    name: str = "embeddings",
    labels_name: str = "labels",
    *,
    packed: bool = False,
    takes_sets: bool = False,
    look: bool = True,
) -> None:
    """Raise ValueError unless `embeddings` is a finite (N, D) float tensor (or packed bits) with N labels.

    Without `look` the values are not read, for which a GPU would have to finish.
    """
    is_valid_type = embeddings.is_floating_point() or (packed and embeddings.dtype == torch.uint8)
    if embeddings.ndim != 2 or not is_valid_type:
        raise ValueError(
            f"{name} must be floating point of shape (N, D), not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
        check_labels(labels, len(embeddings), labels_name, name, takes_sets)
    if embeddings.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(embeddings.shape)}")
    if embeddings.device != labels.device:
        raise ValueError(f"{name} are on {embeddings.device}, {labels_name} are on {labels.device}")
    if look and not (finite_N := torch.isfinite(embeddings).all(dim=1)).all():
        row = int((~finite_N).nonzero()[0])
        raise ValueError(
            f"{int((~finite_N).sum())} of {len(embeddings)} {name} have NaN or infinite values, the first is row {row}"
        )


def prepared_sets(*given: Num[Tensor, "items dim"] | None, distance: str) -> list[Num[Tensor, "items dim"]]:
    """The sets that are not None, as the distance compares them."""
    prepare, _ = DISTANCES[distance]
    sets = [each for each in given if each is not None]
    return [prepare(each) for each in (at_one_scale(*sets) if distance == "euclidean" else sets)]
