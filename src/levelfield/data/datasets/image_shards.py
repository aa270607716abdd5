"""Your own images in tar files, on this machine or in an object store."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.datasets.images import decode_image
from levelfield.data.datasets.shard_index import ShardIndex, shard_index, shards_named
from levelfield.data.datasets.table import number_classes
from levelfield.data.file_parts import is_remote, read_part, version_of
from levelfield.data.index import SampleIndex
from levelfield.data.strings import Keys
from levelfield.errors import UserError


class ImageShards(MetricDataset):
    """Images in tar files as WebDataset writes them: `KEY.jpg` beside `KEY.cls`, or beside a `KEY.json` with a `label`.

    What is in each file is looked up once, in its headers, and kept below `LEVELFIELD_CACHE` until the file changes;
    from then on a picture is read by its place, in any order. Samples are in order of the files' names and of the names
    within, classes in order of their labels: by number where all are whole numbers, else by name.

    Args:
        shards: the tar files, by their numbers in braces (`birds-{000..099}.tar`), or the folder that holds them; with
            `s3://`, `https://` and others in front as fsspec has them.
        root: files that are not there by themselves are sought below it, or below LEVELFIELD_DATA where it is None.

    Raises:
        UserError: from `read_index`, a file that is missing, compressed, cut short or no tar file, or a picture without
            a label.
    """

    name = "image_shards"

    _found: ShardIndex | None = None

    def __init__(self, shards: str | Path, root: str | Path | None = None) -> None:
        self.shards = shards
        self.root = root

    def read_index(self) -> SampleIndex:
        self._found = found = shard_index(shards_named(str(self.shards), self.root))
        labels, class_names = number_classes(found.labels)
        return SampleIndex(found.keys, labels, class_names, left_out=found.left_out)

    def load(self, key: str) -> Image.Image:
        found, position = self._place(key)
        place, start, size = (int(of[position]) for of in (found.shard_of, found.starts, found.sizes))
        shard = found.shards[place]
        if not is_remote(shard) and version_of(shard) != found.versions[place]:
            raise UserError(f"{shard} has changed: start again")
        content = read_part(shard, start, size)
        if len(content) != size:
            raise UserError(f"{shard}: {key} is not there any more: the file has changed, or gives no parts of itself")
        return decode_image(content, f"{shard}: {key}")

    def file_of(self, key: str) -> Path | None:
        found, position = self._place(key)
        shard = found.shards[found.shard_of[position]]
        return None if is_remote(shard) else Path(shard)

    def size_of(self, key: str) -> int:
        found, position = self._place(key)
        return int(found.sizes[position])

    def contents_of(self, keys: Sequence[str]) -> Iterable[int | str]:
        found = self._index_found()
        if isinstance(keys, Keys) and keys.at == found.keys.at:  # without a search for each
            return found.sizes[keys.rows].tolist()
        return super().contents_of(keys)

    def version(self) -> Any:
        return self._index_found().versions

    def _index_found(self) -> ShardIndex:
        if self._found is None:
            self.read_index()
        assert self._found is not None
        return self._found

    def _place(self, key: str) -> tuple[ShardIndex, int]:
        found = self._index_found()
        position = bisect_left(found.keys, key)
        if position == len(found.keys) or found.keys[position] != key:
            raise UserError(f"{self.shards} holds no {key}: its files have changed; start again")
        return found, position
