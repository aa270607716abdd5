"""Sweeps: one setting at several values, one training tested in two ways, several trunks without training."""

import csv
from pathlib import Path

import pytest
import safetensors.torch
import torch
from toy_study import TOY, run_study

from levelfield.analysis.conditions import differing_conditions
from levelfield.analysis.status import status
from levelfield.analysis.verify import verify_study
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, row_runs, study_jobs
from levelfield.study.rows import load_spec, spec_from_yaml
from levelfield.study.spec import StudySpec

BASE = TOY.partition("methods:")[0]
COUNTS = "folds: 2\nruns: 1\nthreads: 1\n"
SWEPT = """
methods:
  softmax: {model: {loss: NormalizedSoftmaxLoss}}
  bits: {trained_as: softmax, model: {distance: hamming}}
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
    batches = {
        name: (method["data"]["batch_size"], method["data"]["samples_per_class"])
        for name, method in spec.methods.items()
    }
    assert batches == {"pairs[small]": (8, 2), "pairs[32]": (32, 4), "two[4]": (4, 2), "ensemble": (16, 4)}
    assert spec.methods["ensemble"]["model"]["embedding_size"] == 144
    assert not any("batch_size" in sentence for sentence in differing_conditions(spec))
    folders = {str(job.path.parts[1]) for job in study_jobs(spec)}
    assert folders == {"pretrained", "pairs=small", "pairs=32", "two=4", "ensemble"}


def test_spaces_and_second_searches_are_those_of_the_method(tmp_path: Path) -> None:
    text = SWEPT + "search: {trials: 2}\nsecond_searches: all\n"
    text += "spaces: {softmax: {model.loss.init_args.temperature: {low: 0.01, high: 1.0}}, fixed: {}}\n"
    spec = study(tmp_path, text)
    assert [spec.trials(name) for name in ("softmax[4]", "bits[8]", "softmax[8]@2", "fixed")] == [2, 2, 2, 0]
    assert spec.trained_as["bits[8]@2"] == "softmax[8]@2"
    assert not any(job.method.startswith("bits") for job in study_jobs(spec))
    assert Job("softmax[8]@2", "run", 0, 1).path == Path("jobs/softmax=8@2/run0/fold1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods: {a: {}}\nsweep: {model.embedding_size: 4}\n", "one dotted key with its values"),
        ("methods: {a: {}}\nsweep: {a.b: [1], c.d: [2]}\n", "one dotted key with its values"),
        ("methods: {a: {}}\nsweep: {model.trunk: [a b]}\n", "'a b' cannot be part of a method's name"),
        ("methods: {a: {sweep: {x.y: [1]}}}\n", "method a: its own sweep needs one of the study"),
        ("methods: {a: {sweep: {x.y: [1]}}}\nsweep: {x.z: [1]}\n", "must be of the study's x.z, not of x.y"),
        ("methods: {a: {}, b: {trained_as: c}}\n", "no method 'c' with trainings of its own"),
        ("methods: {a: {}, b: {trained_as: a, model: {trunk_lr: 1}}}\n", "it cannot set model.trunk_lr"),
        ("methods: {a: {sweep: {}}, b: {trained_as: a, sweep: {x.y: [1]}}}\nsweep: {x.y: [1]}\n", "cannot set sweep"),
        ("methods: {pretrained: {}}\n", "'pretrained' is the baseline's name"),
        ("methods: {pretrained_one_pca: {}}\n", "'pretrained_one_pca' is the baseline's name"),
    ],
)
def test_mistakes_name_file_and_remedy(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"swept\.yaml: .*") as refused:
        study(tmp_path, text)
    assert said in str(refused.value)


def test_what_is_swept_cannot_be_overridden(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--model\.embedding_size: the study tries several values"):
        study(tmp_path, SWEPT, **{"model.embedding_size": 16})


def test_what_is_swept_cannot_be_searched(tmp_path: Path) -> None:
    space = "search: {trials: 1}\nspaces: {softmax: {model.embedding_size: {low: 2, high: 8}}, fixed: {}}\n"
    with pytest.raises(UserError, match=r"softmax searches model\.embedding_size, which the study sweeps"):
        study(tmp_path, SWEPT + space)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    run_study(folder / "out", study(folder, SWEPT))
    return folder / "out"


def scores(folder: Path, method: str) -> dict[tuple[str, str], str]:
    with open(folder / "results.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["stage"]) == (method, "test")]
    return {(row["fold"], row["metric"]): row["value"] for row in rows}


def test_a_value_scores_what_a_study_of_it_alone_scores(ran: Path, tmp_path: Path) -> None:
    text = "methods:\n  softmax: {model: {loss: NormalizedSoftmaxLoss, embedding_size: 8}}\n"
    run_study(tmp_path / "alone", study(tmp_path, text))
    assert scores(ran, "softmax[8]") == scores(tmp_path / "alone", "softmax")
    assert scores(ran, "softmax[8]") != scores(ran, "softmax[4]")


def test_one_training_is_tested_in_two_ways(ran: Path) -> None:
    """Precision@1 by the signs alone, from the embeddings that the floats' training stored."""
    assert {path.name for path in (ran / "jobs").glob("*/run0/fold0")} == {"fold0"}
    assert not (ran / "jobs" / "bits=8" / "run0" / "fold0").exists()
    for fold in ("0", "1"):
        stored = safetensors.torch.load_file(ran / f"jobs/softmax=8/run0/fold{fold}/embeddings.safetensors")
        signs, labels = (stored["embeddings"] > 0).int(), stored["labels"]
        differing = (signs[:, None] != signs[None]).sum(2).double()
        differing.fill_diagonal_(torch.inf)
        # Bits tie, and a tie is broken by the order of the gallery: bounds over all ways of breaking it.
        nearest = differing == differing.amin(1, keepdim=True)
        same = labels[:, None] == labels
        surely, maybe = (nearest & ~same).sum(1) == 0, (nearest & same).any(1)
        found = float(scores(ran, "bits[8]")[fold, "precision_at_1"])
        assert surely.double().mean() <= found <= maybe.double().mean()
        assert found != float(scores(ran, "softmax[8]")[fold, "precision_at_1"])


def test_a_method_that_is_added_is_swept_too(ran: Path, tmp_path: Path) -> None:
    spec = Study(ran.parent / "swept.yaml", add_methods=["TripletMarginLoss"]).asked.spec
    assert {"triplet_margin_loss[4]", "triplet_margin_loss[8]"} <= set(spec.methods)
    (tmp_path / "study.yaml").write_text(spec.to_yaml())
    assert Study(tmp_path, add_methods=["TripletMarginLoss"]).added == ["triplet_margin_loss"]


def test_a_swept_study_is_read_again_verified_and_reported(ran: Path) -> None:
    record = StudyFolder.begun(ran)
    assert verify_study(record) == []
    spec = spec_from_yaml(ran / "study.yaml")
    assert spec.sweep == "model.embedding_size"
    assert spec.trained_as == {"bits[4]": "softmax[4]", "bits[8]": "softmax[8]"}
    page = Study(ran).report()
    assert ">The sweep</h2>" in page.read_text()
    assert (page.parent / "sweep.svg").is_file()
    assert "bits[8]" in str(Study(ran).table())


def test_what_is_trained_once_is_archived_and_counted_with_its_training(ran: Path, tmp_path: Path) -> None:
    record = StudyFolder.begun(ran)
    stands = status(record)
    assert stands["tested"] == stands["to_test"] == len(row_runs(record.spec))
    unpack_study(write_archive(record, tmp_path / "swept.tar.xz"), tmp_path / "unpacked")
    unpacked = StudyFolder.begun(tmp_path / "unpacked")
    assert verify_study(unpacked) == []
    added = Study(ran.parent / "swept.yaml", add_methods=["TripletMarginLoss"]).asked.spec
    run_study(unpacked.folder, added, reopen="another loss")
    assert scores(unpacked.folder, "bits[8]") == scores(ran, "bits[8]")
    assert scores(unpacked.folder, "triplet_margin_loss[8]")


def test_trunks_without_training_are_compared_as_a_sweep(tmp_path: Path) -> None:
    text = """
methods:
  pretrained: {}
references: [features]
sweep:
  model.trunk:
    cnn:
      model.trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}
    separable:
      model.trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_efficientnet, weights: null}}
"""
    spec = study(tmp_path, text)
    untouched = ["pretrained[features,cnn]", "pretrained[features,separable]"]
    assert spec.rows == [*untouched, "pretrained[cnn]", "pretrained[separable]"]
    assert row_runs(spec) == [(row, 0) for row in spec.rows]
    run_study(tmp_path / "out", spec)
    assert scores(tmp_path / "out", "pretrained[cnn]") != scores(tmp_path / "out", "pretrained[separable]")
    alone = f"methods: {{softmax: {{model: {{loss: ContrastiveLoss}}}}}}\nseed: {spec.seed}\nreferences: features\n"
    with_separable = {"model.trunk.name": "test_efficientnet"}
    run_study(tmp_path / "alone", study(tmp_path, alone, **with_separable))
    assert scores(tmp_path / "out", "pretrained[separable]") == scores(tmp_path / "alone", "pretrained")
    assert scores(tmp_path / "out", untouched[1]) == scores(tmp_path / "alone", "pretrained[features]")
    assert scores(tmp_path / "out", untouched[0]) != scores(tmp_path / "out", untouched[1])
    assert verify_study(StudyFolder.begun(tmp_path / "out")) == []
