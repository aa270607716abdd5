"""A linear embedder that begins at the PCA of what the trunk makes of the training samples."""

from typing import Any

from levelfield.errors import UserError
from levelfield.models.pca_start import OPTION, start_at_pca
from levelfield.training.embed import embed


def begin_at_pca(learner: Any, datamodule: Any) -> None:
    """Set the embedder of `learner`, a `MetricLearner`, as a fit begins.

    Raises:
        UserError: loaders of one's own, or features that have no such PCA.
    """
    if not hasattr(datamodule, "train_samples"):
        raise UserError(f"{OPTION} needs the training samples without augmentation: fit with a MetricDataModule")
    features = embed(learner.trunk, datamodule.train_samples(), device=learner.trainer.strategy.root_device)
    start_at_pca(learner.embedder, features.embeddings)
