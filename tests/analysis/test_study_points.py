"""A study's own points in the Reality Check's figures: of a tiny study on a replica of CUB-200."""

from pathlib import Path

import miniatures
import pytest
from toy_study import run_study

from levelfield.analysis.study_points import study_improvements, study_trend, validation_autocorrelations
from levelfield.cli import paper
from levelfield.cli.main import main
from levelfield.errors import UserError
from levelfield.metrics import lag_one_autocorrelation
from levelfield.study.definition.study_file import load_spec
from levelfield.study.integrity import validation_scores
from levelfield.study.record import StudyRecord

STUDY = """
name: birds
base:
  - model:
      trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}
      embedding_size: 8
    data:
      dataset: {class_path: CUB200}
      transforms: {crop_size: 32, resize: 32}
      steps_per_epoch: 2
      batch_size: 8
    trainer: {max_epochs: 4, accelerator: cpu, log_every_n_steps: 1}
methods:
  triplet: {model: {loss: TripletMarginLoss}}
  softmax: {model: {loss: NormalizedSoftmaxLoss}, data: {samples_per_class: 1}}
folds: 2
runs: 1
threads: 1
"""


def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyRecord:
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    miniatures.cub200(tmp_path, samples=8)
    file = tmp_path / "birds.yaml"
    file.write_text(STUDY)
    run_study(tmp_path / "birds", load_spec(file))
    return StudyRecord.begun(tmp_path / "birds")


def test_a_study_adds_its_points_bars_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = study(tmp_path, monkeypatch)
    lines = record.results_file.read_text().splitlines()
    test = [line.split(",") for line in lines if ",test," in line and ",precision_at_1," in line]
    scores = {(row[0], row[5]): [float(r[-1]) for r in test if (r[0], r[5]) == (row[0], row[5])] for row in test}
    dataset, points = study_trend(record)
    assert dataset == "cub200"
    assert {(p.method, p.year, p.precision_at_1) for p in points} == {
        ("Triplet", 2006, scores["triplet", "concatenated"][0]),
        ("N. Softmax", 2017, scores["softmax", "concatenated"][0]),
    }
    [over_triplet] = study_improvements(record)
    means = {method: sum(scores[method, "separated"]) / 2 for method in ("triplet", "softmax")}
    assert over_triplet.separated == pytest.approx(means["softmax"] / means["triplet"] - 1)
    curves = [
        list(validation_scores(file, "precision_at_1").values())
        for file in record.folder.glob("jobs/*/*/*/metrics.csv")
        if "pretrained" not in file.parts
    ]
    expected = [lag_one_autocorrelation(curve) for curve in curves if max(curve) > min(curve)]
    assert validation_autocorrelations([record])["precision_at_1"] == (
        pytest.approx(sum(expected) / len(expected)),
        len(expected),
    )
    for name, said in (("figure2", "study birds"), ("figure3", "study birds"), ("autocorrelation", "| 4 |")):
        words = ["paper", "run", f"reality_check/{name}", "--study", str(record.folder), "--output", str(tmp_path)]
        assert main(words) == 0
        assert said in capsys.readouterr().out


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study; give the output folder"):
        paper.main(["run", "reality_check/figure3", "--study", str(tmp_path)])


def test_curves_of_two_evaluations_are_refused(finished: Path) -> None:
    with pytest.raises(UserError, match="validated three times"):
        validation_autocorrelations([StudyRecord.begun(finished)])
