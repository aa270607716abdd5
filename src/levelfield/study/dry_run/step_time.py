"""The time of a training step, measured on random samples: no data is read."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levelfield.data.datamodule import MetricDataModule
from levelfield.training.batches import Batch
from levelfield.training.build import TrainingCLI
from levelfield.training.objective import TRAIN_LOSS, objective

# Steps are timed for this long, and at most so many; one, where it takes longer.
MEASURED_SECONDS = 2.0
MEASURED_STEPS = 10
TEXT = "what is the shortest way to the station from here on foot"


def network_step(training: TrainingCLI) -> Callable[[], None]:
    """Trunk, embedder and normalisation, forward and backward, and the optimiser's step."""
    learner, optimizer, data = training.model, _prepared(training), training.datamodule
    if are_features := data.features:
        samples = torch.rand(data.batch_size, learner.trunk.num_features, device=learner.device)
    else:
        samples = _random_samples(data, learner.device)
    batch = Batch(samples, torch.zeros(len(samples), dtype=torch.long), are_features=are_features)

    def step() -> None:
        with training.trainer.precision_plugin.train_step_context():
            embeddings = learner.embed_batch(batch)
        if embeddings.requires_grad:  # not of an embedder without weights on a frozen trunk
            embeddings.backward(torch.ones_like(embeddings))
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_step(training: TrainingCLI) -> Callable[[], None]:
    """Miner and loss, forward and backward, and the optimiser's step of the loss' own weights."""
    learner, optimizer = training.model, _prepared(training)
    labels = _labels_of_a_batch(training.datamodule).to(learner.device)
    embeddings = torch.randn(len(labels), learner.embedding_size, device=learner.device)
    if learner.normalize:
        embeddings = torch.nn.functional.normalize(embeddings)
    embeddings.requires_grad_()

    def step() -> None:
        objective(learner, embeddings, labels)[TRAIN_LOSS].backward()
        optimizer.step()  # the network has no gradient, so that its weights are passed over
        optimizer.zero_grad()

    return step


def _labels_of_a_batch(datamodule: MetricDataModule) -> Tensor:
    """Labels as the sampler draws them, of classes that all have as many samples as a batch takes of one."""
    labels = np.repeat(np.arange(_num_train_classes(datamodule)), max(datamodule.samples_per_class, 2))
    return torch.from_numpy(labels[next(iter(datamodule.training_batches(labels)))])


def _prepared(training: TrainingCLI) -> torch.optim.Optimizer:
    """Brings the learner where it trains; the optimiser asks for the loss' weights too."""
    training.model.trainer = training.trainer  # its precision is that of chunks too
    training.model.build_loss(_num_train_classes(training.datamodule))
    training.model.check_parts()
    training.model.to(training.trainer.strategy.root_device).train()
    optimizer: Any = training.model.configure_optimizers()
    return optimizer["optimizer"] if isinstance(optimizer, dict) else optimizer


def median_seconds(step: Callable[[], None], training: TrainingCLI) -> float:
    """Median time of a step, after one that is not timed: what a process does once is no part of it."""
    device = training.trainer.strategy.root_device

    def timed() -> float:
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    timed()
    seconds = [timed()]
    while sum(seconds) < MEASURED_SECONDS and len(seconds) < MEASURED_STEPS:
        seconds.append(timed())
    return statistics.median(seconds)


def _num_train_classes(datamodule: MetricDataModule) -> int:
    """Of a fold; from the published number of classes where there is one, so that the data need not be there."""
    published = datamodule.dataset.num_classes_published
    if published is None:
        datamodule.setup("fit")
        return datamodule.num_train_classes
    trainval = published // 2
    return trainval - (trainval // datamodule.num_folds if isinstance(datamodule.fold, int) else 0)


def _random_samples(datamodule: MetricDataModule, device: torch.device) -> Any:
    if datamodule.dataset.modality == "text":
        return [TEXT] * datamodule.batch_size
    side = datamodule.transforms.crop_size
    return torch.rand(datamodule.batch_size, 3, side, side, device=device)


def batch_in_words(training: TrainingCLI, threads: int) -> str:
    """What a step is measured on: `32 random images of 227 px (cpu, 1 thread)`."""
    device, datamodule = training.trainer.strategy.root_device, training.datamodule
    if datamodule.features:
        samples = f"random vectors of {training.model.trunk.num_features:,} features"
    elif datamodule.dataset.modality == "text":
        samples = f"texts of {len(TEXT.split())} words"
    else:
        samples = f"random images of {datamodule.transforms.crop_size} px"
    on_gpu = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_gpu else f"{device.type}, {threads} thread{'s' * (threads != 1)}"
    return f"{datamodule.batch_size} {samples} ({where})"
