"""The search of each method: the validation score of every trial against each argument, as Optuna draws it."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import optuna
from matplotlib import pyplot
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import create_trial
from optuna.visualization.matplotlib import plot_slice

from levelfield.analysis.shown_names import shown_names
from levelfield.metrics.definitions import SELECTED_BY, is_user_metric, title_of
from levelfield.report.facts import short_key
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import WIDTH
from levelfield.study.search_space import Space, coordinates
from levelfield.study.suggest import Trial, without_messages

HEIGHT = 2.6  # inches


def _draw(results: Results) -> dict[str, Figure]:
    state, spec, names = results.study.state, results.study.spec, shown_names(results.study.spec)
    return search_figures({names[row]: (spec.space(row), state.trials(row)) for row in spec.methods}, spec.selected_by)


FIGURE = ReportFigure(
    "Search", "The validation score of every trial against each argument, a panel each, darker if later", _draw
)


def search_figures(
    searches: Mapping[str, tuple[Space, Sequence[Trial]]], score: str = SELECTED_BY
) -> dict[str, Figure]:
    """A figure for each method with a trial that has a score.

    Args:
        searches: Method to its space and trials.
        score: The validation score.
    """
    factor, unit = (1, "") if is_user_metric(score) else (100, ", percent")
    label = f"validation {title_of(score)}{unit}"
    drawn = {}
    for method, (space, trials) in searches.items():
        with without_messages(), matplotlib.rc_context():  # its style is for its own figures only
            study = optuna.create_study(direction="maximize")
            for trial in trials:
                if trial.value is not None:
                    axes = {key: _axis(space, key, at) for key, at in coordinates(space, trial.parameters).items()}
                    params, distributions = ({short_key(key): axes[key][part] for key in axes} for part in (0, 1))
                    value = factor * trial.value
                    study.add_trial(create_trial(params=params, distributions=distributions, value=value))
            if any(trial.params for trial in study.trials):
                plot_slice(study, target_name=label)
                drawn[method] = figure = pyplot.gcf()
                pyplot.close(figure)
                figure.axes[0].set_title("")
                figure.suptitle(method)
                figure.set_size_inches(WIDTH, HEIGHT)
    return drawn


def _axis(space: Space, key: str, at: Any) -> tuple[Any, BaseDistribution]:
    """A coordinate as it is drawn: an option by its value."""
    if not (options := space[key].options):
        return at, space[key].distribution
    names = [str(option.get(key)) for option in options]
    return names[at], CategoricalDistribution(names)
