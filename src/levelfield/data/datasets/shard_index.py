"""What lies where in tar files, looked up once in their headers and kept."""

import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Int

from levelfield.data.datasets.images import image_suffixes
from levelfield.data.datasets.table import content_fault
from levelfield.data.datasets.table_rows import Coded
from levelfield.data.file_parts import files_in, is_remote, version_of, whole_file
from levelfield.data.places import own_file
from levelfield.data.strings import Keys, StringsWriter
from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.atomic import read_json, write_atomically

# To be raised when what is kept of a file changes.
FORMAT = 1
NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class ShardIndex:
    """Where the pictures of some tar files lie, in ascending order of their keys, `FILE.tar/MEMBER`.

    Attributes:
        shards: paths of the files.
        shard_of: of each picture, the place of its file in `shards`.
        starts: of each picture, its first byte in the file.
        sizes: in bytes.
        left_out: a line for each kind of thing that is no picture or label.
        versions: of the files.
    """

    shards: list[str]
    keys: Keys
    shard_of: Int[np.ndarray, " samples"]
    starts: Int[np.ndarray, " samples"]
    sizes: Int[np.ndarray, " samples"]
    labels: Coded
    left_out: tuple[str, ...]
    versions: list[Any]


def shards_named(shards: str, root: str | Path | None) -> list[str]:
    """The tar files of a folder, or those that a path with numbers in braces stands for.

    Raises:
        UserError: none, or two of one name.
    """
    place = shards if is_remote(shards) else str(own_file(shards, root))
    if (is_remote(shards) and not shards.endswith(".tar")) or Path(place).is_dir():
        found = files_in(place, ".tar")
    else:
        found = [each if is_remote(each) else str(own_file(each, root)) for each in _expanded(shards)]
    if not found:
        raise UserError(
            f"no tar file in {place}: give the folder that holds them, or their path as in birds-{{000..099}}.tar"
        )
    names = Counter(PurePosixPath(path).name for path in found)
    for name, times in names.items():
        if times > 1:
            raise UserError(f"{shards} stands for {times} files {name}: rename all but one")
    return sorted(found, key=lambda path: PurePosixPath(path).name + "/")


def _expanded(pattern: str) -> list[str]:
    numbers = NUMBERS.search(pattern)
    if numbers is None:
        return [pattern]
    first, last = numbers.groups()
    before, after = pattern[: numbers.start()], pattern[numbers.end() :]
    every = (f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1))
    return list(chain.from_iterable(map(_expanded, every)))


def shard_index(shards: Sequence[str]) -> ShardIndex:
    """The index of tar files, each read once and again when it has changed.

    Raises:
        UserError: a file that cannot be read, or a picture without a label, naming the file and the key.
    """
    versions = [version_of(shard) for shard in shards]
    writer, parts, codes = StringsWriter(io.BytesIO()), [], []
    code_of: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    for place, (shard, version) in enumerate(zip(shards, versions, strict=True)):
        found = _kept(shard, version)
        name = PurePosixPath(shard).name
        writer.write([f"{name}/{member}" for member in found["members"]])
        parts.append(np.array([found["starts"], found["sizes"], [place] * len(found["starts"])], np.int64))
        mine = np.array([code_of.setdefault(label, len(code_of)) for label in found["labels"]], np.int64)
        codes.append(mine[np.array(found["codes"], np.int64)])
        left_out.update(found["left_out"])
    starts, sizes, shard_of = np.concatenate(parts, axis=1)
    strings = writer.strings()
    if not len(strings):
        raise UserError(f"no pictures in {shards[0]} and the others: known are {', '.join(sorted(image_suffixes()))}")
    return ShardIndex(
        list(shards),
        Keys(strings.__getitem__, np.arange(len(strings))),
        shard_of.astype(np.int32),
        starts,
        sizes,
        Coded(list(code_of), np.concatenate(codes)),
        tuple(f"{count:,} left out: {reason}" for reason, count in sorted(left_out.items())),
        versions,
    )


def _kept(shard: str, version: list[Any]) -> dict[str, Any]:
    """What `_scanned` finds, or found when the file was what it is now."""
    stamp = [FORMAT, version]
    file = cache_root() / "shards" / f"{sha256(shard.encode()).hexdigest()[:32]}.json"
    kept = read_json(file)
    if kept is None or kept["stamp"] != json.loads(json.dumps(stamp)):
        kept = {"stamp": stamp, **_scanned(shard)}
        write_atomically(file, json.dumps(kept).encode())
    return kept


def _scanned(shard: str) -> dict[str, Any]:
    """Names, places and labels of a tar file's pictures, in order of their names, and what else is there."""
    pictures: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    last = "its beginning"
    with whole_file(shard) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # it would keep all of them
                    last = member.name
                    key, suffix = _parted(member.name)
                    if not member.isreg() or member.issparse():
                        left_out["a folder or a link, no file"] += not member.isdir()
                    elif suffix in image_suffixes():
                        if key in pictures:
                            raise UserError(
                                f"{shard}: {key} has two pictures, {pictures[key][0]} and {member.name}: keep one"
                            )
                        pictures[key] = (member.name, member.offset_data, member.size)
                    elif suffix in (".cls", ".json"):
                        content = tar.extractfile(member)
                        assert content is not None
                        if suffix == ".cls" or key not in labels:
                            labels[key] = _label(content.read(), suffix, f"{shard}: {member.name}")
                    else:
                        left_out[f"{suffix or 'no suffix'}, neither a picture nor a label"] += 1
        except (tarfile.TarError, EOFError, OSError) as error:
            raise UserError(
                f"{shard} is cut short, compressed or no tar file, after {last} ({error}): write it again, without "
                "compression"
            ) from None
    for key, (name, *_) in pictures.items():
        if key not in labels:
            raise UserError(f"{shard}: {name} has no label: put {key}.cls beside it, or {key}.json with a label")
    alone = len(labels.keys() - pictures.keys())
    left_out.update({"a label without a picture": alone} if alone else {})
    ordered = sorted((name, start, size, labels[key]) for key, (name, start, size) in pictures.items())
    coded = Coded.of(label for *_, label in ordered)
    members, starts, sizes = ([row[column] for row in ordered] for column in range(3))
    words = {"members": members, "starts": starts, "sizes": sizes, "labels": coded.names, "codes": coded.codes.tolist()}
    return {**words, "left_out": {reason: count for reason, count in left_out.items() if count}}


def _parted(name: str) -> tuple[str, str]:
    """A member's key, up to the first dot of its last part, and the suffix, as WebDataset parts them."""
    folder, slash, last = name.rpartition("/")
    key, dot, suffix = last.partition(".")
    return folder + slash + key, (dot + suffix).lower()


def _label(content: bytes, suffix: str, place: str) -> str:
    try:
        value = content.decode() if suffix == ".cls" else json.loads(content)["label"]
    except (ValueError, KeyError, TypeError) as error:
        wanted = "a text in UTF-8" if suffix == ".cls" else 'JSON with a "label"'
        raise UserError(f"{place} is not {wanted} ({type(error).__name__}): write it again") from None
    if not isinstance(value, str | int):
        raise UserError(f"{place} has the label {value!r}: give a text or a whole number")
    label = str(value).strip()
    if fault := content_fault("label", label):
        raise UserError(f"{place}: {fault}")
    return label
