"""What W&B's and TensorBoard's logs cost a step of training: paired trainings with and without, in CPU time.

python benchmarks/tracking.py [--steps 1000] [--pairs 10]

Wall time says little on a busy machine. CPU time is that of this process and of all that it has started, W&B's own
service among them, from the first step to the last.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from scipy.stats import t

from levelfield.training.build import build
from levelfield.training.trackers import QUIET

WANDB: dict[str, Any] = {
    "class_path": "lightning.pytorch.loggers.WandbLogger",
    "init_args": {"project": "levelfield", "offline": True},
}
TRACKERS: dict[str, dict[str, Any]] = {
    "W&B, a fit": WANDB,
    "W&B, a study's job": WANDB,
    "TensorBoard": {
        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "init_args": {"save_dir": "elsewhere"},
    },
}
DATA: dict[str, Any] = {
    "dataset": {"class_path": "Glyphs", "init_args": {"num_classes": 48}},
    "transforms": {"resize": 64, "crop_size": 64, "horizontal_flip": False},
    "num_workers": 0,
}
# Which part trains, on what, and how many of the steps asked for it gets.
TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "embedder and loss, on features": ({"freeze_trunk": True}, {"features": True}, 1),
    "EfficientNet-Lite0, 64 px": ({}, {}, 0.1),
}


class Clock(Callback):
    """CPU seconds between the first step and the last."""

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step == 1:  # the first has costs of its own
            self.began = cpu_seconds()

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self.seconds = (cpu_seconds() - self.began) / (trainer.global_step - 1)


def cpu_seconds() -> float:
    """User and system time of this process and its descendants."""
    ticks, parents, pids = {}, {}, [os.getpid()]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    own = sum(os.times()[:2])  # finer than the ticks
    return own + sum(ticks[pid] for pid in pids[1:]) / os.sysconf("SC_CLK_TCK")


def step_seconds(training: str, tracker: str | None, steps: int, loss: str) -> float:
    model, data, share = TRAININGS[training]
    config: dict[str, Any] = {
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": 1,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "logger": None if tracker is None else TRACKERS[tracker],
        },
        "model": {"loss": loss, **model},
        "data": {**DATA, **data, "steps_per_epoch": max(int(steps * share), 2)},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = {"name": "benchmark", **({"settings": QUIET} if tracker and "study" in tracker else {})}
        built = build(config, Path(folder), progress=False, tracked=run)
        clock = Clock()
        built.trainer.callbacks.append(clock)
        built.trainer.fit(built.model, datamodule=built.datamodule)
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--loss", default="ContrastiveLoss")
    asked = parser.parse_args()
    os.environ["WANDB_SILENT"] = "true"
    torch.set_num_threads(1)
    print("| what trains | tracker | step, ms of CPU | share, ± half a 95% interval over the pairs |")
    print("| --- | --- | ---: | ---: |")
    for training in TRAININGS:
        for tracker in TRACKERS:
            pairs = []
            for turn in range(asked.pairs):  # who is first takes turns: a processor is slower as it grows warm
                order = [None, tracker][:: -1 if turn % 2 else 1]
                seconds = {which: step_seconds(training, which, asked.steps, asked.loss) for which in order}
                pairs.append((seconds[None], seconds[tracker]))
            alone = statistics.mean(without for without, _ in pairs)
            more = [100 * (with_it - without) / alone for without, with_it in pairs]
            half = t.ppf(0.975, len(more) - 1) * statistics.stdev(more) / len(more) ** 0.5
            print(
                f"| {training} | {tracker} | {1e3 * alone:.2f} | {statistics.mean(more):.1f}% ± {half:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
