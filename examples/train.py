"""Trains a trunk on letters with ordinary Lightning, in less than a minute on a CPU.

python examples/train.py                      # MAP@R of letters that it never saw: 0.13 before, 0.74 after
python examples/train.py --wandb --devices 2  # logs to W&B, trains on two devices with DDP
"""

import argparse

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import WandbLogger

from levelfield import MetricDataModule, MetricLearner
from levelfield.data import Glyphs, ImageTransforms
from levelfield.losses import MultiSimilarityLoss
from levelfield.models import TimmTrunk

FOLDER = "outputs/train"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="of 100 steps each")
    parser.add_argument("--size", type=int, default=32, help="side of the images, in pixels")
    parser.add_argument("--devices", type=int, default=1, help="2 or more: DDP")
    parser.add_argument("--wandb", action="store_true", help="log to W&B; WANDB_MODE=offline needs no account")
    given = parser.parse_args()

    seed_everything(0)
    data = MetricDataModule(
        Glyphs(num_classes=240),  # letters 121 to 240 are the test classes
        fold=0,  # letters 1 to 30 are for validation, 31 to 120 for training
        batch_size=32 * given.devices,  # 32 on each device; the loss sees all of them
        samples_per_class=4,
        transforms=ImageTransforms(given.size, resize=given.size, scale=(0.6, 1.0), horizontal_flip=False),
    )
    learner = MetricLearner(
        TimmTrunk("resnet10t", weights=None),
        loss=MultiSimilarityLoss(),
        freeze_batch_norm=False,  # the trunk has random weights
        trunk_lr=1e-3,
    )
    trainer = Trainer(
        max_epochs=given.epochs,
        devices=given.devices,
        strategy="ddp" if given.devices > 1 else "auto",
        default_root_dir=FOLDER,  # the best epoch's checkpoint
        logger=WandbLogger(project="levelfield", save_dir=FOLDER) if given.wandb else False,
    )
    (before,) = trainer.validate(learner, data, verbose=False)
    trainer.fit(learner, data)
    if trainer.is_global_zero:
        after = trainer.checkpoint_callback.best_model_score
        print(f"validation MAP@R before training: {before['val/map_at_r']:.4f}, after: {after:.4f}")


if __name__ == "__main__":
    main()
