"""Sweeps: one setting at several values, several trunks without training, several splits."""

import json
from pathlib import Path

import pytest
from study_engine import scores
from toy_study import TOY, run_study

from levelfield.analysis.conditions import differing_conditions
from levelfield.analysis.verify import verify_study
from levelfield.data.splits import split_classes
from levelfield.experiment import Study
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, row_runs, study_jobs
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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    run_study(folder / "out", study(folder, SWEPT))
    return folder / "out"


@pytest.mark.slow
def test_a_value_scores_what_a_study_of_it_alone_scores(ran: Path, tmp_path: Path) -> None:
    text = "methods:\n  softmax: {model: {loss: NormalizedSoftmaxLoss, embedding_size: 8}}\n"
    run_study(tmp_path / "alone", study(tmp_path, text))
    assert scores_of(ran, "softmax[8]") == scores_of(tmp_path / "alone", "softmax")
    assert scores_of(ran, "pretrained[pca-8]") == scores_of(tmp_path / "alone", "pretrained")
    assert scores_of(ran, "softmax[8]") != scores_of(ran, "softmax[4]")


def test_a_swept_study_is_read_again_verified_and_reported(ran: Path) -> None:
    assert verify_study(StudyFolder.begun(ran)) == []
    assert (Study(ran).report().parent / "sweep.svg").is_file()
    added = Study(ran.parent / "swept.yaml", add_methods=["TripletMarginLoss"]).asked.spec
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
    alone = f"methods: {{softmax: {{model: {{loss: ContrastiveLoss}}}}}}\nseed: {spec.seed}\n"
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


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder = tmp_path_factory.mktemp("split")
    run_study(folder / "out", study(folder, SPLITS))
    return StudyFolder.begun(folder / "out")


def test_two_random_splits_have_the_same_jobs_and_other_classes(split: StudyFolder) -> None:
    baselines = ["pretrained[pca-first]", "pretrained[pca-second]"]
    assert split.spec.rows[:2] == baselines
    assert {*split.spec.rows[2:4]} == {"pretrained[whitening-first]", "pretrained[whitening-second]"}
    assert split.spec.baselines == dict(zip(["pairs[first]", "pairs[second]"], baselines, strict=True))
    for fold in range(2):
        first, second = (split.state.results[Job(f"pairs[{value}]", "run", 0, fold)] for value in ("first", "second"))
        assert first["seed"] == second["seed"]
        assert {*first["data"]["val_classes"]} != {*second["data"]["val_classes"]}
    of = {row: split.tests()[row, 0]["data"] for row in split.spec.rows}
    assert of["pairs[first]"] == of[baselines[0]] != of["pairs[second]"] == of[baselines[1]]


def test_splits_are_tested_once_verified_and_reported(split: StudyFolder) -> None:
    assert verify_study(split) == []
    lines = [json.loads(line) for line in split.ledger_file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["evaluated", "finished"]
    tested = {letter for seed in (0, 1) for letter in split_classes(range(32), "random", seed=seed)[1].tolist()}
    assert lines[0]["num_samples"] == 16 * len(tested) < 16 * 32, "of each letter 16; what both test counts once"
    assert Study(split.folder.parent / "swept.yaml", output=split.folder).report().is_file()
    # A finished study that is started again has nothing to do.
    assert not run_study(split.folder, load_spec(split.folder.parent / "swept.yaml")).had_work
