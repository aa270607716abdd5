"""The file that defines a study, by its path or its name."""

import re
from pathlib import Path

from levelfield.errors import UserError, nearest
from levelfield.runtime.shipped import find_configuration, shipped_files
from levelfield.study.definition.spec import STUDY


def find_study(name: str) -> Path:
    """The study file of that path, or of that name in configs/study, the working directory's or the shipped one.

    Raises:
        UserError: there is none, with the nearest name.
    """
    if (file := find_configuration(name, "study")) is not None:
        return file
    if (Path(name) / STUDY).is_file():
        raise UserError(f"{name} is the folder of a study; go on with it: levelfield study resume {name}")
    names = sorted(file.removeprefix("study/") for file in shipped_files("study"))
    asked = re.sub(r"^(\.{1,2}/|configs/|study/)+", "", name).removesuffix(".yaml") + ".yaml"
    raise UserError(f"no study file {name!r}{nearest(asked, names, cutoff=0.4)}")
