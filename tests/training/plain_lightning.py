"""What a metric learner does, written in bare Lightning; tiny letters, a tiny trunk and overridden methods for both."""

import inspect
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Dataset

from levelfield import MetricDataModule, MetricLearner
from levelfield.data import Glyphs, ImageTransforms, MPerClassBatchSampler
from levelfield.data.transforms import as_floats, stacked
from levelfield.metrics import retrieval_metrics

IMAGES = {"crop_size": 16, "resize": 16, "horizontal_flip": False}
DATA = {"batch_size": 8, "samples_per_class": 2, "steps_per_epoch": 4, "eval_batch_size": 20, "num_workers": 0}
MODEL = {"embedding_size": 8, "trunk_lr": 0.02, "embedder_lr": 0.05}
TRAINER = {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False, "enable_model_summary": False}


def spec(path: str, **arguments: Any) -> dict[str, Any]:
    """A class and its arguments as in a configuration. A name without a dot is a callback of Lightning."""
    return {"class_path": path if "." in path else f"lightning.pytorch.callbacks.{path}", "init_args": arguments}


def made(value: Any, *given: Any) -> Any:
    """What a `spec` describes; a class that needs more, such as the number of classes or weights, is not called yet."""
    if not (isinstance(value, dict) and "class_path" in value):
        return value
    kind, arguments = resolve_name(value["class_path"]), {name: made(each) for name, each in value["init_args"].items()}
    try:
        inspect.signature(kind).bind(*given, **arguments)
    except TypeError:
        return partial(kind, **arguments) if arguments else kind
    return kind(*given, **arguments)


class Letters(Glyphs):
    """24 letters that a process lists and draws once."""

    def __init__(self) -> None:
        super().__init__(num_classes=24)

    def read_index(self):
        return LISTED

    def load(self, key):
        return drawn(key)


LISTED, drawn = Glyphs(num_classes=24).read_index(), cache(Glyphs().load)


class Pooled(nn.Module):
    """A trunk of one linear layer."""

    num_features = 16
    init_args: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 16), nn.Tanh())

    def forward(self, images):
        return self.layers(4 * (images[..., 4:12, 4:12] - 0.7))  # where the letter is


def letters(**arguments: Any) -> MetricDataModule:
    return MetricDataModule(Letters(), **{**DATA, "transforms": ImageTransforms(**IMAGES), **arguments})


class Tensored:
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"]


class Warmed:
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[3])
        return [optimizer], [{"scheduler": both, "interval": "step"}]


class ByHand:
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx)["loss"])
        self.clip_gradients(optimizer, gradient_clip_val=0.05)
        optimizer.step()


class Backboned:
    @property
    def backbone(self):
        return self.trunk


TensoredLearner, WarmedLearner, ByHandLearner, BackbonedLearner = (
    type(f"{each.__name__}Learner", (each, MetricLearner), {}) for each in (Tensored, Warmed, ByHand, Backboned)
)


class Plainly(Dataset):
    """(image, label) of a subset, as somebody's data set gives them."""

    def __init__(self, subset):
        self.subset = subset

    def __len__(self):
        return len(self.subset)

    def __getitem__(self, position):
        image, label, _ = self.subset[position]
        return as_floats(stacked([image]))[0], int(label)


def own_loaders(data, ours=False):
    """As docs/own_parts.md has them, with the sampler of pytorch-metric-learning, or ours, which a process opens."""
    np.random.seed(0)  # of the sampler
    data.setup("fit")
    labels = data.train_subset.labels
    if ours:
        batches = MPerClassBatchSampler(labels, batch_size=8, samples_per_class=2, num_batches=4)
        training = DataLoader(Plainly(data.train_subset), batch_sampler=batches, num_workers=1)
    else:
        sampler = MPerClassSampler(labels, 2, batch_size=8, length_before_new_iter=40)
        training = DataLoader(Plainly(data.train_subset), batch_size=8, sampler=sampler)
    return {"train_dataloaders": training, "val_dataloaders": DataLoader(Plainly(data.val_subset), batch_size=20)}


def learner(kind: type[MetricLearner] = MetricLearner, **arguments: Any) -> MetricLearner:
    torch.manual_seed(0)
    given = {"loss": spec("levelfield.losses.ContrastiveLoss"), **MODEL, **arguments}
    return kind(trunk=Pooled(), **{name: made(value) for name, value in given.items()})


def plain(found: MetricLearner, **arguments: Any) -> LightningModule:
    """Bare Lightning with the weights of a learner, and the parts and rates that were asked for."""
    kind = type(found)
    kind = Plain if kind is MetricLearner else type(kind.__name__, (kind.__bases__[0], Plain), {})
    loss, miner, regularizer = (made(arguments.get(name)) for name in ("loss", "miner", "regularizer"))
    if isinstance(loss, partial | type):
        loss = loss(num_classes=found.num_classes, embedding_size=found.embedding_size)
    loss = deepcopy(found.loss) if loss is None else loss
    loss.load_state_dict(found.loss.state_dict())
    trunk, embedder = deepcopy((found.trunk.module, found.embedder))
    return kind(trunk, embedder, loss, miner, regularizer, {**MODEL, **arguments})


class Plain(LightningModule):
    """Losses and scores in float32, AdamW with a rate for each part."""

    def __init__(self, trunk, embedder, loss, miner, regularizer, given):
        super().__init__()
        self.trunk, self.embedder, self.loss, self.miner, self.regularizer = trunk, embedder, loss, miner, regularizer
        self.given = given

    def forward(self, images):
        embeddings = self.embedder(self.trunk(images))
        return normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))

    def training_step(self, batch, batch_idx):
        embeddings, labels = self(batch[0]), batch[1]
        with torch.autocast("cpu", enabled=False):
            chosen = [] if self.miner is None else [self.miner(embeddings, labels)]
            loss = self.loss(embeddings, labels, *chosen)
            if self.regularizer is not None:
                loss = loss + self.regularizer.weight * self.regularizer(embeddings)
        return {"loss": loss}

    def on_validation_epoch_start(self):
        self.seen = []

    def validation_step(self, batch):
        with torch.autocast("cpu", enabled=False):
            self.seen.append((self(batch[0]), batch[1]))

    def on_validation_epoch_end(self):
        if not (self.trainer.sanity_checking or self.trainer.fast_dev_run):
            points, labels = (torch.cat(part) for part in zip(*self.seen, strict=True))
            scores = retrieval_metrics(points, labels, metrics=("map_at_r", "precision_at_1"))
            self.log_dict({f"val/{name}": float(scores[name]) for name in ("map_at_r", "precision_at_1")})

    def configure_optimizers(self):
        given = {"loss_lr": 0.01, "weight_decay": 1e-4, "lr_scheduler_interval": "epoch", **self.given}
        groups = []
        for name in ("trunk", "embedder", "loss"):
            weights = [weight for weight in getattr(self, name).parameters() if weight.requires_grad]
            decay = 0.0 if name == "loss" else given["weight_decay"]
            group = {"name": name, "params": weights, "lr": given[f"{name}_lr"], "weight_decay": decay}
            groups += [group] if weights else []
        optimizer = made(given["optimizer"], groups) if "optimizer" in given else torch.optim.AdamW(groups)
        if "lr_scheduler" not in given:
            return optimizer
        schedule = {"interval": given["lr_scheduler_interval"], "monitor": "val/map_at_r"}
        schedule["scheduler"] = made(given["lr_scheduler"], optimizer)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Watch(Callback):
    """Each loss and score of a fit, its steps, its kept files, and the weights that it ends in."""

    last: "Watch"

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.kept: dict[str, float] = {}
        Watch.last = self

    def on_train_batch_end(self, trainer, pl_module, outputs, *_):
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.losses += [] if loss is None else [float(loss)]

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking and "val/map_at_r" in trainer.callback_metrics:
            self.scores.append(float(trainer.callback_metrics["val/map_at_r"]))

    def on_fit_end(self, trainer, pl_module):
        self.trainer, self.counts = trainer, (trainer.global_step, trainer.current_epoch)
        self.weights = torch.cat([value.detach().flatten() for value in pl_module.parameters()])
        metrics = trainer.callback_metrics.items()
        self.logged = {key: float(value) for key, value in metrics if key.startswith("lr-")}
        for each in trainer.checkpoint_callbacks:
            if Path(each.dirpath or "").name == "kept" and Path(each.dirpath).exists():
                self.kept |= {path.name: 0.0 for path in Path(each.dirpath).iterdir()}
                self.kept |= {Path(path).name: float(score) for path, score in each.best_k_models.items()}


@dataclass(frozen=True)
class Habit:
    """What a user gives to Trainer, learner and datamodule, as in a configuration; `words` for the command instead."""

    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[dict[str, Any], ...] = ()
    model: dict[str, Any] = field(default_factory=dict)
    kind: type[MetricLearner] = MetricLearner
    words: tuple[str, ...] = ()
    loaders: Any = None  # from a datamodule to loaders
    prepared: Any = None  # from a learner to what is fitted
    plain: "Habit | None" = None  # what bare Lightning gets instead


def placed(callback: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The callback with its files below `folder`."""
    takes = {"dirpath", "output_dir"} & inspect.signature(resolve_name(callback["class_path"])).parameters.keys()
    return {**callback, "init_args": {**callback["init_args"], **{name: str(folder / "kept") for name in takes}}}


def fit(habit: Habit, module: Any, folder: Path, data: Any = None, **how: Any) -> Watch:
    keeps = any("Checkpoint" in each["class_path"] for each in habit.callbacks)
    given = {"logger": False, "enable_checkpointing": keeps, "default_root_dir": folder, **TRAINER, **habit.trainer}
    callbacks = [Watch(), *(made(placed(each, folder)) for each in habit.callbacks)]
    data = letters() if data is None else data
    given_data = {"datamodule": data} if habit.loaders is None else habit.loaders(data)
    Trainer(**given, callbacks=callbacks).fit(module, **given_data, **how)
    return callbacks[0]


def quiet_trainer(**given: Any) -> Trainer:
    return Trainer(**{"logger": False, "enable_checkpointing": False, **TRAINER, **given})


def words(habit: Habit, folder: Path) -> list[str]:
    """The habit on the command line."""
    kind = {} if habit.kind is MetricLearner else {"learner": f"{__name__}.{habit.kind.__name__}"}
    callbacks = [placed(each, folder) for each in (spec("plain_lightning.Watch"), *habit.callbacks)]
    model = {"loss": "ContrastiveLoss", **MODEL, **({} if habit.words else habit.model), **kind}
    settings = {"model": {"trunk": "plain_lightning.Pooled", **model}}
    settings["data"] = {"dataset": "plain_lightning.Letters", "transforms": IMAGES, **DATA}
    settings["trainer"] = {**TRAINER, **habit.trainer, "callbacks": callbacks}
    folder.mkdir(exist_ok=True)
    (folder / "habit.yaml").write_text(yaml.safe_dump(settings))
    return ["fit", "--config", str(folder / "habit.yaml"), "--output", str(folder), "--name", "it", *habit.words]
