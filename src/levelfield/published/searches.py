"""Published search spaces and optima, as data.

`reality_check_search.json` holds, for each search of the Reality Check (Musgrave et al. 2020), the space, the optimum
and its validation MAP@R. `reality_check_curves.json` holds every trial of the nine searches of one argument whose
scores are public. Losses have the names of `configs/method/`.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def reality_check_searches() -> list[dict[str, Any]]:
    """All searches: data set, batch size, loss, space, optimum, validation MAP@R."""
    text = files("levelfield.published").joinpath("reality_check_search.json").read_text(encoding="utf-8")
    return json.loads(text)["searches"]


def reality_check_search(loss: str, dataset: str, batch_size: int = 32) -> dict[str, Any]:
    """One search.

    Args:
        loss: as in `configs/method/`, e.g. "arcface" or "multi_similarity_miner".
        dataset: "cub200", "cars196" or "sop".
        batch_size: 32, or 256 on "cub200". FastAP at 32 has the published optimum and the space of batch 256, borrowed:
            none was recorded.

    Raises:
        ValueError: there is no such search.

    Example:
        >>> reality_check_search("triplet_margin", "cub200")["space"]
        {'margin': {'scale': 'linear', 'low': -0.2, 'high': 2.0}}
    """
    for search in reality_check_searches():
        if (search["loss"], search["dataset"], search["batch_size"]) == (loss, dataset, batch_size):
            return search
    known = ", ".join(sorted({search["loss"] for search in reality_check_searches()}))
    raise ValueError(
        f"no search of '{loss}' on '{dataset}' at batch size {batch_size}; losses are {known}, data sets cars196, "
        "cub200 and sop at 32, and cub200 at 256"
    )


@lru_cache(maxsize=1)
def reality_check_curves() -> list[dict[str, Any]]:
    """The nine searches of one argument with their trials: what was `tried`, and the `val_map_at_r` it reached.

    Example:
        >>> len(reality_check_curves()[0]["tried"])
        50
    """
    text = files("levelfield.published").joinpath("reality_check_curves.json").read_text(encoding="utf-8")
    return json.loads(text)["curves"]
