"""The lists of `__init__` files and of the docs are those that the script makes; whatever is listed has a test."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lists():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts"))
        yield __import__("lists")
    del sys.modules["lists"]


def test_every_list_is_what_the_files_say(lists) -> None:
    stale = [str(path.relative_to(REPOSITORY)) for path, _ in lists.changed()]
    assert not stale, f"python scripts/lists.py writes {stale}"


class Unpublished:
    """Something new.

    Cost: none. When: never.
    Paper: none yet.
    """


def test_a_loss_without_a_paper_comes_last_in_its_table(lists) -> None:
    assert lists.looked_up([Unpublished, *lists.shipped("levelfield.losses")])[-1][0] == "`Unpublished`"
    assert lists.first_paper(Unpublished) == "none yet"


def test_packages_are_written_even_if_a_page_cannot_be(lists, monkeypatch) -> None:
    monkeypatch.setattr(lists, "listed", lambda package: package)
    monkeypatch.setitem(lists.TABLES, "docs/losses.md", {"losses": lambda: lists.required_field(lists.Path, "When")})
    stale = lists.changed()
    assert [next(stale)[0] for _ in lists.PACKAGES] == [lists.file_of(package) for package in lists.PACKAGES]
    with pytest.raises(SystemExit, match="When"):
        next(stale)


@pytest.mark.parametrize("package", ["losses", "miners", "regularizers", "models", "data.datasets"])
def test_whatever_can_be_named_has_a_test(package: str, lists) -> None:
    folder = REPOSITORY.joinpath("tests", *package.split("."))
    tests = "\n".join(path.read_text() for path in (REPOSITORY / "tests" / package.split(".")[0]).rglob("*.py"))
    for kind in lists.shipped(f"levelfield.{package}"):
        file = folder / f"test_{kind.__module__.rpartition('.')[2]}.py"
        message = f"nothing tests {kind.__name__}: write {file.relative_to(REPOSITORY)}"
        assert file.exists() or kind.__name__ in tests, message


def test_every_named_data_set_has_a_configuration(lists) -> None:
    for kind in lists.shipped("levelfield.data.datasets"):
        file = f"configs/data/{kind.name}.yaml"
        assert kind.num_classes_published is None or (REPOSITORY / file).exists(), f"{kind.__name__}: write {file}"
