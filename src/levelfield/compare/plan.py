"""The plan of `levelfield compare`: from pretrained features to a trained trunk, in the given time.

The plan depends on timings that are measured once. The study file has the plan, so a stopped comparison continues with
the same settings.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.nn.functional import normalize

from levelfield.core.configuration import OURS, Config, merge
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.models import LinearEmbedder
from levelfield.study.progress import duration
from levelfield.study.spec import FEATURES
from levelfield.study.training_job import fixed_threads
from levelfield.training.batches import Batch
from levelfield.training.build import build
from levelfield.training.embed import TrunkExtractor
from levelfield.training.start import EmbedderInit, start_embedder

if TYPE_CHECKING:
    from levelfield.data.dataset import SampleIndex
    from levelfield.data.datasets import MetricDataset

# Sides of training crops, in pixels; all are multiples of 16.
SIZES = (64, 80, 96, 112, 128, 144, 160, 192, 224)
LOOKED_AT = 200  # number of images whose headers are read for their size
NATIVE = 224  # side of images without files
ENOUGH = 128  # larger images come after more folds
# Training steps of a trunk, and how often they may be doubled if there is time.
STEPS = {"image": 600, "text": 400}
DOUBLINGS = 2
FEWEST_STEPS = 100
# Learning rates that raised validation MAP@R on CLINC150, 20 Newsgroups, Glyphs and Omniglot.
TRUNK_LR = {"image": 1e-4, "text": 2e-5}
VALIDATIONS = 4  # per training of the trunk
HEAD_SECONDS = 25.0  # most seconds to train a head
EMBEDDING_SIZE = 128
STARTS: tuple[EmbedderInit, ...] = ("pca", "whitening")
HEADS = f"{OURS}protocol/heads.yaml"  # how the heads are trained
PAIR, CLASSES = "ntxent", "normalized_softmax"
LOSSES = {PAIR: "levelfield.losses.NTXentLoss", CLASSES: "levelfield.losses.NormalizedSoftmaxLoss"}
MEASURED_STEPS, MEASURED_BATCHES = 3, 2
USABLE = 0.85  # fraction of the time; starting processes takes the rest


@dataclass(frozen=True)
class Costs:
    """Seconds of one core for a training step of the trunk, and for embedding one sample."""

    step: float
    sample: float

    def at(self, size: int, measured: int) -> "Costs":
        """The costs at another image size: they grow with the number of pixels."""
        ratio = (size / measured) ** 2
        return Costs(self.step * ratio, self.sample * ratio)


@dataclass(frozen=True)
class Counts:
    """Numbers of training, validation and test samples of a fold."""

    train: int
    validated: int
    tested: int


@dataclass(frozen=True)
class Lengths:
    """The lengths that fit into the time.

    Attributes:
        size: Side of a training crop in pixels; None for texts, and if a file or an option sets it.
        folds: Number of folds.
        steps: Steps of a training of the trunk; 0 trains no trunk.
    """

    size: int | None
    folds: int
    steps: int


@dataclass(frozen=True)
class Plan:
    """The content of the study file.

    Attributes:
        trunk: Name of the selected trunk.
        start: Initial weights of a head.
        num_features: Length of the trunk's features.
        embedding_size: Embedding size of a head, and of a PCA of the trained trunk.
        sizes: Name of each trunk to the side of its crops, `Lengths.size`.
        lines: The choices and their reasons.
    """

    lengths: Lengths
    blocks: int
    trunk: str
    start: str
    num_features: int
    embedding_size: int
    sizes: Mapping[str, int | None]
    lines: tuple[str, ...]


def seconds(costs: Costs, counts: Counts, folds: int, steps: int, workers: int = 1) -> float:
    """Expected seconds for the whole ladder. A training uses one core; the folds of both losses train side by side."""
    # Per fold and loss: validations, selection of the average, PCA; then three models embed the test samples.
    trunk = steps * costs.step
    trunk += costs.sample * ((2 * VALIDATIONS + 2) * counts.validated + counts.train + 3 * counts.tested)
    features = costs.sample * (counts.train + counts.validated + counts.tested)
    return features + -(-2 * folds // workers) * (HEAD_SECONDS + (trunk if steps else 0.0))


def choose(
    costs: Costs,
    counts: Counts,
    most_folds: int,
    usual: int,
    budget: float,
    sizes: Sequence[int],
    measured: int,
    workers: int = 1,
) -> Lengths:
    """Choose what fits into `budget` seconds: folds, whose classes decide, then larger images, then steps.

    Args:
        costs: The costs at the image size `measured`.
        usual: The usual number of steps.
        sizes: Possible sides; empty if there is no choice.
    """

    def fits(size: int | None, folds: int) -> bool:
        return seconds(costs if size is None else costs.at(size, measured), counts, folds, usual, workers) <= budget

    usable: list[int | None] = [*sorted(sizes)] or [None]
    enough = [size for size in usable if size is None or size <= ENOUGH] or usable
    folds = max([1, *(k for k in range(2, most_folds + 1) if fits(enough[-1], k))])
    size = ([each for each in usable if fits(each, folds)] or usable[:1])[-1]
    here = costs if size is None else costs.at(size, measured)
    fixed = seconds(here, counts, 1, 1, workers)
    fitting = int((budget - fixed) / (-(-2 // workers) * here.step)) // FEWEST_STEPS * FEWEST_STEPS
    if fitting < FEWEST_STEPS:  # of one fold
        return Lengths(size, most_folds, 0)
    steps = min(usual, fitting)
    for _ in range(DOUBLINGS):
        if seconds(here, counts, folds, 2 * steps, workers) <= budget:
            steps *= 2
    return Lengths(size, folds, steps)


def make_plan(
    dataset: "MetricDataset",
    index: "SampleIndex",
    tested: int,
    base: Config,
    trunks: Mapping[str, Config],
    blocks: int,
    budget: float,
    workers: int = 1,
) -> Plan:
    """Measure the trunks on the data and choose the trainings.

    Args:
        tested: Number of test samples.
        base: The settings of the data.
        trunks: Name to the settings of each trunk.
        blocks: Blocks of classes; each fold validates one.
        budget: Seconds.
        workers: Trainings side by side.
    """
    usual = STEPS[dataset.modality]
    trained = len(index.keys) - tested
    counts = Counts(round(trained * (1 - 1 / blocks)), round(trained / blocks), tested)
    with fixed_threads(1), tempfile.TemporaryDirectory() as folder:
        looked = {name: _sizes(dataset, index, merge(base, each)) for name, each in trunks.items()}
        at_measured = {name: merge(merge(base, with_size(looked[name][1])), each) for name, each in trunks.items()}
        costs = {name: _measure(each, blocks, Path(folder)) for name, each in at_measured.items()}
        planned = {}
        for name, (sizes, measured, _) in looked.items():
            others = sum(costs[other].sample * (trained + tested) for other in trunks if other != name)
            usable = USABLE * (budget - others)
            planned[name] = choose(costs[name], counts, blocks, usual, usable, sizes, measured or 1, workers)
        folds = min(each.folds for each in planned.values())  # of all, so that the scores are comparable
        settings = {name: merge(merge(base, with_size(planned[name].size)), each) for name, each in trunks.items()}
        scores = {name: _scores(each, folds, blocks, Path(folder)) for name, each in settings.items()}
    trunk = max(scores, key=lambda name: scores[name][0][FEATURES])
    found, num_features, size = scores[trunk]
    start = max(STARTS, key=lambda kind: found[kind])
    lengths, (_, measured, why) = planned[trunk], looked[trunk]
    now = costs[trunk]
    if lengths.size is not None and measured is not None:
        now = now.at(lengths.size, measured)
    lines = [f"images: {why}, so crops of {lengths.size} px fit the time"] if lengths.size else []
    lines.append(
        f"timing: {now.step:.2f} s a training step of 32, {1000 * now.sample:.1f} ms to embed a sample: "
        + (f"{lengths.steps} steps of the trunk" if lengths.steps else "no time to train the trunk")
        + f", validated on {lengths.folds} of {blocks} folds; about "
        + duration(seconds(now, counts, lengths.folds, lengths.steps, workers))
        + f" by {workers} worker{'s' * (workers > 1)}"
    )
    if len(trunks) > 1:
        each = ", ".join(f"{name} {100 * scores[name][0][FEATURES]:.1f}" for name in trunks)
        lines.append(f"validation MAP@R of the features: {each}; compare continues with {trunk}")
    crops = {name: each.size for name, each in planned.items()}
    return Plan(lengths, blocks, trunk, start, num_features, size, crops, tuple(lines))


def definition(name: str, modality: str, data: Config, trunks: Mapping[str, Config], plan: Plan) -> Config:
    """The study file of a plan: one row per step of the ladder.

    Args:
        name: The name of the study.
        data: The settings of the data.
    """
    lengths = plan.lengths
    of_trunk = {name: [with_size(plan.sizes[name]), settings] for name, settings in trunks.items()}
    chosen, derived = of_trunk.pop(plan.trunk), dict[str, Any]()
    head = {"model": {"embedder_init": plan.start, "embedding_size": plan.embedding_size}}
    methods: dict[str, Any] = {f"head_{loss}": [path, *chosen, head] for loss, path in LOSSES.items()}
    if lengths.steps:
        for loss, path in LOSSES.items():
            own = trunk_settings(modality, lengths.steps)
            own["model"] |= {"embedding_size": plan.num_features}
            methods[f"trunk_{loss}"] = [path, *chosen, own]
        for loss in (PAIR, CLASSES):
            derived[f"trunk_{loss}_averaged"] = {"of": f"trunk_{loss}", "alpha": "validated"}
            if plan.num_features > plan.embedding_size:
                derived[f"trunk_{loss}_pca"] = {"of": f"trunk_{loss}_averaged", "pca": plan.embedding_size}
    return {
        "name": name,
        "base": [HEADS, data],
        "methods": methods,
        **({"derived": derived} if derived else {}),
        "references": ["features", "whitening", f"whitening{plan.embedding_size}"],
        "trunks": of_trunk,
        "folds": lengths.folds,
        "blocks": plan.blocks,
        "runs": 1,
        "threads": 1,
    }


def trunk_settings(modality: str, steps: int) -> Config:
    """The settings that turn the training of a head into a training of the whole trunk."""
    return {
        "model": {
            "freeze_trunk": False,
            "embedder": "levelfield.models.IdentityEmbedder",
            "embedder_init": "random",
            "trunk_lr": TRUNK_LR[modality],
        },
        "data": {"features": False, "steps_per_epoch": max(1, steps // VALIDATIONS)},
        "trainer": {"max_epochs": VALIDATIONS, "callbacks": []},
    }


def with_size(size: int | None) -> Config:
    """The settings for training crops of `size` pixels, which a trunk may override; empty for None."""
    if size is None:
        return {}
    return {"data": {"transforms": {"crop_size": size, "resize": round(size * 8 / 7)}}}


def _sizes(dataset: "MetricDataset", index: "SampleIndex", config: Config) -> tuple[tuple[int, ...], int | None, str]:
    """Possible sides of crops, the side for the measurement, and the reason for the largest."""
    if dataset.modality == "text" or config["data"].get("transforms", {}).get("crop_size") is not None:
        return (), None, ""  # the trunk's file or an option sets it
    positions = torch.linspace(0, len(index.keys) - 1, min(LOOKED_AT, len(index.keys))).long().tolist()
    sides = []
    for position in positions:
        key = index.keys[position]
        file = dataset.file_of(key)
        if file is not None:
            image: Any = dataset.load(key) if file.suffix.lower() == ".parquet" else Image.open(file)
            with image:
                sides.append(min(image.size))
    short = int(median(sides)) if sides else NATIVE
    largest = min([size for size in SIZES if size >= short] or [SIZES[-1]])
    found = tuple(size for size in SIZES if size <= largest)
    return found, found[-1], f"their shorter side has {short} px in the median"


def _measure(config: Config, blocks: int, folder: Path) -> Costs:
    """Time some training steps of the trunk and the embedding of some samples."""
    whole = {"fold": 0, "num_folds": blocks, "cache": False, "num_workers": 0, "features": False}
    trained = {"data": {**whole, "steps_per_epoch": MEASURED_STEPS + 1}, "model": {"freeze_trunk": False}}
    training = build(merge(config, trained), folder, progress=False)
    learner, module = training.model, training.datamodule
    learner.trunk.check_takes(module.dataset)
    module.setup("fit")
    learner.build_loss(module.num_train_classes)
    optimizer = learner.configure_optimizers()
    times = []
    for batch in map(Batch.read, module.train_dataloader()):
        started = time.perf_counter()
        learner.objective(learner.embed_batch(batch), batch.labels)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    started, count = time.perf_counter(), 0
    with torch.no_grad():
        for batch in map(Batch.read, islice(module.val_dataloader(), MEASURED_BATCHES)):
            learner.eval().embed_batch(batch)
            count += len(batch.labels)
    return Costs(fmean(times[1:]), (time.perf_counter() - started) / count)


def _scores(config: Config, folds: int, blocks: int, folder: Path) -> tuple[dict[str, float], int, int]:
    """Validation MAP@R of a trunk's features and of each start of a head (means over folds), and the lengths of
    features and embeddings."""
    found: dict[str, list[float]] = {kind: [] for kind in (FEATURES, *STARTS)}
    shapes: list[tuple[int, int]] = []
    for fold in range(folds):
        training = build(merge(config, {"data": {"fold": fold, "num_folds": blocks}}), folder, progress=False)
        data = training.datamodule
        data.setup("fit")
        data.use_features(TrunkExtractor(training.model.trunk, training.trainer.strategy.root_device))
        train_NF, val_NF = data.evaluated(data.train_subset), data.evaluated(data.val_subset)
        train_labels, val_labels = (torch.from_numpy(part.labels) for part in (data.train_subset, data.val_subset))
        shapes.append((len(train_NF), train_NF.shape[1]))
        size = min(EMBEDDING_SIZE, *shapes[-1])
        embeddings = {FEATURES: val_NF}
        for start in STARTS:
            head = LinearEmbedder(train_NF.shape[1], size)
            start_embedder(head, start, train_NF, train_labels)
            embeddings[start] = head(val_NF).detach()
        for kind, scores in found.items():
            groups = None if data.val_subset.groups is None else torch.from_numpy(data.val_subset.groups)
            result = retrieval_metrics(normalize(embeddings[kind]), val_labels, metrics=(SELECTED_BY,), groups=groups)
            scores.append(float(result[SELECTED_BY]))
    return {kind: fmean(scores) for kind, scores in found.items()}, shapes[0][1], min(EMBEDDING_SIZE, *map(min, shapes))
