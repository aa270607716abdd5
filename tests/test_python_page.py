"""The Python of the page on own parts runs as printed, and two processes give what one does."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

PAGE = "docs/own_parts.md"
BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / PAGE).read_text(), re.DOTALL)
# Two scripts: a datamodule, and the loaders of the page.
DATAMODULE = """
from lightning.pytorch import Trainer, seed_everything

from levelfield import MetricDataModule, MetricLearner
from levelfield.data import Glyphs, ImageTransforms
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk

if __name__ == "__main__":
    seed_everything(0)
    transforms = ImageTransforms(crop_size=32, resize=32, horizontal_flip=False)
    data = MetricDataModule(Glyphs(num_classes=40), batch_size=32, steps_per_epoch=10, transforms=transforms)
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), loss=ContrastiveLoss(), embedding_size=32)
    trainer = Trainer(DEVICES, accelerator="cpu", max_epochs=2, logger=False, precision="64-true")
    trainer.fit(learner, data)
    if trainer.is_global_zero:
        print("MAP@R", float(trainer.callback_metrics["val/map_at_r"]))
"""


def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict = {"__name__": "page"}
    with warnings.catch_warnings():
        for notice in (".*does not have many workers.*", ".*in eval mode.*", ".*LeafSpec.*", ".*logging interval.*"):
            warnings.filterwarnings("ignore", notice)
        for block in BLOCKS:
            exec(compile(block, PAGE, "exec"), scope)
    assert scope["trainer"].callback_metrics["val/map_at_r"] > 0
    assert scope["scores"]["test/map_at_r"] > 0
    events = [json.loads(line) for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["evaluated", "finished"]
    assert "'map_at_r': " in capsys.readouterr().out


LOADERS = """
from lightning.pytorch import Trainer, seed_everything

from levelfield import MetricLearner
from levelfield.models import TimmTrunk

seed_everything(0)
BLOCK
if trainer.is_global_zero:
    print("MAP@R", float(trainer.callback_metrics["val/map_at_r"]))
""".replace("BLOCK", next(block for block in BLOCKS if "val_loader" in block)).replace(
    'accelerator="cpu"', 'DEVICES, accelerator="cpu", precision="64-true"'
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("script", [DATAMODULE, LOADERS], ids=["datamodule", "loaders"])
def test_two_processes_of_a_plain_trainer_give_what_one_does(script: str, tmp_path: Path) -> None:
    """In float64, where a step's rounding does not grow into other neighbours."""
    scores = {}
    for devices, strategy in ((1, "auto"), (2, "ddp")):
        folder = tmp_path / str(devices)
        folder.mkdir()
        devices_of = script.replace("DEVICES", f'devices={devices}, strategy="{strategy}"')
        (folder / "two_processes.py").write_text(devices_of)
        command = [sys.executable, "two_processes.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("MAP@R")]
        scores[devices] = float(line.split()[1])
    assert scores[2] == pytest.approx(scores[1], abs=1e-9)
