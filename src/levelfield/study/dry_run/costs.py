"""What a study would take, before it is begun: its jobs, and hours from training steps that are measured here."""

import gc
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelfield.data.places import root_in_vain
from levelfield.study.definition.configuration import Config, flatten, init_args, set_dotted
from levelfield.study.definition.spec import StudySpec, is_baseline
from levelfield.study.dry_run.step_time import batch_in_words, loss_step, median_seconds, network_step
from levelfield.study.execution.worker import fixed_threads
from levelfield.study.jobs.job import study_jobs
from levelfield.study.jobs.state import first_config
from levelfield.training.build import build

OF_THE_LOSS = ("model.loss", "model.miner", "model.regularizer", "data.samples_per_class", "seed_everything")


@dataclass(frozen=True)
class MethodCost:
    """What the jobs of one method take.

    Args:
        trials: Jobs of the search: trials x folds, and those of the trials that are trained again.
        runs: Jobs of the runs: runs x folds.
        step_seconds: Median time of a training step.
        batch: What a step was measured on, in words.
        least_steps: Training steps of a job that stops as soon as early stopping can.
        most_steps: Training steps of a job that nothing stops early; infinite where the configuration has no bound.
        fixed_runs: Whether nothing stops a run early.
    """

    method: str
    trials: int
    runs: int
    step_seconds: float
    batch: str
    least_steps: float
    most_steps: float
    fixed_runs: bool = False

    @property
    def least_hours(self) -> float:
        of_runs = self.runs * (self.most_steps if self.fixed_runs else self.least_steps)
        return (self.trials * self.least_steps + of_runs) * self.step_seconds / 3600

    @property
    def most_hours(self) -> float:
        return (self.trials + self.runs) * self.most_steps * self.step_seconds / 3600


def dry_run(console: Console, spec: StudySpec) -> int:
    """Print the study's jobs and the hours of their training steps; trains nothing and opens no image or text.

    Raises:
        UserError: a method that cannot be built.
    """
    costs = method_costs(spec, console)
    table = Table(title=Text(spec.name), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("jobs,\nsearch", "jobs,\nruns", "seconds\na step", "hours,\nat least", "hours,\nat most"):
        table.add_column(heading, justify="right", vertical="bottom")
    for cost in costs:
        numbers = (_hours(cost.least_hours), _hours(cost.most_hours))
        table.add_row(Text(cost.method), f"{cost.trials:,}", f"{cost.runs:,}", f"{cost.step_seconds:.3f}", *numbers)
    if costs:
        console.print(table)
    for line in summary(spec, costs):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def summary(spec: StudySpec, costs: list[MethodCost]) -> list[str]:
    """The jobs and hours of all methods together, what was measured, and what the hours leave out."""
    trials, runs = sum(cost.trials for cost in costs), sum(cost.runs for cost in costs)
    jobs = len(study_jobs(spec))
    least, most = sum(cost.least_hours for cost in costs), sum(cost.most_hours for cost in costs)
    pruned = " (fewer, as trials are pruned)" if spec.search.prune else ""
    lines = [
        f"{jobs:,} jobs: {trials:,} trainings in the search{pruned}, {runs:,} in the runs, {jobs - trials - runs} fits "
        "of the pretrained baseline" + " and its references" * bool(spec.references),
    ]
    if not costs:
        return [*lines, "nothing is trained: what takes time is reading the samples and the trunks' features of them"]
    lines += [
        "a step was measured here, on the machine as busy as it is, on "
        + ", ".join(sorted({cost.batch for cost in costs})),
    ]
    if least == most:
        lines.append(f"the trainings' steps take {_hours(most)} hours at this speed, one training at a time")
    else:
        first, last = min(cost.least_steps for cost in costs), max(cost.most_steps for cost in costs)
        lines.append(
            f"the trainings' steps take from {_hours(least)} to {_hours(most)} hours at this speed, one training at a "
            f"time: the bounds are early stopping at its first chance, after {first:,.0f} steps, and never, after "
            f"{last:,.0f}; where between them a training stops is not known before it"
        )
    return [*lines, "not in these hours: reading and augmenting samples, validation, the baseline and the test"]


def _hours(hours: float) -> str:
    if hours == math.inf:
        return "unbounded"
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def method_costs(spec: StudySpec, console: Console | None = None) -> list[MethodCost]:
    """Build each method with random weights and time its step on random samples.

    The network is timed once for all methods that share it, with batch and samples; each method's loss by itself.

    Args:
        console: Where the counts of one's own data are shown; published data need not be there.

    Raises:
        UserError: a method that cannot be built.
    """
    jobs = study_jobs(spec)
    costs: list[MethodCost] = []
    network_seconds: dict[str, float] = {}
    with fixed_threads(spec.threads), tempfile.TemporaryDirectory() as folder:
        for method in dict.fromkeys(job.method for job in jobs if not is_baseline(job.method)):
            config = _without_download(first_config(spec, method))
            training = build(config, Path(folder), progress=False)
            if console is not None and not costs:
                data = training.datamodule
                own = data.dataset.num_classes_published is None
                for line in data.overview() if own else root_in_vain(data.dataset, data.root):
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
            network = _network(config)
            if network not in network_seconds:
                network_seconds[network] = median_seconds(network_step(training), training)
            loss_seconds = median_seconds(loss_step(training), training)
            least, most = training_steps(training.trainer, training.datamodule.steps_per_epoch)
            costs.append(
                MethodCost(
                    method,
                    trials=sum(job.method == method and job.stage != "run" for job in jobs),
                    runs=sum((job.method, job.stage) == (method, "run") for job in jobs),
                    step_seconds=network_seconds[network] + loss_seconds,
                    batch=batch_in_words(training, spec.threads),
                    least_steps=least,
                    most_steps=most,
                    fixed_runs=spec.whole_half,
                )
            )
            del training
            gc.collect()  # a Trainer is a ring of references, and fourteen models need not be in memory at once
    return costs


def _network(config: Config) -> str:
    """All of a configuration but what belongs to the loss, and the seed of a second search."""
    return repr([(key, value) for key, value in flatten(config) if not key.startswith(OF_THE_LOSS)])


def _without_download(config: Config) -> Config:
    """Random weights where pretrained ones would be fetched: they take as long."""
    if init_args(config["model"].get("trunk")).get("weights") != "pretrained":
        return config
    return set_dotted(config, "model.trunk.weights", None)


def training_steps(trainer: Trainer, steps_per_epoch: int) -> tuple[float, float]:
    """Fewest and most steps of a training: stopped at early stopping's first chance, and not at all."""
    bounds = [math.inf]
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        bounds.append(trainer.max_epochs * steps_per_epoch)
    if trainer.max_steps >= 0:
        bounds.append(trainer.max_steps)
    most = min(bounds)
    # A fraction of an epoch, or a number of batches.
    interval = trainer.val_check_interval
    evaluated_every = (interval * steps_per_epoch if isinstance(interval, float) else interval) * (
        trainer.check_val_every_n_epoch or 1
    )
    # The first evaluation is the best so far; `patience` others without a better one end the training.
    chances = [
        (callback.patience + 1) * evaluated_every
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping)
    ]
    return min([*chances, most]), most
