"""The notebooks run from top to bottom, and show what their text says."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
# Both are for `make test-full`: `test_python_page.py` runs the blocks of the page to the second.
PARAMETERS = [pytest.param(path, id=path.stem, marks=pytest.mark.full) for path in NOTEBOOKS]


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("path", PARAMETERS)
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
    if path.stem == "02_python":
        one, two = (float(line.split()[-1]) for line in printed.splitlines() if "processes, MAP@R" in line)
        assert two == pytest.approx(one, abs=5e-3)  # in float32; test_python_page.py compares them in float64
        assert "refused: .../ledger.jsonl: the test classes were opened once already" in printed
    if path.stem == "06_search_server":
        assert "200 for letter 07: " in printed
        assert "400 the picture is not" in printed
        (line,) = [line.split() for line in printed.splitlines() if line.startswith("the nearest is")]
        assert int(line[-3]) >= 8, "chance gives 1 of 40"
    assert not list(tmp_path.iterdir()), "a notebook leaves no files behind"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert cell.outputs == []
        assert cell.execution_count is None
