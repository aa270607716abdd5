"""`levelfield data`: what is there, whether it is whole, and one line for each mistake."""

from pathlib import Path

import pytest
from PIL import Image

from levelfield.cli import main as levelfield
from levelfield.data.commands import main
from levelfield.errors import UserError


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)


@pytest.fixture
def small_omniglot(tmp_path: Path) -> Path:
    """A data folder whose Omniglot has two characters with a drawing each, the second one truncated."""
    for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Tengwar")):
        folder = tmp_path / "omniglot" / part / alphabet / "character01"
        folder.mkdir(parents=True)
        Image.new("1", (105, 105)).save(folder / "0001_01.png")
    drawing = tmp_path / "omniglot/images_evaluation/Tengwar/character01/0001_01.png"
    drawing.write_bytes(drawing.read_bytes()[:40])
    return tmp_path


def test_list_tells_what_is_there_and_what_the_others_need(
    small_omniglot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--root", str(small_omniglot)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["glyphs", "1,228", "16,752", "yes"] in [row[:4] for row in rows]
    assert ["omniglot", "1,623", "32,460", "yes"] in [row[:4] for row in rows]
    assert ["grocery_store", "81", "5,421", "no"] in [row[:4] for row in rows]
    assert f"no folder {small_omniglot}/grocery_store: give the folder that holds grocery_store/" in printed


def test_list_takes_the_folder_of_the_environment(
    small_omniglot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", "omniglot"]) == 0
    assert "omniglot needs a data folder: give --data.root DIR or set LEVELFIELD_DATA" in capsys.readouterr().out
    monkeypatch.setenv("LEVELFIELD_DATA", str(small_omniglot))
    assert main(["list", "omniglot"]) == 0
    printed = capsys.readouterr().out
    assert "needs a data folder" not in printed
    assert "glyphs" not in printed


def test_verify_lists_every_problem_and_exits_with_2(small_omniglot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert levelfield(["data", "verify", "omniglot", "--data.root", str(small_omniglot)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "omniglot: 2 classes, 2 samples; 3 problems"
    assert lines[1:3] == ["  2 classes instead of 1623", "  2 samples instead of 32460"]
    assert "images_evaluation/Tengwar/character01/0001_01.png" in lines[3]
    assert len(lines) == 4


def test_verify_of_a_set_that_is_not_there_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "grocery_store", "--root", str(tmp_path)]) == 2
    assert f"no folder {tmp_path}/grocery_store" in capsys.readouterr().out


@pytest.mark.slow
def test_verify_opens_the_real_data(data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--root", str(data_root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "glyphs: 1,228 classes, 16,752 samples; as published, every sample opens",
        "grocery_store: 81 classes, 5,421 samples; as published, every sample opens",
        "omniglot: 1,623 classes, 32,460 samples; as published, every sample opens",
    ]


def test_prepare_tells_source_and_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "omniglot", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    for words in (
        "https://github.com/brendenlake/omniglot",
        "DIR holds omniglot/ with images_background and images_evaluation, each a folder or a .zip",
        f"no folder {tmp_path}/omniglot",
    ):
        assert words in printed
    assert main(["prepare", "glyphs"]) == 0
    assert "nothing has to be built" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "omnigolt"], r"no data set 'omnigolt'; did you mean 'omniglot'\?"),
        (["verfy"], r"no command 'verfy'; did you mean 'verify'\?"),
        (["list", "--rot", "x"], r"no option '--rot'; did you mean '--root'\?"),
        (["list", "--roo", "x"], r"no option '--roo'; did you mean '--root'\?"),
        (["list", "--root"], r"--root.*expected one argument"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        main(words)
    assert len(str(caught.value).splitlines()) == 1


def test_help_shows_commands_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for words in ("list  ", "verify  ", "prepare  ", "levelfield data verify omniglot --root DIR", "NAME"):
        assert words in printed
