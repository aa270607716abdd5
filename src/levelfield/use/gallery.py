"""A gallery for search: its embeddings are computed once and stored; only changes are embedded again.

Shapes: G items of the gallery, D dimensions.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.core.paths import cache_root
from levelfield.data.dataset import find_file
from levelfield.data.images import image_suffixes
from levelfield.metrics.distances import DISTANCES, full_precision
from levelfield.use.encoder import Embedded, Encoder
from levelfield.use.samples import KINDS, Samples, of_texts

# The displayed similarity, by distance.
SHOWN = {"cosine": "cosine", "euclidean": "distance", "hamming": "different bits", "poincare": "distance"}
# Similarities that differ less may have another order on another device.
ROUNDING = 1e-5


class Answer(NamedTuple):
    """An item of the gallery.

    Attributes:
        name: its name in the folder or table; of a text, the text itself.
        label: its class; `""` without one.
        likeness: its cosine to the query, or its distance if the checkpoint has another distance.
        key: the key that opens it.
    """

    name: str
    label: str
    likeness: float
    key: Any


@dataclass(frozen=True)
class Gallery:
    """Samples with their embeddings.

    Attributes:
        samples: in the order of the rows, without those that could not be opened.
        rows_GD: their embeddings, on the CPU.
        file: the index.
        embedded: number of samples that were embedded now instead of read from the index.
        left_out: for each missing sample, why it could not be opened.
        device: where to search.
    """

    samples: Samples
    rows_GD: Float[Tensor, "items dim"]
    file: Path
    embedded: int
    left_out: tuple[str, ...]
    device: torch.device | str = "cpu"
    # The rows on the device, as each distance compares them.
    _held: dict[str, Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        data: str | Path,
        skip_broken: bool = False,
        progress: Callable[[int, int], Any] | None = None,
    ) -> "Gallery":
        """The gallery of a folder, a table or a file of texts; embeddings of unchanged items come from its index.

        The index is in `LEVELFIELD_CACHE`. Each checkpoint has its own. The call embeds new and changed items (files
        with another size or time, other texts) and drops removed items.

        Raises:
            UserError: nothing to search, or an image that cannot be opened.
        """
        from safetensors.torch import save

        samples = encoder.samples(data)
        states = [_state(key) for key in samples.keys]
        file = _index_file(find_file(data, None), encoder)
        known = _read(file)
        wanted = [f"{name}\n{state}" for name, state in zip(samples.names, states, strict=True)]
        new = [place for place, entry in enumerate(wanted) if entry not in known]
        left_out: tuple[str, ...] = ()
        if new:
            added = encoder.embed(
                replace(_chosen(samples, new), labels=None),
                skip_broken=skip_broken,
                progress=progress,
                may_be_none=not known.keys().isdisjoint(wanted),
            )
            known |= {wanted[new[at]]: row for at, row in zip(added.positions, added.embeddings, strict=True)}
            left_out = added.left_out
        kept = [place for place, entry in enumerate(wanted) if entry in known]
        rows = torch.stack([known[wanted[place]] for place in kept])
        if new or len(known) != len({wanted[place] for place in kept}):
            entries = {"entries": json.dumps([wanted[place] for place in kept])}
            write_atomically(file, save({"embeddings": rows.contiguous()}, metadata=entries))
        return cls(_chosen(samples, kept), rows, file, len(new) - len(left_out), left_out, encoder.device)

    def answers(
        self,
        query: Embedded,
        top: int,
        distance: str,
        itself: Path | None = None,
    ) -> list[Answer]:
        """The items nearest to a query, nearest first; equal ones in the order of the gallery.

        Args:
            query: the embedding of one sample.
            distance: `cosine`, `euclidean`, `hamming` or `poincare`.
            itself: the file of the query, which is left out.
        """
        held, similarity = DISTANCES[distance]
        own = {place for place, key in enumerate(self.samples.keys) if itself and _is_same(key, itself)}
        count = min(top + len(own), len(self.rows_GD))
        asked = held(query.embeddings.to(self.device))
        if distance not in self._held:
            self._held[distance] = held(self.rows_GD.to(self.device))
        with full_precision(asked.device):
            every = similarity(asked, self._held[distance])[0]
        least = every.topk(count).values[-1]
        near = (every >= least - ROUNDING * least.abs().clamp(min=1)).nonzero().squeeze(1).cpu()
        # The order and the similarities are those of a CPU, whatever finds the items.
        values = similarity(held(query.embeddings), held(self.rows_GD[near]))[0]
        order = values.argsort(descending=True, stable=True)[:count].tolist()
        found = [(place, float(values[at])) for at in order if (place := int(near[at])) not in own]
        bits = 8 * math.ceil(self.rows_GD.shape[1] / 8)
        shown = {
            "cosine": lambda value: value,
            "euclidean": lambda value: math.sqrt(max(0.0, -2 * value)),
            "hamming": lambda value: (bits - value) / 2,
            "poincare": lambda value: -value,
        }[distance]
        labels = self.samples.labels or ("",) * len(self.samples.names)
        names, keys = self.samples.names, self.samples.keys
        return [Answer(names[at], labels[at], shown(value), keys[at]) for at, value in found[:top]]


def query_of(encoder: Encoder, query: str, gallery: Samples) -> Samples:
    """The query as a sample: an image by its file, or a text.

    Raises:
        UserError: no such image, or an image for a checkpoint of texts.
    """
    path = find_file(query, None)
    is_picture = path.suffix.lower() in image_suffixes() and path.is_file()
    if gallery.modality == "text":
        if is_picture:
            raise UserError(f"--query {query} is an image, but '{encoder.origin}' takes {KINDS['text']}; give a text")
        if not query.strip():
            raise UserError("--query is empty: give a text")
        return of_texts([query], lambda _: "--query")
    if not is_picture:
        what = "not an image" if path.is_file() else "a folder" if path.is_dir() else "not there"
        raise UserError(f"--query {query} is {what}, but '{encoder.origin}' takes {KINDS['image']}; give an image file")
    return Samples((query,), (path,), "image")


def _is_same(item: Path, query: Path) -> bool:
    """Whether an item is the query's file. Another link to the same content is another item."""
    return item.name == query.name and item.parent.resolve() == query.parent.resolve()


def _state(key: Any) -> str:
    """Fingerprint of a file by size and time; none for a text."""
    if not isinstance(key, Path):
        return ""
    try:
        status = os.stat(key)
    except OSError:  # opening it gives the error
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def _index_file(gallery: Path, encoder: Encoder) -> Path:
    """The file of the index in the cache: an index inside somebody's gallery could have other rows."""
    place = gallery.resolve()
    made_by = json.dumps([encoder.hash, repr(encoder.transforms), encoder.batch_size])
    name = f"{place.name}-{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.safetensors"
    return cache_root() / "search" / hashlib.sha256(str(place).encode()).hexdigest()[:16] / name


def _read(file: Path) -> dict[str, Tensor]:
    """The rows of an index by entry; none if it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            entries, rows = json.loads(content.metadata()["entries"]), content.get_tensor("embeddings")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}
    is_whole = rows.ndim == 2 and rows.is_floating_point() and len(rows) == len(entries)
    return dict(zip(entries, rows, strict=True)) if is_whole and torch.isfinite(rows).all() else {}


def _chosen(samples: Samples, places: list[int]) -> Samples:
    return replace(
        samples,
        names=tuple(samples.names[at] for at in places),
        keys=tuple(samples.keys[at] for at in places),
        labels=None if samples.labels is None else tuple(samples.labels[at] for at in places),
    )
