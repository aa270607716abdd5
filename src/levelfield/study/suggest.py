"""The search for a method's arguments: the setting of a trial is a function of the finished trials.

Each trial gets a new sampler with a seed from (study seed, method, trial number). No state is kept between trials, so a
resumed study, or one with several workers, searches exactly like an uninterrupted one. An Optuna sampler that is kept,
or restored from its journal, would suggest other settings.
"""

import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from levelfield.core.seeds import seed_of
from levelfield.study.search_space import SAMPLERS, Point, Space, coordinates, settings

# Trials before the first model of the scores.
FIRST_POINTS = 5
# Values this close to a bound, as a fraction of the range, are flagged.
NEAR_BOUND = 0.01


@dataclass(frozen=True)
class Trial:
    """A setting that was tried.

    Args:
        number: Number of the trial, from 0.
        parameters: Dotted key to value.
        value: Mean over folds of the best validation score; None if the trial failed.
    """

    number: int
    parameters: dict[str, Any]
    value: float | None
    failure: str | None = None


def suggest(
    space: Space,
    finished: Sequence[Trial],
    number: int,
    seed: int,
    method: str,
    sampler: str = "gp",
    own: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The setting of trial `number` of a method.

    The first trial has the method's own setting, so the best trial is never worse on the validation folds. The next
    four are scrambled Sobol points, then the sampler decides (`random` from the second trial on). The sampler sees the
    trials in `finished`. Earlier trials of the same batch count as running, which keeps the trials of a batch apart. A
    failed trial counts as the lower quartile of the values so far: low enough to keep the search away, but not an
    outlier for the model.

    Args:
        finished: Finished trials, in any order.
        method: Name in the study; two names of one loss search differently.
        sampler: `gp` (Gaussian process, expected improvement), `tpe` or `random`.
        own: The method's own setting, dotted key to value. For a missing key, or a value outside its range, a Sobol
            point decides.

    Returns:
        Dotted key to value, with tied keys and the settings of choices; the same for the same arguments in any process.
    """
    if not space:
        return {}
    ordered = dict(sorted(space.items()))  # the order of a space's lines does not matter
    first = coordinates(ordered, own)
    if sampler == "random":
        import numpy as np

        positions = np.random.default_rng(seed_of("search", seed, method, number, bits=32)).random(len(space))
        return settings(space, _point(ordered, positions) | (first if number == 0 else {}))
    from scipy.stats.qmc import Sobol  # scipy.stats takes a second to import

    quasi_random = Sobol(len(space), scramble=True, seed=seed_of("search", seed, method, bits=32))
    points = quasi_random.random_base2(number.bit_length())  # their number must be a power of two
    ended = sorted(finished, key=lambda trial: trial.number)
    values = [trial.value for trial in ended if trial.value is not None]
    low = statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else sum(values)
    known = [(coordinates(ordered, trial.parameters), low if trial.value is None else trial.value) for trial in ended]
    running: list[Point] = []
    for each in sorted({*range(number + 1)} - {trial.number for trial in ended if trial.number != number}):
        if each < FIRST_POINTS or not values:
            running.append(_point(ordered, points[each]) | (first if each == 0 else {}))
        else:
            running.append(_ask(ordered, known, running, seed_of("search", seed, method, each, bits=32), sampler))
    return settings(space, running[-1])


def _point(space: Space, positions: Iterable[float]) -> Point:
    return {key: axis.at(float(position)) for (key, axis), position in zip(space.items(), positions, strict=True)}


def _ask(space: Space, known: Sequence[tuple[Point, float]], running: Sequence[Point], seed: int, name: str) -> Point:
    """The parameters that a new Optuna sampler suggests after these trials."""
    import optuna
    from optuna.trial import TrialState, create_trial

    from levelfield.study.training_job import fixed_threads

    distributions = {key: axis.distribution for key, axis in space.items()}
    kind = getattr(optuna.samplers, SAMPLERS[name])
    with fixed_threads(1), without_messages():
        # `suggest` chooses the first points, so the sampler needs none.
        study = optuna.create_study(direction="maximize", sampler=kind(seed=seed, n_startup_trials=1))
        for parameters, value in known:
            study.add_trial(create_trial(params=parameters, distributions=distributions, value=value))
        for parameters in running:
            study.add_trial(create_trial(params=parameters, distributions=distributions, state=TrialState.RUNNING))
        return dict(study.ask(fixed_distributions=distributions).params)


@contextmanager
def without_messages() -> Iterator[None]:
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest value, the first of equal ones; None if no trial has a value."""
    scored = [trial for trial in trials if trial.value is not None]
    return max(scored, key=lambda trial: (trial.value, -trial.number), default=None)


def at_bound(space: Space, parameters: Mapping[str, Any]) -> list[str]:
    """One sentence for each value at a bound, or within 1% of the range from it."""
    sentences = []
    for key, axis in space.items():
        if axis.options:
            continue
        position = axis.position(parameters[key])
        if min(position, 1 - position) <= NEAR_BOUND + 1e-9:  # 1% is not exact in binary
            side, bound = ("lower", axis.low) if position < 0.5 else ("upper", axis.high)
            sentences.append(
                f"{key} is {parameters[key]:.4g}, at or within 1% of the {side} bound {bound:g} of its space: a better "
                "value may be outside; widen the space and search again"
            )
    return sentences
