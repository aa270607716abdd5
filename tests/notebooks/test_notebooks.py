"""The notebooks run from top to bottom, and show what their text says."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two threads wait for each other where other processes are busy
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        output.text for cell in code_cells(notebook) for output in cell.outputs if output.output_type == "stream"
    )
    assert "Warning" not in printed
    if path.stem == "01_first_run":
        (row,) = [line.split() for line in printed.splitlines() if line.startswith("map_at_r")]
        assert float(row[2]) > 1.5 * float(row[1]), "training beats the pretrained trunk on letters it has not seen"
    assert not list(tmp_path.iterdir()), "a notebook leaves no files behind"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert cell.outputs == []
        assert cell.execution_count is None
