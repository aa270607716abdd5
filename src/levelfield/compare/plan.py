"""The plan of `levelfield compare`: what fits into its minutes, on the longest path over the slots that there are.

The costs are measured once, and the plan is made again when the first trunk has trained. The study file has the plan,
so a stopped comparison continues with the same settings.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from levelfield.compare.measure import (
    BATCH,
    EMBEDDING_SIZE,
    MOST_SECONDS,
    STARTS,
    Costs,
    costs_of,
    result_of,
    scores,
    seconds_to_open,
    sizes_of,
)
from levelfield.core.configuration import OURS, Config, merge
from levelfield.core.processes import cores_here, free_memory
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.study.progress import duration
from levelfield.study.untrained import FEATURES
from levelfield.study.workers import Slots, attempt

Kind = Literal["cpu", "gpu"]
ENOUGH = 128  # larger images come after more folds
# Training steps of a trunk, and how often they may be doubled if there is time.
STEPS = {"image": 600, "text": 400}
DOUBLINGS = 2
FEWEST_STEPS = 100
MORE_RUNS = 3
BATCHES: Mapping[Kind, Sequence[int]] = {"cpu": (BATCH,), "gpu": (BATCH, 64, 128)}
# Learning rates that raised validation MAP@R on CLINC150, 20 Newsgroups, Glyphs and Omniglot.
TRUNK_LR = {"image": 1e-4, "text": 2e-5}
VALIDATIONS = 4  # per training of the trunk
HEAD_SECONDS = 25.0  # most seconds to train a head
UNTRAINED_ROWS = 4
HEADS = f"{OURS}protocol/heads.yaml"  # how the heads are trained
ON_GPU: Config = {"trainer": {"accelerator": "gpu", "precision": "bf16-mixed"}}
PAIR, CLASSES = "ntxent", "normalized_softmax"
HEAD, TRUNK = "head_", "trunk_"  # beginnings of the rows' names
LOSSES = {PAIR: "levelfield.losses.NTXentLoss", CLASSES: "levelfield.losses.NormalizedSoftmaxLoss"}
USABLE = 0.85  # fraction of the time; starting processes takes the rest
# Of one slot: its memory, and multiplications a second when test embeddings are compared.
BYTES: Mapping[Kind, int] = {"cpu": 2 << 30, "gpu": 6 << 30}
PRODUCTS: Mapping[Kind, float] = {"cpu": 1e10, "gpu": 5e12}
MOST_THREADS = 8


@dataclass(frozen=True)
class Machine:
    """Where the trainings run.

    Attributes:
        slots: Trainings side by side.
        cores: Cores that decode images.
        threads: Threads of a training.
    """

    kind: Kind
    slots: int
    cores: int
    threads: int = 1


@dataclass(frozen=True)
class Lengths:
    """What fits into the time.

    Attributes:
        size: Side of a training crop in pixels; None for texts, and if a file or an option sets it.
        steps: Steps of a training of the trunk; 0 trains no trunk.
    """

    size: int | None
    folds: int
    steps: int
    runs: int = 1
    batch: int = BATCH

    @property
    def trainings(self) -> int:
        """Of the trunk, or of heads."""
        return len(LOSSES) * self.folds * self.runs


@dataclass(frozen=True)
class Expected:
    """Expected seconds of the stages of a comparison, one after the other, each on the slots that there are.

    Attributes:
        train, validated, tested: Numbers of samples of a fold.
    """

    costs: Costs
    machine: Machine
    train: int
    validated: int
    tested: int

    def seconds(self, lengths: Lengths) -> float:
        """Of the whole ladder."""
        cost = self.costs.opened / self.machine.cores + self.costs.of(lengths.size)[1]
        each = HEAD_SECONDS * self.costs.load + (self.chain(lengths) if lengths.steps else 0.0)
        prepared = (self.train + self.validated + self.tested) * cost
        return prepared + self._rounds(lengths.trainings) * each + self.test(lengths)

    def trunk(self, lengths: Lengths) -> float:
        """Of one training of the trunk, with its validations."""
        step, sample = self.costs.of(lengths.size, lengths.batch)
        return lengths.steps * step + VALIDATIONS * self.validated * sample

    def chain(self, lengths: Lengths) -> float:
        """Of a training of the trunk, of the choice of its average, and of a PCA."""
        _, sample = self.costs.of(lengths.size)
        return self.trunk(lengths) + sample * ((VALIDATIONS + 2) * self.validated + self.train)

    def test(self, lengths: Lengths) -> float:
        """Of the test: a unit embeds and scores all folds of a run, and all folds together."""
        sets = lengths.folds + (lengths.folds > 1)
        compared = sets * self.tested**2 * EMBEDDING_SIZE / PRODUCTS[self.machine.kind]
        of_trunks = self._rounds(3 * len(LOSSES) * lengths.runs if lengths.steps else 0)  # with averages and PCAs
        of_features = self._rounds(UNTRAINED_ROWS + len(LOSSES) * lengths.runs)
        embedded = lengths.folds * self.tested * self.costs.of(lengths.size)[1]
        return of_trunks * (embedded + compared) + of_features * compared

    def _rounds(self, units: int) -> int:
        return -(-units // self.machine.slots)

    def choose(self, most_folds: int, usual: int, budget: float, sizes: Sequence[int]) -> Lengths:
        """What fits into `budget` seconds: folds, whose classes decide, then larger images, steps, runs, batches.

        Args:
            usual: The usual number of steps.
            sizes: Possible sides, ascending; empty if there is no choice.
        """

        def raised(lengths: Lengths, **values: Sequence[Any]) -> Lengths:
            """With the last value of each key that fits; with the first one if none does."""
            for key, possible in values.items():
                each = [replace(lengths, **{key: value}) for value in possible]
                lengths = ([one for one in each if self.seconds(one) <= budget] or each[:1])[-1]
            return lengths

        folds, enough = range(1, most_folds + 1), [size for size in sizes if size <= ENOUGH] or sizes
        found = raised(Lengths(enough[-1] if enough else None, 1, usual), folds=folds)
        found = raised(found, size=sizes or [None])
        if self.seconds(found) > budget:
            found = raised(found, steps=range(FEWEST_STEPS, usual, FEWEST_STEPS))
            return found if self.seconds(found) <= budget else raised(replace(found, steps=0), folds=folds)
        batches = [batch for batch in BATCHES[self.machine.kind] if batch <= self.costs.batch]
        doubled = [usual * 2**times for times in range(DOUBLINGS + 1)]
        return raised(found, steps=doubled, runs=(1, MORE_RUNS), batch=batches)

    def folds_again(self, now: Lengths, most: int, training: float, started: Sequence[int], left: float) -> int:
        """The most folds that fit into the time that is left when the first trunk has trained, at least 1.

        Args:
            training: Seconds of this training; all others and the test are expected to differ from the plan alike.
            started: The fold of each training of the trunk that has begun, which are about to end too.
            left: Seconds.
        """
        slower = training / self.trunk(now)
        for folds in range(most, 1, -1):
            then = replace(now, folds=folds)
            trunks = self._rounds(then.trainings - sum(fold < folds for fold in started)) * self.chain(then)
            heads = self._rounds(max(0, then.trainings - now.trainings)) * HEAD_SECONDS * self.costs.load
            if slower * (trunks + heads + self.test(then)) <= USABLE * left:
                return folds
        return 1


@dataclass(frozen=True)
class Plan:
    """The content of the study file, and what it was chosen by.

    Attributes:
        blocks: Blocks of classes; each fold validates one.
        trunk: Name of the selected trunk.
        sizes: Name of each trunk to the side of its crops.
        start: Initial weights of a head.
        num_features: Length of the trunk's features.
        embedding_size: Embedding size of a head, and of a PCA of the trained trunk.
        lines: The choices and their reasons.
    """

    lengths: Lengths
    path: Expected
    blocks: int
    trunk: str
    sizes: Mapping[str, int | None]
    start: str
    num_features: int
    embedding_size: int
    lines: tuple[str, ...]


def machine_here(options: Mapping[str, Any], accelerator: str | None, threads: int = 1) -> Machine:
    """The slots of this machine: one per GPU, or one per core, as far as memory allows.

    Args:
        options: Those of the executor, of which `workers` counts.
        accelerator: That of the user; None takes a GPU if there is one.
    """
    kind: Kind = "cpu" if accelerator == "cpu" or not (accelerator or torch.cuda.is_available()) else "gpu"
    asked = options.get("workers")
    most = cores_here() // threads if kind == "cpu" else torch.cuda.device_count()
    slots = asked if isinstance(asked, int) else min(most, free_memory() // BYTES[kind])
    return Machine(kind, max(1, slots), cores_here(), threads)


@dataclass
class Planner:
    """Measures the trunks on the data and chooses the trainings.

    Args:
        tested: Number of test samples.
        trunks: Name of each trunk to the whole settings of a head on it.
        blocks: Blocks of classes; each fold validates one.
        ends: When the minutes end, as of `time.monotonic`.
        start_slots: Starts the processes of the trainings.
    """

    dataset: MetricDataset
    index: SampleIndex
    tested: int
    trunks: Mapping[str, Config]
    blocks: int
    ends: float
    start_slots: Callable[[Machine], Slots]

    def __post_init__(self) -> None:
        trained = len(self.index.keys) - self.tested
        self.counts = round(trained * (1 - 1 / self.blocks)), round(trained / self.blocks), self.tested
        found = {name: sizes_of(self.dataset, self.index, config) for name, config in self.trunks.items()}
        self.sizes = {name: sizes for name, (sizes, _) in found.items()}
        self.why = {name: why for name, (_, why) in found.items()}
        self.opened = seconds_to_open(self.dataset, self.index)

    def config_of(self, name: str, size: int | None) -> Config:
        """The settings of a trunk at an image size."""
        return merge(self.trunks[name], with_size(size))

    def plan(self, machine: Machine, may_use_threads: bool) -> Plan:
        """The plan for this machine; cores that are left over may become threads of the trainings."""
        slots = self.start_slots(machine)
        try:
            paths, lengths = self._measured(machine, slots)
            threads = machine.cores // max(each.trainings for each in lengths.values())
            if may_use_threads and machine.kind == "cpu" and threads > 1:
                more = machine_here({}, "cpu", min(threads, MOST_THREADS))
                others = self.start_slots(more)
                try:
                    again = self._measured(more, others)
                finally:
                    others.stop()
                if min(map(_worth, again[1].values())) > min(map(_worth, lengths.values())):
                    machine, (paths, lengths) = more, again
            folds = min(each.folds for each in lengths.values())  # of all, so that the scores are comparable
            configs = [self.config_of(name, each.size) for name, each in lengths.items()]
            how = folds, self.blocks, machine.threads
            futures = [slots.submit(n % slots.number, attempt, scores, each, *how) for n, each in enumerate(configs)]
            found = dict(zip(lengths, map(result_of, futures), strict=True))
        finally:
            slots.stop()
        trunk = max(found, key=lambda name: found[name][0][FEATURES])
        quality, num_features, size = found[trunk]
        start, sizes = max(STARTS, key=quality.__getitem__), {name: one.size for name, one in lengths.items()}
        lines = self._lines(trunk, paths[trunk], lengths[trunk])
        if len(found) > 1:
            each_score = ", ".join(f"{name} {100 * of_trunk[0][FEATURES]:.1f}" for name, of_trunk in found.items())
            lines.append(f"validation MAP@R of the features: {each_score}; compare continues with {trunk}")
        return Plan(lengths[trunk], paths[trunk], self.blocks, trunk, sizes, start, num_features, size, tuple(lines))

    def _measured(self, machine: Machine, slots: Slots) -> tuple[dict[str, Expected], dict[str, Lengths]]:
        """Expected seconds and lengths of each trunk, if there is time for it and for the features of the others."""
        at_most = min(MOST_SECONDS, max(self.ends - time.monotonic(), 0) / 60)
        how = BATCHES[machine.kind], self.opened, slots, machine.threads, at_most
        costs = {name: costs_of(partial(self.config_of, name), sizes, *how) for name, sizes in self.sizes.items()}
        paths = {name: Expected(each, machine, *self.counts) for name, each in costs.items()}
        features = {name: costs[name].of(max(sizes, default=None))[1] for name, sizes in self.sizes.items()}
        lengths = {}
        for name, sizes in self.sizes.items():
            of_others = (sum(features.values()) - features[name]) * sum(self.counts)
            budget = USABLE * (self.ends - time.monotonic()) - of_others
            lengths[name] = paths[name].choose(self.blocks, STEPS[self.dataset.modality], budget, sizes)
        return paths, lengths

    def _lines(self, trunk: str, path: Expected, lengths: Lengths) -> list[str]:
        """The choices and their reasons."""
        step, sample = path.costs.of(lengths.size, lengths.batch)
        machine = path.machine
        by = f"{machine.slots} worker{'s' * (machine.slots > 1)}"
        by += f" of {machine.threads} threads" * (machine.threads > 1) + " on the GPU" * (machine.kind == "gpu")
        what = f"{lengths.steps} steps of the trunk" if lengths.steps else "no time to train the trunk"
        what += f", validated on {lengths.folds} of {self.blocks} folds"
        what += f" in {lengths.runs} runs" * (lengths.runs > 1)
        timing = f"timing: {step:.2f} s a training step of {lengths.batch}, {1000 * sample:.1f} ms to embed a sample: "
        timing += f"{what}; about {duration(path.seconds(lengths))} by {by}"
        images = f"images: {self.why[trunk]}, so crops of {lengths.size} px fit the time"
        return [*([images] if lengths.size else []), timing]


def _worth(lengths: Lengths) -> tuple[int, ...]:
    return (lengths.steps > 0, lengths.folds, lengths.size or 0, lengths.steps, lengths.runs, lengths.batch)


def definition(name: str, modality: str, base: Sequence[Any], trunks: Mapping[str, Config], plan: Plan) -> Config:
    """The study file of a plan: one row per step of the ladder.

    Args:
        name: The name of the study.
        base: The settings of the heads, the device and the data.
    """
    lengths, trunk_lr = plan.lengths, TRUNK_LR[modality]
    of_trunk = {trunk: [with_size(plan.sizes[trunk]), settings] for trunk, settings in trunks.items()}
    chosen, derived = of_trunk.pop(plan.trunk), dict[str, Any]()
    head = {"model": {"embedder_init": plan.start, "embedding_size": plan.embedding_size}}
    methods: dict[str, Any] = {f"{HEAD}{loss}": [path, *chosen, head] for loss, path in LOSSES.items()}
    for loss, path in LOSSES.items() if lengths.steps else ():
        of_whole = {
            "model": {
                "freeze_trunk": False,
                "embedder": "levelfield.models.IdentityEmbedder",
                "embedder_init": "random",
                "trunk_lr": trunk_lr,
                "embedding_size": plan.num_features,
            },
            "data": {"features": False, "steps_per_epoch": max(1, lengths.steps // VALIDATIONS)},
            "trainer": {"max_epochs": VALIDATIONS, "callbacks": []},
        }
        methods[f"{TRUNK}{loss}"] = [path, *chosen, of_whole]
        derived[f"{TRUNK}{loss}_averaged"] = {"of": f"{TRUNK}{loss}", "alpha": "validated"}
        if plan.num_features > plan.embedding_size:
            derived[f"{TRUNK}{loss}_pca"] = {"of": f"{TRUNK}{loss}_averaged", "pca": plan.embedding_size}
    return {
        "name": name,
        "base": [*base, {"data": {"batch_size": lengths.batch}}],
        "methods": methods,
        **({"derived": derived} if derived else {}),
        "references": ["features", "whitening", f"whitening{plan.embedding_size}"],
        "trunks": of_trunk,
        "folds": lengths.folds,
        "blocks": plan.blocks,
        "runs": lengths.runs,
        "threads": plan.path.machine.threads,
    }


def with_size(size: int | None) -> Config:
    """The settings for training crops of `size` pixels, which a trunk may override; empty for None."""
    if size is None:
        return {}
    return {"data": {"transforms": {"crop_size": size, "resize": round(size * 8 / 7)}}}
