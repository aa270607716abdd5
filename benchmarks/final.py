"""Whether training the best trials again before one is chosen (`search.final`) pays, at the same number of trainings.

    python benchmarks/final.py                                  # the Reality Check's nine recorded curves; seconds
    python benchmarks/final.py outputs/laptop_* docs/results/laptop/*.tar.xz

Simulated searches of N trainings choose from what they see: the best of N trials, or, of N - k trials, the k best
trained again and the best mean of both. What is seen is a setting's true score with the noise of a seed. Two numbers
tell how well it goes: by how much the true scores of two such searches' settings differ, and how far the chosen one is
below the best there is, both in points of MAP@R, means over many pairs of searches.

True scores of a recorded curve are its values, linear between the trials; settings are drawn at random from its space,
and the noise is --noise. Those of a study's method are what a Gaussian process, told the seeds' noise, makes of the
trials of all its searches; settings are drawn from these trials, and the noise is the standard deviation of the runs'
validation scores. Beside them stands by how much the runs of the study's own two searches differ.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from levelfield.analysis.results import collect_rows, run_scores
from levelfield.analysis.search_noise import ScoreSurface, Searched, outcome
from levelfield.metrics.table import SELECTED_BY
from levelfield.study.archive import is_archive, unpack_study
from levelfield.study.spec import first_search
from levelfield.study.record import StudyRecord
from levelfield.study.search_space import Range, read_space

CURVES = Path(__file__).parents[1] / "papers/reality_check/published/curves.json"
FINALS = (0, 3, 5, 10)
TRAININGS = 50
GRID = 1000


def recorded_curves(noise: float) -> Iterator[Searched]:
    for record in json.loads(CURVES.read_text(encoding="utf-8"))["curves"]:
        name = f"{record['dataset']} {record['batch_size']} {record['loss']}"
        (place,) = read_space(record["space"], name).values()
        assert isinstance(place, Range)
        positions = [place.position(tried) for tried in record["tried"]]
        yield Searched(name, np.interp(np.linspace(0, 1, GRID), positions, record["val_map_at_r"]), noise)


def of_study(record: StudyRecord) -> Iterator[Searched]:
    """Each searched method of a study, its second searches taken together with it."""
    spec, state = record.spec, record.state
    runs = {
        method: scores
        for (method, _, metric), scores in run_scores(collect_rows(record), "run").items()
        if metric == SELECTED_BY
    }
    for method in (method for method in spec.methods if method == first_search(method) and spec.trials(method)):
        same = [each for each in spec.methods if first_search(each) == method and len(runs.get(each, [])) > 1]
        trials = [trial for each in same for trial in state.trials(each) if trial.value is not None]
        if len(trials) < 2:
            continue
        noise = fmean(stdev(runs[each]) for each in same)
        values = np.array([trial.value for trial in trials])
        parameters = [trial.parameters for trial in trials]
        true = ScoreSurface(spec.space(method), parameters, values, noise)(parameters)
        means = [fmean(runs[each]) for each in same]
        measured = abs(means[0] - means[1]) if len(means) > 1 else None
        yield Searched(f"{spec.name} {method}", true, noise, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", type=Path, help="folders or archives of studies with a search")
    parser.add_argument("--trainings", type=int, default=TRAININGS)
    parser.add_argument("--finals", type=int, nargs="+", default=list(FINALS))
    parser.add_argument("--noise", type=float, default=0.005, help="of a seed, for the recorded curves; a fraction")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        folders = []
        for number, study in enumerate(arguments.studies):
            folders.append(Path(aside, str(number)) if is_archive(study) else study)
            if is_archive(study):
                unpack_study(study, folders[-1])
        found = [each for folder in folders for each in of_study(StudyRecord.begun(folder))]
        show(found or list(recorded_curves(arguments.noise)), arguments.trainings, arguments.finals)


def show(found: list[Searched], trainings: int, finals: list[int]) -> None:
    """Print a row a method: the difference of two searches and the distance from the best, by the number of finals."""
    heads = [f"final {final}" if final else "plain" for final in finals]
    print(f"| two searches differ by / below the best, points | noise | {' | '.join(heads)} | measured |")
    print(f"| --- | --- |{' --- |' * len(finals)} --- |")
    table = []
    for searched in found:
        table.append([outcome(searched, trainings, final) for final in finals])
        cells = " | ".join(f"{100 * gap:.2f} / {100 * below:.2f}" for gap, below in table[-1])
        measured = "" if searched.measured is None else f"{100 * searched.measured:.2f}"
        print(f"| {searched.name} | {100 * searched.noise:.2f} | {cells} | {measured} |", flush=True)
    means = np.mean(table, axis=0)
    print(
        f"| mean of {len(found)} | | {' | '.join(f'{100 * gap:.2f} / {100 * below:.2f}' for gap, below in means)} | |"
    )


if __name__ == "__main__":
    main()
