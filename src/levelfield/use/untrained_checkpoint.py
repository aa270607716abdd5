"""Write a checkpoint of an untrained row, for `levelfield predict`."""

from pathlib import Path

import torch

from levelfield.models import LinearEmbedder
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CHECKPOINT, Job, job_config
from levelfield.study.spec import row_folder
from levelfield.study.untrained import Projection
from levelfield.training.build import build
from levelfield.training.frozen_trunk import TRUNKS

FOLDER = "untrained"


def write_untrained_checkpoint(study: StudyFolder, row: str) -> Path:
    """Write `untrained/<row>/best.ckpt` into a study's folder: the trunk, with fold 0's projection as its embedder.

    It is outside the folders of jobs, because `levelfield predict` writes next to the checkpoint.

    Args:
        row: An untrained row whose jobs are finished.
    """
    job = Job(row, "run", 0, 0)
    of_row, _ = Projection.load(study.checkpoint(job))
    of_pca, _ = Projection.load(study.checkpoint(Job(study.spec.baseline_of(row), "run", 0, 0)))
    assert of_pca.components_FC is not None
    config = job_config(study.spec, job, {})
    config["model"] = {key: config["model"][key] for key in ("trunk", "num_features") if key in config["model"]} | {
        "freeze_trunk": True,
        "loss": "levelfield.losses.ContrastiveLoss",  # a learner needs one
        "embedder": "levelfield.models.IdentityEmbedder",
        "embedding_size": len(of_pca.components_FC),
    }
    if of_row.components_FC is not None:
        size = of_row.components_FC.shape[1]
        config["model"] |= {"embedder": "levelfield.models.LinearEmbedder", "embedding_size": size}
    accelerator = config["trainer"].get("accelerator", "auto")
    config["trainer"] = {"accelerator": accelerator, "devices": 1, "limit_predict_batches": 0}
    folder = study.folder / FOLDER / row_folder(row)
    training = build(config, folder, progress=False, trunks=study.folder / TRUNKS)
    embedder = training.model.embedder
    if isinstance(embedder, LinearEmbedder) and of_row.components_FC is not None and of_row.mean_F is not None:
        with torch.no_grad():
            embedder.linear.weight.copy_(of_row.components_FC.T)
            embedder.linear.bias.copy_(-(of_row.mean_F @ of_row.components_FC))
    training.write_config()
    # Lightning saves only a module that a Trainer has run; this embeds no sample.
    training.trainer.predict(training.model, datamodule=training.datamodule, return_predictions=False)
    training.trainer.save_checkpoint(folder / CHECKPOINT, weights_only=True)
    return folder / CHECKPOINT
