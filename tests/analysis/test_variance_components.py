"""Variance components against what was planted, and against the mixed model of statsmodels."""

import warnings

import numpy as np
import pytest

from levelfield.analysis.variance_components import COMPONENTS, variance_components

PLANTED = {"search": 0.8, "seed": 0.5, "fold": 3.0, "fold x setting": 0.7, "residual": 0.4}


def drawn(seed: int, shape: tuple[int, int, int, int] = (3, 2, 10, 4), **sd: float) -> np.ndarray:
    methods, searches, runs, folds = shape
    shapes = (
        (methods, searches, 1, 1),
        (methods, searches, runs, 1),
        (1, 1, 1, folds),
        (methods, searches, 1, folds),
        shape,
    )
    rng = np.random.default_rng(seed)
    planted = {**PLANTED, **sd}
    parts = [planted[name] * rng.standard_normal(size) for name, size in zip(COMPONENTS, shapes, strict=True)]
    return sum(parts, np.linspace(20, 40, methods).reshape(-1, 1, 1, 1))


def test_estimates_are_those_of_a_mixed_model() -> None:
    """Where no component is at 0, restricted maximum likelihood and the balanced mean squares are one."""
    formula = pytest.importorskip("statsmodels.formula.api")
    import pandas as pd

    scores = drawn(seed=3, shape=(3, 2, 4, 3))
    places = np.indices(scores.shape).reshape(4, -1)
    table = pd.DataFrame(dict(zip(("method", "search", "run", "fold"), places, strict=True))).assign(y=scores.ravel())
    table = table.assign(one=1, setting=table.method * 10 + table.search)
    table = table.assign(seed=table.setting * 100 + table.run, both=table.setting * 100 + table.fold)
    parts = {"search": "setting", "seed": "seed", "fold": "fold", "fold x setting": "both"}
    model = formula.mixedlm(
        "y ~ C(method)",
        table,
        groups="one",
        re_formula="0",
        vc_formula={name: f"0 + C({column})" for name, column in parts.items()},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its optimizer complains on the way
        fit = model.fit(reml=True)
    expected = dict(zip(model.exog_vc.names, fit.vcomp**0.5, strict=True)) | {"residual": fit.scale**0.5}
    assert min(expected.values()) > 0.05
    assert variance_components(scores).sd == pytest.approx(expected, rel=0.02)


def test_the_mean_of_many_studies_is_what_was_planted() -> None:
    found = [variance_components(drawn(seed)).sd for seed in range(300)]
    for name, sd in PLANTED.items():
        assert np.mean([each[name] ** 2 for each in found]) == pytest.approx(sd**2, rel=0.25), name


def test_intervals_hold_what_was_planted_about_as_often_as_they_say() -> None:
    found = [variance_components(drawn(seed)) for seed in range(400)]
    for name in COMPONENTS:
        assert np.mean([each.low[name] <= PLANTED[name] <= each.high[name] for each in found]) > 0.93, name


def test_a_component_that_is_not_there_is_0() -> None:
    without = [variance_components(drawn(seed, search=0.0)).sd["search"] for seed in range(40)]
    assert sum(sd == 0 for sd in without) >= 10
    assert np.median(without) < 0.3


def test_one_search_cannot_be_told_from_its_method() -> None:
    with pytest.raises(ValueError, match=r"\(3, 1, 10, 4\).*2 or more"):
        variance_components(np.zeros((3, 1, 10, 4)))
