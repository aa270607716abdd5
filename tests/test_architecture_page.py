"""Every file and every name of the page on the architecture exists, and its rooms are those that lint checks."""

import re
import tomllib
from importlib import import_module

from tiny_fit import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
# A file of the package with the names of it that follow: `study/run.py` `run_study`, `begin`.
NAMED = re.findall(r"`([\w/]+\.py)`((?:,? `[\w.]+`(?!\s*`))*)", PAGE)
NAMES = {(file, name) for file, names in NAMED for name in re.findall(r"`([\w.]+)`", names) if name[-3:] != ".py"}


def test_every_file_and_link_is_there_and_every_name_is_in_its_file() -> None:
    assert len(NAMES) > 25
    for link in re.findall(r"\]\(([\w./]+)\)", PAGE):
        assert (REPOSITORY / "docs" / link).exists(), link
    for file, _ in NAMED:
        assert (REPOSITORY / "src" / "levelfield" / file).is_file(), file
    record = ("study/folder.py", "StudyFolder.{}")
    text = {(record[0], record[1].format(name)) for name in re.findall(r"`StudyFolder\.(\w+)`", PAGE)}
    for file, name in NAMES | text:
        found = import_module("levelfield." + file.removesuffix(".py").replace("/", "."))
        for part in name.split("."):
            assert hasattr(found, part), (file, name)
            found = getattr(found, part)


def test_the_figure_shows_what_the_table_explains() -> None:
    figure = (REPOSITORY / "docs" / "architecture.svg").read_text()
    shown = set(re.findall(r"\b(?:\w+_\w+|Study\w*)\b", " ".join(re.findall(r">([^<]+)</text>", figure))))
    assert len(shown) > 5
    assert shown <= {name for _, name in NAMES}


def test_the_rooms_stand_as_lint_has_them() -> None:
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    level = {
        room.strip().removeprefix("levelfield."): number
        for number, rooms in enumerate(contracts[0]["layers"])
        for room in rooms.split("|")
    }
    said = re.findall(r"`(\w+)`", PAGE.split("imports point down (")[1].split(")")[0])
    assert sorted(said, key=level.__getitem__) == said
    assert set(level) == set(said)
