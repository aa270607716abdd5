"""The configurations that come with levelfield, found from any folder; those of the working directory come first."""

import re
from pathlib import Path

import levelfield
from levelfield.errors import nearest

PACKAGE = Path(levelfield.__file__).parent
# In the package where a wheel was installed, at the top of a checkout.
INSTALLED = PACKAGE / "configs"
FOLDERS = (Path("configs"), INSTALLED if INSTALLED.is_dir() else PACKAGE.parents[1] / "configs")


def find_configuration(name: str, kind: str = "", beside: Path = Path()) -> Path | None:
    """The file of that name: a path, or a shipped one's, `configs/data/glyphs.yaml`, `data/glyphs.yaml`, `data/glyphs`.

    Args:
        kind: a folder of `configs` whose files are found by their bare name too: `study`.
        beside: what a path is relative to.
    """
    inner = re.sub(r"^(\.{1,2}/|configs/)+", "", name)
    for place in (beside / name, *(folder / part / inner for folder in FOLDERS for part in ("", kind))):
        for path in (place, Path(f"{place}.yaml")):
            if path.is_file():
                return path
    return None


def shipped_files(kind: str = "*") -> dict[str, Path]:
    """Name (`data/glyphs.yaml`) to file of all configurations, or of one folder of `configs` and those in it."""
    files = [(folder, file) for folder in reversed(FOLDERS) for file in folder.glob(f"{kind}/**/*.yaml")]
    return {file.relative_to(folder).as_posix(): file for folder, file in files}


def nearest_configuration(name: str, beside: Path = Path()) -> str:
    """What a misspelt name is likely to mean, as the end of a message."""
    shipped = [*shipped_files()]
    here = [str(Path(name).parent / file.name) for file in (beside / name).parent.glob("*.yaml")]
    return nearest(name, [*here, *shipped, *(f"configs/{file}" for file in shipped)], "; correct the path", cutoff=0.6)
