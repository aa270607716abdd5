"""Similarities by which neighbours are ranked: cosine, Euclidean, Hamming. Larger is nearer, float32.

Shapes: B queries of one block, G gallery items, D dimensions, Y bytes of packed bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Num, UInt8
from torch import Tensor

# Matrix products of fewer rows may round differently from those of larger blocks.
MIN_BLOCK = 32
# Gallery items whose bits are unpacked at a time.
UNPACKED_ITEMS = 4096


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in true float32, whatever autocast and `torch.set_float32_matmul_precision` say outside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"]
) -> Float[Tensor, "block gallery"]:
    """Inner products, rounded the same whatever the number of rows on either side."""
    num_queries, num_gallery = len(queries_BD), len(gallery_GD)
    queries_BD = torch.nn.functional.pad(queries_BD, (0, 0, 0, max(0, MIN_BLOCK - num_queries)))
    gallery_GD = torch.nn.functional.pad(gallery_GD, (0, 0, 0, max(0, MIN_BLOCK - num_gallery)))
    return (queries_BD @ gallery_GD.T)[:num_queries, :num_gallery]


def euclidean_similarity(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"]
) -> Float[Tensor, "block gallery"]:
    """-|q - g|^2 / 2. The products are in float64: large norms would cancel most of float32's digits."""
    queries_BD, gallery_GD = queries_BD.double(), gallery_GD.double()
    products_BG = product(queries_BD, gallery_GD)
    products_BG -= queries_BD.square().sum(dim=1, keepdim=True) / 2
    products_BG -= gallery_GD.square().sum(dim=1) / 2
    return products_BG.float()


def pack_bits(embeddings_GD: Float[Tensor, "items dim"]) -> UInt8[Tensor, "items bytes"]:
    """Signs of the embeddings, eight to a byte: ceil(D / 8) bytes an item where float32 takes 4 D; 0 counts as not set.

    Source: Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019 (threshold at zero).
    """
    bits_GD = (embeddings_GD > 0).to(torch.uint8)
    bits_GY8 = torch.nn.functional.pad(bits_GD, (0, -bits_GD.shape[1] % 8)).unflatten(1, (-1, 8))
    return (bits_GY8 << torch.arange(8, dtype=torch.uint8, device=bits_GD.device)).sum(dim=2, dtype=torch.uint8)


def hamming_similarity(
    queries_BY: UInt8[Tensor, "block bytes"], gallery_GY: UInt8[Tensor, "gallery bytes"]
) -> Float[Tensor, "block gallery"]:
    """8 Y - 2 x (number of different bits), exact; the gallery stays packed but for a few thousand items at a time."""
    signs_BD = unpack_signs(queries_BY)
    tiles = [product(signs_BD, unpack_signs(tile)) for tile in gallery_GY.split(UNPACKED_ITEMS)]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)


def unpack_signs(packed_GY: UInt8[Tensor, "items bytes"]) -> Float[Tensor, "items bits"]:
    """1 for a bit that is set, -1 for one that is not."""
    shifts_8 = torch.arange(8, dtype=torch.uint8, device=packed_GY.device)
    return ((packed_GY[:, :, None] >> shifts_8 & 1).flatten(1)).float().mul_(2).sub_(1)


def normalize(embeddings: Num[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """Rows of length 1 in float32; a row of zeros stays zero."""
    return torch.nn.functional.normalize(embeddings.detach().float(), dim=1)


def raw(embeddings: Num[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """The embeddings as they are, in float32."""
    return embeddings.detach().float()


def packed(embeddings: Num[Tensor, "items dim"]) -> UInt8[Tensor, "items bytes"]:
    """Packed bits; uint8 is taken to be packed already."""
    return embeddings if embeddings.dtype == torch.uint8 else pack_bits(embeddings.detach())


# How embeddings are held, and the similarity of two sets held so.
DISTANCES = {
    "cosine": (normalize, product),
    "euclidean": (raw, euclidean_similarity),
    "hamming": (packed, hamming_similarity),
}
