"""What the search suggested, kept in the study's folder: one process asks, the others read."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.storage.atomic import read_json, write_json
from levelfield.storage.lock import Lock
from levelfield.storage.provenance import computing_files, library_versions
from levelfield.study.search.space import Space
from levelfield.study.search.suggest import Trial, suggest

SUGGESTIONS = "suggestions"


class AskedOnce:
    """`suggest` for the processes that share a study: a Gaussian process takes as long as a short training.

    A suggestion is kept with a digest of all that it follows from. Where that is another, as after a result was
    deleted, it is asked for again.

    Args:
        folder: The study's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, space: Space, finished: Sequence[Trial], number: int, seed: int, method: str, sampler: str
    ) -> dict[str, Any]:
        """The arguments and the suggestion are those of `suggest`."""
        if not space:
            return {}
        asked = (space, finished, number, seed, method, sampler)
        origin = hashlib.sha256(repr((asked, library_versions(), computing_files())).encode()).hexdigest()
        part = Path(SUGGESTIONS, method, f"trial{number}")
        file = self._folder / part.with_suffix(".json")
        found = _read(file, origin)
        if found is not None:
            return found
        with Lock(self._folder, part, f"{method} trial {number}: what to try"):
            found = _read(file, origin)
            if found is None:
                found = suggest(*asked)
                write_json(file, {"origin": origin, "parameters": found})
        return found


def _read(file: Path, origin: str) -> dict[str, Any] | None:
    """A suggestion that was kept; None where there is none, or one that follows from something else."""
    content = read_json(file)
    return content["parameters"] if isinstance(content, dict) and content.get("origin") == origin else None
