"""What the first steps show works as it stands."""

import re
import shlex
import sys

import pytest
from tiny_fit import REPOSITORY

PAGE = (REPOSITORY / "docs" / "first_steps.md").read_text()
COMMANDS = [line.strip() for line in PAGE.splitlines() if line.startswith("    levelfield ")]
LOSS = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class MyLoss" in block)


def test_there_is_something_to_check():
    assert len(COMMANDS) >= 8
    assert len(LOSS.splitlines()) <= 16


@pytest.mark.parametrize("command", COMMANDS)
def test_files_and_options_of_the_commands_exist(command, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as after `pip install`
    words = shlex.split(command)[1:]
    for word in words:
        if word.startswith("configs/"):
            assert (REPOSITORY / word).exists()
    if words[0] == "fit":
        words = ["ContrastiveLoss" if word == "my_loss.MyLoss" else word for word in words]
        if "--model.loss.margin" in words and "ContrastiveLoss" in words:
            words = words[: words.index("--model.loss.margin")]
        code, printed, complaint = run(*words, "--print_config")
        assert code == 0, complaint
        assert "class_path" in printed


def test_the_ten_line_loss_trains_from_the_working_directory(tiny, run, tmp_path, monkeypatch):
    (tmp_path / "my_loss.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_loss", raising=False)  # another test's
    words = ["fit", *tiny, "--model.loss", "my_loss.MyLoss", "--model.loss.margin", "0.4"]
    code, _, complaint = run(*words)
    assert code == 0, complaint
    assert (tmp_path / "outputs" / "fit" / "Glyphs-MyLoss" / "0" / "best.ckpt").exists()
    code, _, complaint = run("validate", "--ckpt_path", "outputs/fit/Glyphs-MyLoss/0/best.ckpt")
    assert code == 0, complaint
