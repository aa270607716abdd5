"""What the luck of a search costs: simulated searches that draw from the recorded trials of a real one."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from levelfield.seeds import seed_of
from levelfield.study.search_space import Range, Space, coordinates

SIMULATED = 20_000


class Searched(NamedTuple):
    """What simulated searches of a method draw from.

    Args:
        true: Scores of settings, fractions; each is drawn as often as any other.
        noise: Standard deviation of a score over seeds.
        measured: Difference that two real searches had; None where there was one.
    """

    name: str
    true: Float[np.ndarray, " settings"]
    noise: float
    measured: float | None = None


class ScoreSurface:
    """Scores of a method's settings without the noise of their seeds: a Gaussian process told of recorded trials.

    Args:
        space: What was searched.
        parameters: What each trial tried.
        values: What it scored.
        noise: Standard deviation of a score over seeds, in the unit of `values`.
    """

    def __init__(
        self, space: Space, parameters: Sequence[Mapping[str, Any]], values: Float[np.ndarray, " trials"], noise: float
    ) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        self.space = space
        self._mean, self._spread = values.mean(), values.std() or 1.0
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.3] * len(space), (0.02, 20.0), nu=2.5)
        self._process = GaussianProcessRegressor(
            kernel, alpha=max((noise / self._spread) ** 2, 1e-8), n_restarts_optimizer=2, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length at its bound is an argument that matters little
            self._process.fit(self._positions(parameters), (values - self._mean) / self._spread)

    def __call__(self, parameters: Sequence[Mapping[str, Any]]) -> Float[np.ndarray, " settings"]:
        """What the settings score."""
        return self._process.predict(self._positions(parameters)) * self._spread + self._mean

    def _positions(self, parameters: Sequence[Mapping[str, Any]]) -> Float[np.ndarray, "settings arguments"]:
        found = [coordinates(self.space, each) for each in parameters]
        place = self.space.items()
        return np.array(
            [[p.position(at[key]) if isinstance(p, Range) else at[key] for key, p in place] for at in found]
        )


def chosen(
    searched: Searched, trainings: int, final: int, searches: int, generator: np.random.Generator
) -> Int[np.ndarray, " searches"]:
    """Positions of the settings that simulated searches choose.

    What is seen of a setting is its true score with the noise of a seed. A search takes the best of N trials, or, of
    N - k trials, the k best trained again and the best mean of both.

    Args:
        trainings: N, those of the second look among them.
        final: k; 0 chooses the best trial as it is.
    """
    tried = generator.integers(len(searched.true), size=(searches, trainings - final))
    seen = searched.true[tried] + searched.noise * generator.standard_normal(tried.shape)
    if final:
        best = np.argsort(-seen, axis=1)[:, :final]
        tried, seen = np.take_along_axis(tried, best, axis=1), np.take_along_axis(seen, best, axis=1)
        again = searched.true[tried] + searched.noise * generator.standard_normal(tried.shape)
        seen = (seen + again) / 2
    return tried[np.arange(searches), seen.argmax(axis=1)]


def _generator() -> np.random.Generator:
    return np.random.default_rng(seed_of("simulated searches"))


def outcome(searched: Searched, trainings: int, final: int, searches: int = SIMULATED) -> tuple[float, float]:
    """Mean difference of two searches' settings, and mean distance of a setting from the best, as fractions."""
    found = searched.true[chosen(searched, trainings, final, searches, _generator())]
    first, second = found[::2], found[1::2]
    return float(np.abs(first - second).mean()), float(searched.true.max() - found.mean())


def agreeing(
    searched: Searched, trainings: int, within: float, searches: int = SIMULATED
) -> tuple[float, Int[np.ndarray, "2 pairs"], Bool[np.ndarray, " pairs"]]:
    """How often two searches choose settings whose true scores differ by no more than `within`.

    Returns:
        The share, the positions of both settings of each pair, and which pairs agree.
    """
    found = chosen(searched, trainings, 0, searches, _generator())
    pairs = np.stack([found[::2], found[1::2]])
    agree = np.abs(np.subtract(*searched.true[pairs])) <= within
    return float(agree.mean()), pairs, agree


def argument_at_fault(
    surface: ScoreSurface, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Mean change of the score when one argument of the first settings is given the value of the second ones.

    Args:
        first: Settings of searches that disagree with those of `second`, pair by pair.

    Returns:
        Argument of the space to the mean absolute change, the largest first.
    """
    score = surface(first)
    found = {}
    for key, place in surface.space.items():
        keys = list(place.keys(key))
        mixed = [{**one, **{each: other[each] for each in keys}} for one, other in zip(first, second, strict=True)]
        found[key] = float(np.abs(surface(mixed) - score).mean())
    return dict(sorted(found.items(), key=lambda item: -item[1]))
