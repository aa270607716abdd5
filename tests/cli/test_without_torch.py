"""What the command line answers without importing torch, which takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from levelfield.cli.main import main
heavy = {{"torch", "torchvision", "lightning", "torchmetrics", "timm"}}
for words in {commands}:
    try:
        main(words)
    except SystemExit:
        pass
    print("\\n", words, *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def test_helps_lists_status_and_mistakes_import_no_torch(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [
        ["--help"],
        ["fit", "--help"],
        ["validate", "--help"],
        ["predict", "--help"],
        ["export", "--help"],
        ["search", "--ckpt_path", "x"],
        ["compare", "--help"],
        ["study", "--help"],
        ["data", "--help"],
        ["init", "--help"],
        ["study", "status", "x"],
        ["study", "run", "smoke", "--moddel.loss", "x"],
        ["study", "status", str(finished)],
        ["data", "list"],
        ["data", "list", "glyphs"],
    ]
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CODE.format(commands=commands)], capture_output=True, text=True)
    answers = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("[")]
    assert answers == [str(words) for words in commands], done.stderr
