"""The file that defines a study, by its path or its name."""

from difflib import get_close_matches
from pathlib import Path

from levelfield.errors import UserError
from levelfield.study.definition.spec import STUDY

STUDY_FILES = Path("configs/study")


def find_study(name: str) -> Path:
    """The study file of that path, or of that name in configs/study.

    Raises:
        UserError: there is none, with the nearest name.
    """
    for path in (Path(name), STUDY_FILES / name, STUDY_FILES / f"{name}.yaml"):
        if path.is_file():
            return path
    if (Path(name) / STUDY).is_file():
        raise UserError(f"{name} is the folder of a study; go on with it: levelfield study resume {name}")
    names = sorted(path.name for path in STUDY_FILES.glob("*.yaml"))
    close = get_close_matches(Path(name).name.removesuffix(".yaml") + ".yaml", names, n=1, cutoff=0.4)
    if close:
        raise UserError(f"no study file {name!r}; did you mean {close[0]!r}?")
    raise UserError(f"no study file {name!r}; " + (f"there are: {', '.join(names)}" if names else "give its path"))
