"""Your own images, in one folder per class."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset, SampleIndex, find_file, index_of_classes
from levelfield.data.images import image_suffixes

# Files of macOS, Windows, network storage and notebooks.
LEFT_BEHIND = frozenset(
    {"__macosx", "$recycle.bin", "system volume information", "desktop.ini", "thumbs.db", "ehthumbs.db"}
    | {"@eadir", "#recycle", "lost+found", "__pycache__"}
)
HALVES = frozenset({"train", "val", "valid", "validation", "test"})


class ImageFolder(MetricDataset):
    """Images in one folder per class, in the order of folder names.

    Folders inside a class folder belong to it. All files with a suffix that Pillow can open here are read. Everything
    else is ignored and counted in `left_out` of the index: other and hidden files, files of programs (`__MACOSX`),
    links to folders, images next to the class folders. A class folder without images is in no fold, but it
    counts for the boundary of the halves, so the halves depend only on the folders.

    Args:
        folder: the folder with the class folders.
        root: a missing folder is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing folder, one without images, or one with the class folders deeper.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> with TemporaryDirectory() as folder:
        ...     for bird in ("wren", "jay"):
        ...         Path(folder, bird).mkdir()
        ...         Image.new("RGB", (8, 8)).save(Path(folder, bird, "1.png"))
        ...     ImageFolder(folder).read_index().class_names
        ('jay', 'wren')
    """

    name = "image_folder"

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder = folder
        self.root = root

    def read_index(self) -> SampleIndex:
        folder = find_file(self.folder, self.root)
        if not os.path.isdir(folder):
            raise UserError(f"no folder {folder}: give --data.dataset.folder DIR, with one folder per class")
        left_out: Counter[str] = Counter()
        entries = list(usable_entries(folder, left_out))
        class_names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        left_out["next to the class folders, in none of them"] = len(entries) - len(class_names)
        if not class_names:
            raise UserError(f"{folder} has no folders (links do not count): put each class into its own folder")
        keys = [key for name in class_names for key in sorted(images_below(folder, name, left_out))]
        if not keys:
            raise UserError(f"no images in the folders of {folder}; supported: {', '.join(sorted(image_suffixes()))}")
        only = len(class_names) == 1 or HALVES.issuperset(name.lower() for name in class_names)
        if only and any(key.count("/") > 1 for key in keys):
            raise UserError(
                f"{folder} has only {', '.join(class_names)}, with further folders: give one of them "
                f"({folder / class_names[0]}), or put the folders of all classes into one folder"
            )
        samples = ((key, key.partition("/")[0]) for key in keys)
        return index_of_classes(samples, {name: name for name in class_names}, left_out=counts_by_reason(left_out))

    def files_folder(self) -> Path:
        return find_file(self.folder, self.root)


def usable_entries(folder: Path, left_out: Counter[str]) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder; `left_out` counts hidden ones, files of programs and links to folders.

    Raises:
        UserError: the folder cannot be read.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror}): get the permission or move it away") from None
    for entry in entries:
        if entry.name.startswith("."):
            left_out["hidden (the name begins with a dot)"] += 1
        elif entry.name.lower() in LEFT_BEHIND:
            left_out[f"{entry.name}, a file of another program"] += 1
        elif re.search("[\ud800-\udfff\\n]", entry.name):
            left_out["a name that is not UTF-8 or has several lines; rename it"] += 1
        elif entry.is_symlink() and os.path.isdir(entry):
            left_out["a link to a folder; put the images there"] += 1
        else:
            yield entry


def images_below(folder: Path, name: str, left_out: Counter[str]) -> Iterator[str]:
    """Paths of the images in the folder `name` of `folder` and deeper, relative to `folder`; others are counted."""
    for entry in usable_entries(folder / name, left_out):
        key, suffix = f"{name}/{entry.name}".lstrip("/"), Path(entry.name).suffix.lower()
        if entry.is_dir(follow_symlinks=False):
            yield from images_below(folder, key, left_out)
        elif suffix in image_suffixes():
            yield key
        else:
            left_out[f"{suffix or 'no suffix'}, not an image that Pillow opens here"] += 1


def counts_by_reason(left_out: Counter[str]) -> tuple[str, ...]:
    """A line for each reason."""
    return tuple(f"{count:,} left out: {reason}" for reason, count in sorted(left_out.items()) if count)
