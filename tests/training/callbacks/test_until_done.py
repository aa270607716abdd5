"""Validations get rarer, patience counts them, and a stop changes nothing."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from signal_at import SignalAt
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
    - {{class_path: signal_at.SignalAt, init_args: {{step: {step}, number: {number}, in_validation: {validates}}}}}
data: {{steps_per_epoch: {steps}, eval_batch_size: 20}}
model: {{loss: ContrastiveLoss, embedder_lr: {rate}, trunk_lr: {rate}, weight_decay: 0.0}}
"""


def words(folder: Path, rate: float = 0.0, steps: int = 2, step: int = -1, validates: bool = False) -> list[str]:
    file = folder.parent / f"{folder.name}.yaml"
    number = int(signal.SIGTERM)
    file.write_text(SETTINGS.format(rate=rate, steps=steps, step=step, number=number, validates=str(validates).lower()))
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
    ("step", "validates", "trainer"),
    [
        (5, False, []),
        (7, False, ["--trainer.max_steps", "16"]),
        (8, True, []),
        # The state after an epoch without a validation, and after one with it.
        (6, False, ["--checkpoint_seconds", "0"]),
        (8, False, ["--checkpoint_seconds", "0", "--trainer.max_steps", "16"]),
    ],
)
def test_a_stopped_training_validates_when_it_would_have(
    step, validates, trainer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, sent, code in (("whole", True, 0), ("stopped", False, 75)):
        monkeypatch.setattr(SignalAt, "sent", sent)
        assert run(*words(tmp_path / folder, 0.01, step=step, validates=validates), *trainer)[0] == code
    assert run(*words(tmp_path / "stopped", 0.01, step=step, validates=validates), *trainer, "--resume")[0] == 0
    one, other = (tmp_path / name / FIT for name in ("whole", "stopped"))
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    best = [torch.load(folder / "best.ckpt", weights_only=True) for folder in (one, other)]
    assert best[0]["global_step"] == best[1]["global_step"]
    assert all(torch.equal(value, best[1]["state_dict"][name]) for name, value in best[0]["state_dict"].items())


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
