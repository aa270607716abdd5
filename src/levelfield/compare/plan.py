"""The plan of `levelfield compare`: what fits into its minutes, on the longest path over the slots that there are.

The costs are measured once, and the plan is made again when the first trunk has trained. The study file has the plan,
so a stopped comparison continues with the same settings.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from levelfield.compare import measure
from levelfield.compare.measure import BATCH, BATCHES, Costs, Machine, machine_here, with_size
from levelfield.core.configuration import OURS, Config, merge
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.study.progress import duration
from levelfield.study.untrained import EMBEDDING_SIZE, FEATURES
from levelfield.study.workers import Slots

ENOUGH = 128  # pixels; larger images come after more folds
# Training steps of a trunk, and how often they may be doubled if there is time.
STEPS = {"image": 600, "text": 400}
DOUBLINGS = 2
FEWEST_STEPS = 100
MORE_RUNS = 3
# Learning rates that raised validation MAP@R on CLINC150, 20 Newsgroups, Glyphs and Omniglot.
TRUNK_LR = {"image": 1e-4, "text": 2e-5}
VALIDATIONS = 4  # per training of the trunk
HEAD_SECONDS = 25.0  # most seconds to train a head
UNTRAINED_ROWS = 4
HEADS = f"{OURS}protocol/heads.yaml"  # how the heads are trained
ON_GPU: Config = {"trainer": {"accelerator": "gpu", "precision": "bf16-mixed"}}
HEAD, TRUNK = "head_", "trunk_"  # beginnings of the rows' names
PAIR = "ntxent"
LOSSES = {PAIR: "levelfield.losses.NTXentLoss", "normalized_softmax": "levelfield.losses.NormalizedSoftmaxLoss"}
USABLE = 0.85  # fraction of the time; starting processes takes the rest
# Multiplications a second of one slot when test embeddings are compared.
PRODUCTS = {"cpu": 1e10, "gpu": 5e12}
MOST_THREADS = 8


@dataclass(frozen=True)
class Lengths:
    """What fits into the time."""

    folds: int
    size: int  # side of a training crop in pixels; 0 for texts, and if a file or an option sets it
    steps: int  # of a training of the trunk; 0 trains no trunk
    runs: int = 1
    batch: int = BATCH

    @property
    def trainings(self) -> int:
        """Of the trunk, or of heads."""
        return len(LOSSES) * self.folds * self.runs

    @property
    def worth(self) -> tuple[float, ...]:
        """The larger of two is worth more: images that are large enough, then the levers of `Expected.choose`."""
        return self.steps > 0, min(self.size, ENOUGH), self.folds, self.size, self.steps, self.runs, self.batch


@dataclass(frozen=True)
class Expected:
    """Expected seconds of the stages of a comparison, one after the other, each on the slots that there are."""

    costs: Costs
    machine: Machine
    train: int  # number of samples of a fold, as the next two
    validated: int
    tested: int

    def seconds(self, lengths: Lengths) -> float:
        """Of the whole ladder."""
        _, chain, test = self.stages(lengths)
        each = HEAD_SECONDS * self.costs.load + (chain if lengths.steps else 0.0)
        cost = self.costs.opened / self.machine.cores + self.costs.of(lengths.size)[1]
        return (self.train + self.validated + self.tested) * cost + self._rounds(lengths.trainings) * each + test

    def stages(self, lengths: Lengths) -> tuple[float, float, float]:
        """Of a training of the trunk with its validations, of this with the choice of its average and a PCA, and of the
        test, in which a unit embeds and scores all folds of a run, and all folds together."""
        step, sample = self.costs.of(lengths.size, lengths.batch)
        trunk = lengths.steps * step + VALIDATIONS * self.validated * sample
        chain = trunk + sample * ((VALIDATIONS + 2) * self.validated + self.train)
        compared = (lengths.folds + (lengths.folds > 1)) * self.tested**2 * EMBEDDING_SIZE / PRODUCTS[self.machine.kind]
        of_trunks = self._rounds(3 * len(LOSSES) * lengths.runs if lengths.steps else 0)  # with averages and PCAs
        of_features = self._rounds(UNTRAINED_ROWS + len(LOSSES) * lengths.runs)
        embedded = lengths.folds * self.tested * sample
        return trunk, chain, of_trunks * (embedded + compared) + of_features * compared

    def _rounds(self, units: int) -> int:
        return -(-units // self.machine.slots)

    def choose(self, most_folds: int, usual: int, budget: float, sizes: Sequence[int]) -> Lengths:
        """What fits into `budget` seconds: each lever in turn gets its largest value that fits, or else its first.

        The classes of the folds decide, so they are the first lever. Fewer steps than usual leave nothing for more.
        `sizes` are the possible sides, ascending; empty if there is no choice.
        """
        levers: dict[str, Sequence[Any]] = {
            "folds": range(1, most_folds + 1),
            "size": sizes or [0],
            "steps": [*range(FEWEST_STEPS, usual, FEWEST_STEPS), *(usual << times for times in range(DOUBLINGS + 1))],
            "runs": (1, MORE_RUNS),
            "batch": [batch for batch in BATCHES[self.machine.kind] if batch <= self.costs.batch],
        }

        def raised(lengths: Lengths, lever: str) -> Lengths:
            each = [replace(lengths, **{lever: value}) for value in levers[lever]]
            return ([one for one in each if self.seconds(one) <= budget] or each[:1])[-1]

        enough = [size for size in sizes if size <= ENOUGH] or levers["size"]
        found = Lengths(1, enough[-1], usual)
        for lever in ("folds", "size", "folds", "steps", "runs", "batch"):  # smaller images leave time for folds
            if found.steps >= usual:
                found = raised(found, lever)
        return found if self.seconds(found) <= budget else raised(replace(found, steps=0), "folds")

    def folds_again(self, now: Lengths, most: int, training: float, started: Sequence[int], left: float) -> int:
        """The most folds that fit into the time that is left when the first trunk has trained, at least 1.

        Args:
            training: Seconds of this training; all others and the test are expected to differ from the plan alike.
            started: The fold of each training of the trunk that has begun, which are about to end too.
            left: Seconds.
        """
        slower = training / self.stages(now)[0]
        for folds in range(most, 1, -1):
            then = replace(now, folds=folds)
            _, chain, test = self.stages(then)
            trunks = self._rounds(then.trainings - sum(fold < folds for fold in started)) * chain
            heads = self._rounds(max(0, then.trainings - now.trainings)) * HEAD_SECONDS * self.costs.load
            if slower * (trunks + heads + test) <= USABLE * left:
                return folds
        return 1


Measured = dict[str, tuple[Expected, Lengths]]  # of each trunk


@dataclass(frozen=True)
class Plan:
    """The study of a comparison, and what it was chosen by."""

    study: Config  # the content of its file, except the name
    path: Expected
    lengths: Lengths
    lines: Sequence[str]  # the choices and their reasons


@dataclass
class Planner:
    """Measures the trunks on the data and chooses the trainings."""

    dataset: MetricDataset
    index: SampleIndex
    tested: int  # number of test samples
    base: Sequence[Any]  # settings of the heads, the device and the data
    trunks: Mapping[str, Config]  # name to settings
    heads: Mapping[str, Config]  # trunk to the whole settings of a head on it
    blocks: int  # of classes; each fold validates one
    ends: float  # when the minutes end, as of `time.monotonic`
    start_slots: Callable[[Machine], Slots]  # starts the processes of the trainings

    def plan(self, machine: Machine, may_use_threads: bool) -> Plan:
        """The plan for this machine; cores that are left over may become threads of the trainings."""
        short, opened = measure.look(self.dataset, self.index)
        with ExitStack() as running:

            def measured(here: Machine) -> tuple[Slots, Measured]:
                slots = self.start_slots(here)
                running.callback(slots.stop)
                return slots, self._measured(here, slots, short, opened)

            slots, found = measured(machine)
            threads = machine.cores // max(lengths.trainings // lengths.runs for _, lengths in found.values())
            if may_use_threads and machine.kind == "cpu" and threads > 1:
                _, again = measured(machine_here({}, "cpu", min(threads, MOST_THREADS)))
                found = max(found, again, key=lambda each: min(one.worth for _, one in each.values()))
            folds = min(lengths.folds for _, lengths in found.values())  # of all, so that the scores are comparable
            configs = {name: merge(self.heads[name], with_size(lengths.size)) for name, (_, lengths) in found.items()}
            calls = [(configs[name], folds, self.blocks, path.machine.threads) for name, (path, _) in found.items()]
            scored = dict(zip(found, measure.in_slots(slots, measure.scores, calls), strict=True))
        trunk = max(scored, key=lambda name: scored[name][0][FEATURES])
        (path, lengths), (quality, num_features, size) = found[trunk], scored[trunk]
        lines = _lines(lengths, path, self.blocks, short)
        if len(scored) > 1:
            each_score = ", ".join(f"{name} {100 * of_trunk[0][FEATURES]:.1f}" for name, of_trunk in scored.items())
            lines.append(f"validation MAP@R of the features: {each_score}; compare continues with {trunk}")
        start = max(measure.STARTS, key=quality.__getitem__)
        return Plan(self._study(trunk, found, start, num_features, size), path, lengths, lines)

    def _measured(self, machine: Machine, slots: Slots, short: int, opened: float) -> Measured:
        """Expected seconds and lengths of each trunk, if there is time for it and for the features of the others."""
        trained = len(self.index.keys) - self.tested
        counts = round(trained * (1 - 1 / self.blocks)), round(trained / self.blocks), self.tested
        seconds = min(measure.MOST_SECONDS, max(self.ends - time.monotonic(), 0) / 60)
        sizes, paths, features = dict[str, Sequence[int]](), dict[str, Expected](), dict[str, float]()
        for name, config in self.heads.items():
            has_choice = self.dataset.modality == "image" and not config["data"].get("transforms", {}).get("crop_size")
            sizes[name] = measure.SIZES[: bisect_left(measure.SIZES, short) + 1] if has_choice else ()
            costs = measure.costs_of(config, sizes[name], opened, machine, slots, seconds)
            paths[name] = Expected(costs, machine, *counts)
            features[name] = costs.of(max(sizes[name], default=0))[1]
        found = {}
        for name, path in paths.items():
            of_others = (sum(features.values()) - features[name]) * sum(counts)
            budget = USABLE * (self.ends - time.monotonic()) - of_others
            found[name] = path, path.choose(self.blocks, STEPS[self.dataset.modality], budget, sizes[name])
        return found

    def _study(self, trunk: str, found: Measured, start: str, num_features: int, size: int) -> Config:
        """A row per step of the ladder of a trunk; `start` is of its heads, `size` also of a PCA after its training."""
        expected, lengths = found[trunk]
        layers = {name: [with_size(found[name][1].size), settings] for name, settings in self.trunks.items()}
        chosen, derived = layers.pop(trunk), dict[str, Any]()
        head = {"model": {"embedder_init": start, "embedding_size": size}}
        model = {"freeze_trunk": False, "trunk_lr": TRUNK_LR[self.dataset.modality], "embedding_size": num_features}
        whole = {
            "model": {**model, "embedder": "levelfield.models.IdentityEmbedder", "embedder_init": "random"},
            "data": {"features": False, "steps_per_epoch": max(1, lengths.steps // VALIDATIONS)},
            "trainer": {"max_epochs": VALIDATIONS, "callbacks": []},
        }
        methods = {f"{HEAD}{loss}": [path, *chosen, head] for loss, path in LOSSES.items()}
        for loss, path in LOSSES.items() if lengths.steps else ():
            row = f"{TRUNK}{loss}"
            methods[row] = [path, *chosen, whole]
            derived[f"{row}_averaged"] = {"of": row, "alpha": "validated"}
            if num_features > size:
                derived[f"{row}_pca"] = {"of": f"{row}_averaged", "pca": size}
        return {
            "base": [*self.base, {"data": {"batch_size": lengths.batch}}],
            "methods": methods,
            "derived": derived,
            "references": ["features", "whitening", f"whitening{size}"],
            "trunks": layers,
            "folds": lengths.folds,
            "blocks": self.blocks,
            "runs": lengths.runs,
            "threads": expected.machine.threads,
        }


def _lines(lengths: Lengths, path: Expected, blocks: int, short: int) -> list[str]:
    """The choices and their reasons."""
    step, sample = path.costs.of(lengths.size, lengths.batch)
    machine, lines = path.machine, list[str]()
    if lengths.size:
        lines = [f"images: their shorter side has {short} px in the median, so crops of {lengths.size} px fit the time"]
    by = f"{machine.slots} worker{'s' * (machine.slots > 1)}"
    by += f" of {machine.threads} threads" * (machine.threads > 1) + " on the GPU" * (machine.kind == "gpu")
    what = f"{lengths.steps} steps of the trunk" if lengths.steps else "no time to train the trunk"
    what += f", validated on {lengths.folds} of {blocks} folds" + f" in {lengths.runs} runs" * (lengths.runs > 1)
    timing = f"timing: {step:.2f} s a training step of {lengths.batch}, {1000 * sample:.1f} ms to embed a sample: "
    return [*lines, f"{timing}{what}; about {duration(path.seconds(lengths))} by {by}"]
