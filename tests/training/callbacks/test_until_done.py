"""Validations get rarer, and patience counts them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_fit import TINY

from levelfield.analysis.integrity import validation_scores
from levelfield.errors import UserError
from levelfield.training.callbacks import UntilDone

Run = Callable[..., tuple[int, str, str]]
FIT = Path("fit", "Glyphs-ContrastiveLoss", "0")
SETTINGS = """
trainer:
  max_epochs: 30
  callbacks:
    - class_path: levelfield.training.callbacks.UntilDone
      init_args: {{first: 4, every: 8, patience: 2}}
data: {{steps_per_epoch: {steps}, eval_batch_size: 20}}
model: {{loss: ContrastiveLoss, embedder_lr: 0.0, trunk_lr: 0.0, weight_decay: 0.0}}
"""


def words(folder: Path, steps: int = 2) -> list[str]:
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(SETTINGS.format(steps=steps))
    return ["fit", *TINY, "--config", str(file), "--output", str(folder)]


def test_the_steps_to_validate_at() -> None:
    counts = [UntilDone().validations(step) for step in range(4001)]
    found = [step for step in range(1, 4001) if counts[step] > counts[step - 1]]
    assert found == [100, 200, 400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600, 4000]


@pytest.mark.parametrize(
    ("steps", "trainer", "epochs"),
    [
        # Steps 4, 8 and 16: the first of equals, then two that are no better.
        (2, [], [1, 3, 7]),
        # An epoch of 3 steps ends at 6, 9 and 18; one of 20 passes several of the steps at once.
        (3, [], [1, 2, 5]),
        (20, [], [0, 1, 2]),
        # The last epoch is validated in any case.
        (2, ["--trainer.max_epochs", "6"], [1, 3, 5]),
        (2, ["--trainer.max_epochs", "-1", "--trainer.max_steps", "12"], [1, 3, 5]),
        (2, ["--trainer.max_epochs", "1"], [0]),
        # Steps 2, 4 and 8 of the optimizer.
        (4, ["--trainer.accumulate_grad_batches", "2"], [1, 3, 7]),
    ],
)
def test_patience_counts_validations(steps, trainer, epochs, run: Run, tmp_path: Path) -> None:
    """With rates of 0 each validation scores the same."""
    code, _, complaint = run(*words(tmp_path / "still", steps=steps), *trainer)
    assert code == 0, complaint
    scores = validation_scores(tmp_path / "still" / FIT / "metrics.csv")
    assert [*scores] == epochs
    assert len(set(scores.values())) == 1
    assert torch.load(tmp_path / "still" / FIT / "best.ckpt", weights_only=True)["epoch"] == epochs[0]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [({"first": 0}, "first"), ({"first": 500}, "first"), ({"patience": 0}, "patience")],
)
def test_refused_arguments(arguments: dict[str, int], key: str) -> None:
    with pytest.raises(UserError, match=rf"UntilDone\.{key}"):
        UntilDone(**arguments)


@pytest.mark.parametrize(("key", "value"), [("check_val_every_n_epoch", "2"), ("val_check_interval", "1")])
def test_a_trainer_that_says_when_to_validate_is_refused(key: str, value: str, run: Run, tmp_path: Path) -> None:
    code, _, complaint = run(*words(tmp_path / "refused"), f"--trainer.{key}", value)
    assert (code, f"--trainer.{key}" in complaint) == (2, True)
