"""Execute the notebooks again, each in an empty folder, and keep only reproducible output.

python scripts/notebooks.py [notebooks/01_first_run.ipynb ...]
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
LONGEST = 900
# The output formats to keep; others are only for an open notebook.
SHOWN = ("text/plain", "text/html", "text/markdown", "image/png")
# Paths of temporary files, and control codes of terminals.
OF_THE_MACHINE = re.compile(rf"{re.escape(tempfile.gettempdir())}/\w+/?|\x1b\[[0-9;?]*[A-Za-z]")


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # two threads wait for each other on a busy machine
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": folder}})
        client.execute()
    return notebook


def stripped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without times, versions of the interpreter and progress messages."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            kept = (_kept(output) for output in cell.outputs if output.get("name") != "stderr")
            cell.outputs = [output for output in kept if output is not None]
    return notebook


def _kept(output: Any) -> Any:
    if "text" in output:
        output.text = OF_THE_MACHINE.sub("", output.text)
    if "data" not in output:
        return output
    output.metadata = {}
    output.data = {form: content for form, content in output.data.items() if form in SHOWN}
    if "image/png" in output.data:
        output.data.pop("text/plain", None)  # "<Figure size ...>"
    return output if output.data else None


def main() -> None:
    for path in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        nbformat.write(stripped(execute(path)), path)
        print(path, f"{path.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
