"""A study's figures as files: both kinds of each, one width, the letters inside, the same bytes twice."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from levelfield.cli.main import main
from levelfield.report.figure_files import PAPER_WIDTH


def test_the_figures_are_files_of_one_width_and_of_the_same_bytes(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("first", "second"):
        assert main(["study", "report", str(copy), "--figures", str(tmp_path / folder)]) == 0
    told = capsys.readouterr().out
    names = {"differences", "scores", "search", "search_slices", "validation"}
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}
    assert all(str(tmp_path / "first" / name) in told for name in files)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}
    for name, content in files.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).get("width") == f"{72 * PAPER_WIDTH:g}pt"
            assert b"<text" not in content  # outlines: no font is needed to show them
        else:
            assert re.search(rf"/MediaBox \[ ?0 0 {72 * PAPER_WIDTH:g} ".encode(), content)
            assert b"DejaVuSans" in content
            assert b"/FontFile2" in content  # TrueType, embedded
            assert b"/CreationDate" not in content
