"""Where a fit starts, by what the trunk makes of the training samples: the embedder first, then the class weights."""

from typing import Any

from torch.utils.data import DataLoader

from levelfield.errors import UserError
from levelfield.losses.classification import ClassificationLoss
from levelfield.models.embedder_start import start_embedder
from levelfield.training.embed import embed

ROWS = 4096  # features that the embedder takes at a time


def start(learner: Any, datamodule: Any) -> None:
    """Set the embedder of `learner`, a `MetricLearner`, and class weights that start at class means.

    All processes of a training see all training samples, so that they start alike.

    Raises:
        UserError: the loaders are not a MetricDataModule's, or the features have no such projection.
    """
    losses = [each for each in learner.loss.modules() if isinstance(each, ClassificationLoss)]
    losses = [each for each in losses if each.starts_at_class_means]
    if learner.embedder_init == "random" and not losses:
        return
    if not hasattr(datamodule, "train_samples"):
        option = "--model.loss.weight_init" if learner.embedder_init == "random" else "--model.embedder_init"
        raise UserError(f"{option} needs the training samples without augmentation: fit with a MetricDataModule")
    device = learner.trainer.strategy.root_device
    features, labels, _ = embed(learner.trunk, datamodule.train_samples(), device=device)
    if learner.embedder_init != "random":
        start_embedder(learner.embedder, learner.embedder_init, features, labels)
    if losses:
        parts = zip(features.split(ROWS), labels.split(ROWS), strict=True)
        batches: Any = [{"features": some, "labels": their} for some, their in parts]
        embeddings = embed(learner, DataLoader(batches, batch_size=None), device=device).embeddings
        for loss in losses:
            loss.start_at_class_means(embeddings, labels)
