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
    """The notebook with new outputs, without times, versions of the interpreter and progress messages."""
    os.environ["OMP_NUM_THREADS"] = "1"  # two threads wait for each other on a busy machine
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": folder}}).execute()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in map(_reproducible, cell.outputs) if each.get("name") != "stderr"]
            cell.outputs = [each for each in cell.outputs if each.get("data", True)]
    return notebook


def _reproducible(output: Any) -> Any:
    if "text" in output:
        output.text = OF_THE_MACHINE.sub("", output.text)
    if "data" in output:
        output.metadata = {}
        output.data = {form: content for form, content in output.data.items() if form in SHOWN}
        if "image/png" in output.data:
            output.data.pop("text/plain", None)  # "<Figure size ...>"
    return output


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        nbformat.write(execute(file), file)
        print(file, f"{file.stat().st_size / 1024:.0f} KiB", flush=True)
