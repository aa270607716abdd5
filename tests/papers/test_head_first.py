"""The warm-up of Zhai & Wu: the trunk waits."""

import pytest
import torch
from lightning.pytorch import Callback
from small_fit import small_data, small_learner, small_trainer

from levelfield.core.errors import UserError
from levelfield.losses import ArcFaceLoss
from papers.zhai_wu.head_first import HeadFirst


class Record(Callback):
    """The weights at the start and at the end of each epoch."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.weights.append({name: weight.detach().clone() for name, weight in pl_module.named_parameters()})

    on_train_start = on_train_epoch_end


@pytest.mark.usefixtures("quiet")
def test_the_trunk_waits_and_then_trains() -> None:
    trainer = small_trainer(HeadFirst(epochs=1), record := Record(), max_epochs=2, limit_val_batches=0)
    trainer.fit(small_learner(ArcFaceLoss, freeze_batch_norm=False), small_data(steps_per_epoch=3, batch_size=8))
    before, first, second = record.weights
    trunk = [name for name in before if name.startswith("trunk.")]
    assert all(torch.equal(first[name], before[name]) for name in trunk)
    assert not torch.equal(first["embedder.linear.weight"], before["embedder.linear.weight"])
    assert not torch.equal(first["loss.class_weights"], second["loss.class_weights"])
    assert all(not torch.equal(second[name], first[name]) for name in trunk if name.endswith("conv1.weight"))
    with pytest.raises(UserError, match=r"HeadFirst\.epochs .*0"):
        HeadFirst(epochs=0)
