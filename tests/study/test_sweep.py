"""Several studies in one: a setting at several values, trunks without training, splits, and replicates."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import refuses
from scipy.stats import t
from study_engine import scores
from toy_study import TOY, assert_same_bytes, run_study

from levelfield import Study
from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.conditions import differing_conditions
from levelfield.analysis.results import collect_rows
from levelfield.analysis.verify import verify_study
from levelfield.data.splits import split_classes
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, row_runs, study_jobs
from levelfield.study.replicates import replicate
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, one_pca

BASE = TOY.partition("methods:")[0]
COUNTS = "folds: 2\nruns: 1\nthreads: 1\n"
SWEPT = """
methods:
  softmax: {model: {loss: NormalizedSoftmaxLoss}}
  bits: {model: {loss: NormalizedSoftmaxLoss, distance: hamming}}
  fixed: {model: {loss: ContrastiveLoss}, sweep: {}}
sweep:
  model.embedding_size: [4, 8]
"""


def study(folder: Path, text: str, name: str = "swept.yaml", **overrides: object) -> StudySpec:
    (folder / name).write_text(BASE + text + COUNTS)
    return load_spec(folder / name, overrides)


def test_values_become_methods_with_the_settings_that_follow_them(tmp_path: Path) -> None:
    text = """
methods:
  pairs: {model: {loss: ContrastiveLoss}}
  two: {model: {loss: NPairsLoss}, data: {samples_per_class: 2}, sweep: {data.batch_size: [4]}}
  ensemble: {model: {loss: ContrastiveLoss, embedding_size: 144}, sweep: {}}
sweep:
  data.batch_size:
    small: {data.batch_size: 8, data.samples_per_class: 2}
    32:
"""
    spec = study(tmp_path, text)
    data = {name: method["data"] for name, method in spec.methods.items()}
    batches = {name: (each["batch_size"], each["samples_per_class"]) for name, each in data.items()}
    assert batches == {"pairs[small]": (8, 2), "pairs[32]": (32, 4), "two[4]": (4, 2), "ensemble": (16, 4)}
    assert not any("batch_size" in sentence for sentence in differing_conditions(spec))
    folders = {str(job.path.parts[1]) for job in study_jobs(spec)}
    assert folders == {"pretrained", "pretrained_one_pca", "pairs=small", "pairs=32", "two=4", "ensemble"}


def test_spaces_and_second_searches_are_those_of_the_method(tmp_path: Path) -> None:
    text = SWEPT + "search: {trials: 2}\nsearches: 2\n"
    text += "spaces: {softmax: {model.loss.init_args.temperature: {low: 0.01, high: 1.0}}, fixed: {}}\n"
    spec = study(tmp_path, text)
    assert [spec.trials(name) for name in ("softmax[4]", "bits[8]", "softmax[8]@2", "fixed")] == [2, 0, 2, 0]
    assert (spec.baseline_of("softmax[4]"), spec.baseline_of("fixed")) == ("pretrained[pca-4]", "pretrained[pca-16]")
    assert Job("softmax[8]@2", "run", 0, 1).path == Path("jobs/softmax=8@2/run0/fold1")


def scores_of(folder: Path, method: str) -> dict[tuple[str, ...], float]:
    return scores(folder, method=method, stage="test")


@pytest.mark.slow
def test_a_value_scores_what_a_study_of_it_alone_scores(tmp_path: Path) -> None:
    """A swept study is also read again, verified and reported."""
    run_study(tmp_path / "out", study(tmp_path, SWEPT))
    text = "methods:\n  softmax: {model: {loss: NormalizedSoftmaxLoss, embedding_size: 8}}\n"
    run_study(tmp_path / "alone", study(tmp_path, text, "alone.yaml"))
    for swept, alone in (("softmax[8]", "softmax"), ("pretrained[pca-8]", "pretrained")):
        assert scores_of(tmp_path / "out", swept) == scores_of(tmp_path / "alone", alone)
    assert scores_of(tmp_path / "out", "softmax[8]") != scores_of(tmp_path / "out", "softmax[4]")
    assert verify_study(StudyFolder.begun(tmp_path / "out")) == []
    assert (Study(tmp_path / "out").report().parent / "sweep.svg").is_file()
    added = Study(tmp_path / "swept.yaml", add_methods=["TripletMarginLoss"]).asked.spec
    assert {"triplet_margin[4]", "triplet_margin[8]"} <= set(added.methods)


@pytest.mark.slow
def test_trunks_without_training_are_compared_as_a_sweep(tmp_path: Path) -> None:
    trunk = "{{model.trunk: {{class_path: levelfield.models.TimmTrunk, init_args: {{name: {}, weights: null}}}}}}"
    names = {"cnn": "test_resnet", "separable": "test_efficientnet"}
    values = ", ".join(f"{value}: {trunk.format(name)}" for value, name in names.items())
    spec = study(tmp_path, f"methods: {{pretrained: {{}}}}\nsweep: {{model.trunk: {{{values}}}}}\n")
    rows = ["pretrained[cnn]", "pretrained[separable]"]
    assert [row for row in spec.rows if row in spec.methods] == rows
    assert {*row_runs(spec)} == {(row, 0) for row in [*rows, *map(one_pca, rows)]}
    record = run_study(tmp_path / "out", spec)
    assert verify_study(record) == []
    alone = "methods: {softmax: {model: {loss: ContrastiveLoss}}}\n"
    run_study(tmp_path / "alone", study(tmp_path, alone, **{"model.trunk.name": "test_efficientnet"}))
    first, second = (scores_of(record.folder, row) for row in rows)
    assert first != second == scores_of(tmp_path / "alone", "pretrained")


SPLITS = """
methods:
  pairs: {model: {loss: ContrastiveLoss}}
references: [whitening]
sweep:
  data.split_seed:
    first: {data.split: random, data.split_seed: 0}
    second: {data.split: random, data.split_seed: 1}
"""


@pytest.mark.slow
def test_two_random_splits_have_the_same_jobs_and_other_classes_and_are_tested_once(tmp_path: Path) -> None:
    spec = study(tmp_path, SPLITS)
    split = run_study(tmp_path / "out", spec)
    baselines = ["pretrained[pca-first]", "pretrained[pca-second]"]
    assert spec.rows[:2] == baselines
    assert {*spec.rows[2:4]} == {"pretrained[whitening-first]", "pretrained[whitening-second]"}
    assert spec.baselines == dict(zip(["pairs[first]", "pairs[second]"], baselines, strict=True))
    for fold in range(2):
        first, second = (split.state.results[Job(f"pairs[{value}]", "run", 0, fold)] for value in ("first", "second"))
        assert first["seed"] == second["seed"]
        assert {*first["data"]["val_classes"]} != {*second["data"]["val_classes"]}
    of = {row: split.tests()[row, 0]["data"] for row in spec.rows}
    assert of["pairs[first]"] == of[baselines[0]] != of["pairs[second]"] == of[baselines[1]]
    assert verify_study(split) == []
    lines = [json.loads(line) for line in split.ledger_file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["evaluated", "finished"]
    tested = {letter for seed in (0, 1) for letter in split_classes(range(32), "random", seed=seed)[1].tolist()}
    assert lines[0]["num_samples"] == 16 * len(tested) < 16 * 32, "of each letter 16; what both test counts once"
    assert Study(tmp_path / "swept.yaml", output=split.folder).report().is_file()
    assert not run_study(split.folder, spec).had_work, "a finished study has nothing to do"


# One epoch on stored features, which no random crop has.
REPEATED = """
extends: toy.yaml
search: {trials: 2}
searches: 2
replicates: 2
runs: 1
overrides:
  model: {freeze_trunk: true}
  data: {features: true, transforms: {scale: [0.16, 1.0], horizontal_flip: true}}
  trainer: {max_epochs: 1}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("replicates") / "repeated.yaml"
    file.with_name("toy.yaml").write_text(TOY)
    file.write_text(REPEATED)
    return file


@pytest.fixture(scope="module")
def repeated(file: Path, shared: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    return shared("replicates", lambda folder: Study(file, output=folder).run())


@pytest.mark.slow
def test_its_verdict_is_that_of_another_computation(repeated: Path) -> None:
    names = ["contrastive", "contrastive@2", "arcface", "arcface@2"]

    def mean(method: str, number: int) -> float:
        of = {"stage": "test", "embedding": "separated", "metric": "map_at_r", "replicate": str(number)}
        return float(np.mean([*scores(repeated, method=method, **of).values()]))

    a, a2, b, b2 = np.array([[mean(name, number) for name in names] for number in (0, 1)]).T
    # Two searches differ by a normal number of twice the variance: half the squares' mean, of four pairs.
    variance = np.mean([(a - a2) ** 2 / 2, (b - b2) ** 2 / 2])
    difference = np.mean((a + a2) / 2 - (b + b2) / 2)
    error = np.sqrt(variance / 2)  # four means of two searches, over two replicates: 4 · (s² / 2) / 4
    study = Study(repeated)
    found = compare_all(collect_rows(study.record()), list(study.record().spec.methods))
    (pair,) = [each for each in found if each.kind == PAIR]
    assert (pair.over, pair.difference) == ("searches", pytest.approx(difference))
    assert pair.p == pytest.approx(2 * t.sf(abs(difference) / error, 4))
    assert (pair.high - pair.low) / 2 == pytest.approx(t.ppf(0.975, 4) * error)
    searches = {each.method: each.difference for each in found if each.kind == SECOND_SEARCH}
    assert searches == {"contrastive@2": pytest.approx(np.mean(a2 - a)), "arcface@2": pytest.approx(np.mean(b2 - b))}
    assert variance > 0
    assert study.verify() == []
    counted = re.search(r"The test classes were evaluated (\d+) times", repr(study.table()))
    assert int(counted[1]) >= 2, "once in each replicate, and by other tests"


@pytest.mark.slow
def test_replicates_test_the_two_halves_of_a_cut_with_seeds_of_their_own(file: Path, repeated: Path) -> None:
    spec = load_spec(file)
    parts = [replicate(spec, number) for number in range(4)]
    data = [part.methods["arcface"]["data"] for part in parts]
    assert [(each["split"], each["split_seed"]) for each in data] == [
        *(("random", 0), ("random-swapped", 0), ("random", 1), ("random-swapped", 1))
    ]
    assert len({part.seed for part in parts}) == 4
    tested = []
    for number in (0, 1):
        data = [each["data"] for each in Study(repeated / "replicates" / str(number)).record().state.results.values()]
        tested.append({name for each in data for key in ("train_classes", "val_classes") for name in each[key]})
    assert (len(tested[0]), len(tested[1]), tested[0] & tested[1]) == (16, 16, set())


@pytest.mark.slow
def test_lost_results_are_computed_again_to_the_same_bytes(file: Path, repeated: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repeated, tmp_path / "again"))
    for part, row in (("replicates/0", "contrastive"), ("replicates/1", "arcface@2")):
        shutil.rmtree(folder / part / "jobs" / row / "run0")
    Study(file, output=folder).run()
    for part in (".", "replicates/0", "replicates/1"):
        assert_same_bytes(folder / part, repeated / part)


def test_what_cannot_be_repeated_is_one_line(file: Path, tmp_path: Path) -> None:
    spec = load_spec(file, {"data.split": "official"})
    refuses(r"replicates.* data\.split", replicate, spec, 0)
    refuses("replicates", Study(file, output=tmp_path).archive)
