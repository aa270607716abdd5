"""A fit whose embedder starts as the PCA starts at the study baseline's score."""

import json
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from levelfield.analysis.integrity import validation_scores
from levelfield.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.training.build import build
from levelfield.training.learner import MetricLearner


@pytest.mark.usefixtures("quiet")
def test_the_start_scores_as_the_baseline_of_a_study(finished: Path, tmp_path: Path) -> None:
    for fold in range(2):
        config = job_config(StudyFolder.begun(finished).spec, Job("contrastive", "run", 0, fold), {})
        config["model"]["embedder_init"] = "pca"
        config["trainer"] |= {"max_epochs": 1, "callbacks": [{"class_path": "ValidateFirst"}]}
        training = build(config, tmp_path / str(fold), progress=False)
        training.trainer.fit(training.model, datamodule=training.datamodule)
        baseline = json.loads((finished / f"jobs/pretrained/run0/fold{fold}/result.json").read_text())
        scores = validation_scores(tmp_path / str(fold) / "metrics.csv")
        assert scores[-1] == pytest.approx(baseline["validation"]["map_at_r"], abs=1e-6)


@pytest.mark.usefixtures("quiet")
def test_loaders_of_ones_own_give_no_samples_to_start_from(tmp_path: Path) -> None:
    learner = MetricLearner(
        TimmTrunk("test_resnet", weights=None), ContrastiveLoss, embedding_size=16, embedder_init="pca"
    )
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False, max_epochs=1)
    with pytest.raises(UserError, match="fit with a MetricDataModule"):
        trainer.fit(learner, train_dataloaders=[], val_dataloaders=[])
