"""Trains a tiny trunk on letters with MyLoss and plain Lightning: python train.py [--wandb]"""

import argparse

from levelfield import MetricDataModule, MetricLearner
from levelfield.data import Glyphs, ImageTransforms
from levelfield.models import TimmTrunk
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import WandbLogger

from my_project.my_loss import MyLoss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50, help="of one epoch")
    parser.add_argument("--wandb", action="store_true", help="log to W&B; WANDB_MODE=offline needs no account")
    given = parser.parse_args()

    seed_everything(0)
    data = MetricDataModule(
        Glyphs(num_classes=240),  # your images: levelfield.data.ImageFolder("my_images")
        fold=0,  # validates on letters that it does not train on
        batch_size=32,
        samples_per_class=4,
        steps_per_epoch=given.steps,
        transforms=ImageTransforms(32, resize=32, scale=(0.6, 1.0), horizontal_flip=False),
    )
    trunk = TimmTrunk("test_resnet", weights=None)  # tiny, with random weights, so batch norm has to train
    learner = MetricLearner(trunk, loss=MyLoss(margin=0.5), freeze_batch_norm=False, trunk_lr=1e-3)
    logger = WandbLogger(project="my_project", save_dir="outputs") if given.wandb else False
    trainer = Trainer(max_epochs=given.epochs, logger=logger, default_root_dir="outputs")
    trainer.fit(learner, data)
    best = trainer.checkpoint_callback
    print(f"{best.best_model_path}: validation MAP@R {best.best_model_score:.4f}")


if __name__ == "__main__":
    main()
