"""The order of equal similarities, written from its definition in whole numbers."""

from functools import lru_cache

import torch


def place_on_circle(number):
    """MurmurHash3's finaliser of 32 bits, as its page prints it."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        number = (number ^ number >> shift) * factor % 2**32
    return number


@lru_cache(maxsize=4)
def around(num_queries, num_gallery, excludes_self):
    """The items of the gallery around the circle from the place of each query."""
    first_query = 0 if excludes_self else num_gallery
    places = torch.tensor([place_on_circle(number) for number in range(first_query + num_queries)])
    return ((places[:num_gallery] - places[first_query:, None]) % 2**32).argsort(dim=1)


def ranked(similarities, excludes_self=True):
    """The items of each row by falling similarity, equal ones around the circle from the query's place on."""
    items = around(*similarities.shape, excludes_self)
    order = similarities.gather(1, items).sort(dim=1, descending=True, stable=True).indices
    return items.gather(1, order)
