"""A file in the working directory replaces no installed module, and one's own modules are found there."""

import json
import subprocess
import sys

import pytest
import yaml
from toy_study import TOY

PLANTED = ("pytorch_metric_learning", "torch", "yaml", "timm", "rich", "traceback", "json", "fcntl")
OWN = "from levelfield.losses import ContrastiveLoss\n\n\nclass MyLoss(ContrastiveLoss):\n    pass\n"


@pytest.mark.processes
def test_a_study_and_its_workers_find_own_and_installed_losses_and_none_of_the_planted_modules(tmp_path):
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("open('planted', 'a').write(__name__)\nraise ImportError('planted')\n")
    (tmp_path / "my_loss.py").write_text(OWN)
    study = yaml.safe_load(TOY)
    study["methods"] = {
        name: {"model": {"loss": f"{name}.{loss}"}}
        for name, loss in {"my_loss": "MyLoss", "pytorch_metric_learning.losses": "ContrastiveLoss"}.items()
    }
    del study["spaces"]
    (tmp_path / "toy.yaml").write_text(json.dumps(study))
    words = ["--search.trials", "0", "--runs", "1", "--trainer.max_epochs", "1", "--executor.workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "levelfield", "study", "run", "toy.yaml", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "my_loss" in done.stdout
    assert not (tmp_path / "planted").exists()
