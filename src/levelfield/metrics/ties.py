"""The order of equal similarities. It depends on no label, so collapsed embeddings score as by chance.

Each item has a place on a circle, a hash of its number. A query ranks equal items in the order of the circle, starting
at its own place. So each item comes first for equally many queries, and sorted labels score like shuffled ones. With
one order for all queries, the class of its first item would decide.

Shapes: N items, B queries of one block.
"""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

# Places on the circle.
CIRCLE = 2**32


def tie_places(num_items: int, device: torch.device) -> Int64[Tensor, " items"]:
    """The places of the items 0, 1, ..., all different: the 32-bit finaliser of MurmurHash3, a bijection.

    Source: Appleby, https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp (`fmix32`).
    """
    places_N = np.arange(num_items, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        places_N = (places_N ^ (places_N >> np.uint32(shift))) * np.uint32(factor)
    return torch.from_numpy(places_N.astype(np.int64)).to(device)


def steps_from(starts_B: Int64[Tensor, " block"], places_N: Int64[Tensor, " items"]) -> Int64[Tensor, "block items"]:
    """How far around the circle each place is from each start."""
    return (places_N - starts_B[:, None]) & (CIRCLE - 1)
