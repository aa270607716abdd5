"""The notebooks run from top to bottom, and show what their text says. `make notebooks` also stores what they show."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from own_images import square_folders

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
YOUR_OWN_IMAGES = next(path for path in NOTEBOOKS if path.stem == "04_your_own_images")
MOST_KIB = 500


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed_by(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.processes
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two threads wait for each other where other processes are busy
    notebook = nbformat.read(path, as_version=4)
    how = {"timeout": 900, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **how).execute()
    printed = printed_by(notebook)
    assert "Warning" not in printed
    if path.stem == "01_first_run":
        (row,) = [line.split() for line in printed.splitlines() if line.startswith("map_at_r")]
        assert float(row[2]) > 1.5 * float(row[1]), "training beats the pretrained trunk on letters it has not seen"
    if path.stem == "02_your_own_loss":
        (line,) = re.findall(r"^loop .*", printed, re.MULTILINE)
        loop, loss = map(float, re.findall(r"\d\.\d+", line))
        assert loss == pytest.approx(loop, abs=1e-5)
        means = dict(re.findall(r"^ *(\w+) +(0\.\d+) ", printed, re.MULTILINE))
        assert float(means["neighbourhood_loss"]) > 1.2 * float(means["pretrained"])
        assert "evaluated 1 time" in printed
    if path.stem == "04_your_own_images":
        assert printed.count("(letter_40)") >= 4, "chance gives 0.2 of 11"
    if path.stem == "05_search_server":
        check_search_server(printed)
    kept = ["outputs"] if path == YOUR_OWN_IMAGES else []
    assert [file.name for file in tmp_path.iterdir()] == kept, "a notebook leaves no other files behind"
    if "STORE_NOTEBOOKS" in os.environ:
        notebook.metadata["language_info"] = {"name": "python"}  # without the version
        for cell in code_cells(notebook):
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path)


@pytest.mark.slow
def test_the_search_server_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, quiet) -> None:
    """The quickest of the notebooks."""
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in NOTEBOOKS if path.stem == "05_search_server")
    scope: dict = {}
    for cell in code_cells(nbformat.read(path, as_version=4)):
        exec(cell.source, scope)
    check_search_server(capsys.readouterr().out)


def check_search_server(printed: str) -> None:
    assert "200 for letter 07: " in printed
    assert "400 the picture is not" in printed
    (line,) = [line.split() for line in printed.splitlines() if line.startswith("the nearest is")]
    assert int(line[-3]) >= 8, "chance gives 1 of 40"


@pytest.mark.full
def test_the_reader_s_own_images_are_only_read_and_the_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = tmp_path / "my_images"
    square_folders(images)
    before = {file: file.read_bytes() for file in images.rglob("*") if file.is_file()}
    setting = "images = demo"
    code = [cell.source for cell in code_cells(nbformat.read(YOUR_OWN_IMAGES, as_version=4))]
    assert sum(setting in source for source in code) == 1
    scope: dict = {}
    for source in code:
        exec(source.replace(setting, "images = Path('my_images')"), scope)
    after = {file: file.read_bytes() for file in images.rglob("*") if file.is_file() and file.parent.name[0] != "."}
    assert after == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["my_images", "outputs"]
    assert Path("outputs/your_own_images/fit/mine/0/best.ckpt").is_file()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran_without_the_machine_that_it_ran_on(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"]
    shown = printed_by(notebook) + "".join(str(output.get("data", {}).get("text/plain", "")) for output in outputs)
    for place in ("/tmp", "/root", "/home", "/work", "/Users"):
        assert place not in shown
    assert path.stat().st_size < MOST_KIB * 1024
