"""How much of a search's scores each argument explains."""

from collections.abc import Sequence

from levelfield.study.search_space import Choice, Space, coordinates
from levelfield.study.suggest import Trial

FEWEST_TRIALS = 10


def importances(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Share of the variance of the trials' scores that each argument explains by itself, the largest first.

    By optuna's fANOVA over the arguments' places in their ranges. Empty with one argument, with fewer than 10 scored
    trials, and where all scored the same.

    Paper: Hutter et al. 2014, "An Efficient Approach for Assessing Hyperparameter Importance", ICML.
    """
    scored = [trial for trial in trials if trial.value is not None]
    if len(space) < 2 or len(scored) < FEWEST_TRIALS or len({trial.value for trial in scored}) < 2:
        return {}
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    distributions: dict[str, BaseDistribution] = {
        key: CategoricalDistribution(range(len(place.options)))
        if isinstance(place, Choice)
        else FloatDistribution(-0.001, 1.001)  # a value at a bound may lie beyond it in the last digit
        for key, place in space.items()
    }
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize")
    finally:
        optuna.logging.set_verbosity(verbosity)
    for trial in scored:
        found = places_of(space, trial)
        study.add_trial(optuna.trial.create_trial(params=found, distributions=distributions, value=trial.value))
    shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {key: float(share) for key, share in shares.items()}


def places_of(space: Space, trial: Trial) -> dict[str, float]:
    """Where a trial's arguments lie in their ranges, from 0 to 1 in the range's scale; a choice is its number."""
    return {
        key: value if isinstance(place := space[key], Choice) else place.position(value)
        for key, value in coordinates(space, trial.parameters).items()
    }
