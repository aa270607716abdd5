"""How often several processes agree on whether to write `last.ckpt`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from levelfield.training.callbacks.last_checkpoint import BATCHES_APART, LastCheckpoint


@pytest.mark.parametrize(
    ("device", "processes", "apart"),
    [("cpu", 1, 1), ("cuda", 1, 1), ("cpu", 2, 1), ("cuda", 2, BATCHES_APART)],
)
@pytest.mark.parametrize("accumulated", [1, 3])
def test_only_several_gpus_look_less_often_than_after_each_step(
    device: str, processes: int, apart: int, accumulated: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    last = LastCheckpoint(tmp_path, dict, seconds=30.0, started=0.0)
    looks: list[str] = []
    monkeypatch.setattr(last, "_look", lambda trainer, moment: looks.append(moment))
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(
        strategy=strategy, world_size=processes, accumulate_grad_batches=accumulated, sanity_checking=False,
        current_epoch=0,
    )  # fmt: skip
    batches = 2 * BATCHES_APART * accumulated
    for number in range(batches):
        last.before_step(cast(Any, trainer), number)
    assert looks == ["step"] * (batches // (apart * accumulated) - 1)  # none before the first
    looks.clear()
    for number in range(batches):
        last.on_validation_batch_start(cast(Any, trainer), cast(Any, None), None, number)
    assert looks == ["validation"] * (batches // apart)
