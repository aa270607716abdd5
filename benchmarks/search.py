"""How near the search comes to the best of a recorded curve, without training: the Reality Check's trials, replayed.

    python benchmarks/search.py                                 # 20 seeds; 15 minutes of one core
    python benchmarks/search.py --searches gp random --seeds 3  # a minute

Each of the nine published searches of one argument is a curve of validation MAP@R through its 50 trials, linear
between them in the argument's scale. A search is asked for 30 trials; its score is the best value it met, as a fraction
of the best recorded. The table has the median over the seeds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.study.search_space import Space, read_space
from levelfield.study.suggest import Trial, suggest

CURVES = Path(__file__).parents[1] / "papers/reality_check/published/curves.json"
TRIALS = 30
# Name in the table: sampler and trials a batch.
SEARCHES = {"gp": ("gp", 1), "gp, batches of 4": ("gp", 4), "tpe": ("tpe", 1), "random": ("random", 1)}


@dataclass(frozen=True)
class Curve:
    """A recorded search of one argument.

    Args:
        name: Data set, batch size and loss.
        loss: The loss.
        space: What was searched.
        positions: Of the recorded trials, from 0 to 1 in the argument's scale.
        values: Their validation MAP@R.
    """

    name: str
    loss: str
    space: Space
    positions: np.ndarray
    values: np.ndarray

    def value(self, parameters: dict[str, float]) -> float:
        ((argument, place),) = self.space.items()
        return float(np.interp(place.position(parameters[argument]), self.positions, self.values))

    @property
    def best(self) -> float:
        return float(self.values.max())


def recorded_curves() -> list[Curve]:
    """The nine curves."""
    return [_curve(record) for record in json.loads(CURVES.read_text(encoding="utf-8"))["curves"]]


def _curve(record: dict[str, Any]) -> Curve:
    name = f"{record['dataset']} {record['batch_size']} {record['loss']}"
    space = read_space(record["space"], name)
    (place,) = space.values()
    positions = np.array([place.position(tried) for tried in record["tried"]])
    return Curve(name, record["loss"], space, positions, np.array(record["val_map_at_r"]))


def replay(curve: Curve, seed: int, sampler: str, batch: int = 1, trials: int = TRIALS) -> list[float]:
    """Best value met after each trial, as a fraction of the best recorded."""
    finished: list[Trial] = []
    while len(finished) < trials:
        numbers = range(len(finished), min(len(finished) + batch, trials))
        # A batch is suggested whole before its first trial ends.
        asked = [suggest(curve.space, finished, number, seed, curve.loss, sampler) for number in numbers]
        finished += [
            Trial(number, parameters, curve.value(parameters))
            for number, parameters in zip(numbers, asked, strict=True)
        ]
    return (np.maximum.accumulate([curve.value(trial.parameters) for trial in finished]) / curve.best).tolist()


def reached(curve: Curve, seeds: int, sampler: str, batch: int = 1) -> tuple[float, float]:
    """Medians over the seeds after 10 and after 30 trials."""
    replays = [replay(curve, seed, sampler, batch) for seed in range(seeds)]
    return statistics.median(r[9] for r in replays), statistics.median(r[29] for r in replays)


def percent(scores: Sequence[float]) -> str:
    return " / ".join(f"{100 * score:.1f}" for score in scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()

    start = time.perf_counter()
    print(f"| % of the best recorded value after 10 / 30 trials | {' | '.join(arguments.searches)} |")
    print(f"| --- |{' --- |' * len(arguments.searches)}")
    rows = []
    for curve in recorded_curves():
        row = [reached(curve, arguments.seeds, *SEARCHES[name]) for name in arguments.searches]
        print(f"| {curve.name} | {' | '.join(map(percent, row))} |", flush=True)
        rows.append(row)
    medians = [
        [statistics.median(scores) for scores in zip(*column, strict=True)] for column in zip(*rows, strict=True)
    ]
    print(f"| median of the nine | {' | '.join(map(percent, medians))} |")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
