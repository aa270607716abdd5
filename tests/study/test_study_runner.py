"""A whole small study: what it writes, what it refuses, and that the test classes stay sealed until the ledger."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from torch.nn.functional import normalize
from toy_study import run_study

from levelfield.analysis.verify import verify_study
from levelfield.core.ledger import EVALUATED, read_lines
from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.learner import MetricLearner

TABLES = ("results.csv", "summary.csv")


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / "ledger.jsonl") if line["event"] == EVALUATED]


def scores(folder: Path, **wanted: str) -> list[float]:
    with open(folder / "results.csv", newline="") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if all(row[key] == wanted[key] for key in wanted)]


def test_every_job_leaves_what_the_design_says(finished: Path, spec: StudySpec) -> None:
    for job in study_jobs(spec):
        folder = finished / job.path
        expected = {"config.yaml", "result.json"}
        if job.stage == "run":
            expected |= {
                "tested.safetensors",
                "best.ckpt" if job.method != "pretrained" else "pca.safetensors",
            }
        if job.method != "pretrained":
            expected.add("metrics.csv")
        assert {path.name for path in folder.iterdir()} == expected
        if job.stage == "run" and job.method != "pretrained":
            MetricLearner.load_from_checkpoint(folder / "best.ckpt")
    assert (finished / "study.yaml").is_file()
    # 2 folds x (1 + 2 x (3 + 2)) validation scores; 3 metrics x (2 folds + concatenated) x 5 tested runs,
    # and the baseline's by one PCA.
    assert len(scores(finished)) == 22 + 45 + 3


def test_runs_have_the_best_trials_setting_and_fresh_seeds(finished: Path, spec: StudySpec) -> None:
    results = {job: json.loads((finished / job.path / "result.json").read_text()) for job in study_jobs(spec)}
    for method in spec.methods:
        means = [
            sum(results[Job(method, "trial", trial, fold)]["validation"]["map_at_r"] for fold in range(2)) / 2
            for trial in range(3)
        ]
        best = results[Job(method, "trial", means.index(max(means)), 0)]
        runs = [results[Job(method, "run", run, fold)] for run in range(2) for fold in range(2)]
        assert all(run["parameters"] == best["parameters"] for run in runs)
        assert len({run["seed"] for run in runs}) == 2
        assert {run["seed"] for run in runs}.isdisjoint(
            result["seed"] for job, result in results.items() if job.stage == "trial"
        )
    config = yaml.safe_load((finished / "jobs/arcface/run1/fold0/config.yaml").read_text())
    parameters = results[Job("arcface", "run", 1, 0)]["parameters"]
    assert config["model"]["loss"]["init_args"]["margin"] == parameters["model.loss.init_args.margin"]
    assert config["model"]["loss_lr"] == parameters["model.loss_lr"]


def test_scores_follow_from_the_stored_embeddings(finished: Path) -> None:
    for method, run in [("pretrained", "0"), ("arcface", "1")]:
        folds = [
            safetensors.torch.load((finished / f"jobs/{method}/run{run}/fold{k}/tested.safetensors").read_bytes())
            for k in range(2)
        ]
        labels = folds[0]["labels"]
        for fold, stored in enumerate(folds):
            assert torch.allclose(stored["embeddings"].norm(dim=1), torch.ones(len(labels)), atol=1e-5)
            found = retrieval_metrics(stored["embeddings"], labels)["map_at_r"]
            wanted = {"method": method, "run": run, "fold": str(fold), "stage": "test", "metric": "map_at_r"}
            assert scores(finished, **wanted) == [pytest.approx(found, abs=1e-9)]
        together = normalize(torch.cat([fold["embeddings"] for fold in folds], dim=1))
        found = retrieval_metrics(together, labels)["precision_at_1"]
        wanted = {"method": method, "run": run, "embedding": "concatenated", "metric": "precision_at_1"}
        assert scores(finished, **wanted) == [pytest.approx(found, abs=1e-9)]


def test_runs_differ_and_test_classes_are_the_second_half(finished: Path) -> None:
    wanted = {"method": "contrastive", "stage": "test", "embedding": "concatenated", "metric": "map_at_r"}
    first, second = scores(finished, **wanted)
    assert first != second
    stored = safetensors.torch.load((finished / "jobs/arcface/run0/fold0/tested.safetensors").read_bytes())
    assert stored["labels"].unique().numel() == 16, "half of the 32 letters"


def test_a_finished_study_is_not_done_again(copy: Path, spec: StudySpec) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    run_study(copy, spec)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")} == before
    assert len(evaluations(copy)) == 1


def test_a_reason_evaluates_once_more_and_counts(copy: Path, finished: Path, spec: StudySpec) -> None:
    run_study(copy, spec, retest="a mistake in the test transform")
    run_study(copy, spec, retest="a mistake in the test transform")
    assert len(evaluations(copy)) == 2, "one reason evaluates once: the same command may be given again"
    for name in TABLES:
        assert (copy / name).read_bytes() == (finished / name).read_bytes()
    entry = evaluations(copy)[1]
    assert entry["reason"] == "a mistake in the test transform"
    assert len(entry["checkpoints"]) == 10


def test_a_job_done_again_gives_the_same_bytes(copy: Path, finished: Path, spec: StudySpec) -> None:
    job = study_jobs(spec)[-1]
    (copy / job.path / "result.json").unlink()
    ledger = copy / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    shutil.rmtree(copy / "jobs/arcface/run1/test")
    run_study(copy, spec)
    for name in TABLES:
        assert (copy / name).read_bytes() == (finished / name).read_bytes()


def test_the_test_stage_is_set_up_only_after_the_ledgers_line(
    copy: Path, spec: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "ledger.jsonl").unlink()
    job = study_jobs(spec)[-1]
    (copy / job.path / "result.json").unlink()
    for path in (*copy.rglob("test/result.json"), *copy.rglob("tested.safetensors")):
        path.unlink()
    seen: list[tuple[str, int]] = []
    setup = MetricDataModule.setup

    def recorded(self: MetricDataModule, stage: str) -> None:
        seen.append((stage, len(evaluations(copy))))
        setup(self, stage)

    monkeypatch.setattr(MetricDataModule, "setup", recorded)
    run_study(copy, spec)
    assert ("fit", 0) in seen
    assert {count for stage, count in seen if stage == "test"} == {1}
    assert {count for stage, count in seen if stage != "test"} == {0}


def write_table(folder: Path, order: list[int]) -> Path:
    """A table of 8 letters in 6 faces; `order` renames the classes of the test half among themselves."""
    from levelfield.data.datasets import Glyphs

    glyphs = Glyphs(num_classes=8, image_size=32)
    rows = []
    (folder / "images").mkdir(parents=True)
    for position, label in enumerate(glyphs.labels.tolist()):
        path = folder / "images" / f"{position:03}.png"
        glyphs[position][0].save(path)
        named = label if label < 4 else order[position % 4]
        rows.append(f"images/{path.name},letter{named}")
    (folder / "letters.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return folder / "letters.csv"


@pytest.mark.full  # test_sealed.py has the like of fits
def test_training_needs_no_test_image_and_no_test_label(toy_file: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "data", [4, 5, 6, 7])
    overrides = {"data.dataset": "ImageTable", "data.dataset.table": str(table), "runs": 1, "trainer.max_epochs": 1}
    overrides["search.trials"] = 1
    spec = load_spec(toy_file, overrides)
    folder = tmp_path / "study"
    images = tmp_path / "data" / "images"
    test_images = sorted(images.iterdir())[-20:]
    kept = {path: path.read_bytes() for path in test_images}
    for path in test_images:
        path.unlink()
    with pytest.raises(UserError, match=r"\.png"):
        run_study(folder, spec)
    assert all((folder / job.path / "result.json").exists() for job in study_jobs(spec)), "every training is done"
    assert len(evaluations(folder)) == 1, "the line was written before the image was missed"

    for path, content in kept.items():
        path.write_bytes(content)
    run_study(folder, spec)
    assert len(evaluations(folder)) == 1, "the same evaluation goes on"

    lines = table.read_text().splitlines()
    renamed = [
        line.replace("letter4", "letterX").replace("letter5", "letter4").replace("letterX", "letter5") for line in lines
    ]
    table.write_text("\n".join(renamed) + "\n")
    run_study(tmp_path / "permuted", spec)
    for job in study_jobs(spec):
        first, second = (
            json.loads((place / job.path / "result.json").read_text()) for place in (folder, tmp_path / "permuted")
        )
        assert first["validation"] == second["validation"]
        if job.method != "pretrained" and job.stage == "run":
            weights = [
                torch.load(place / job.path / "best.ckpt", weights_only=True)["state_dict"]
                for place in (folder, tmp_path / "permuted")
            ]
            assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_stopped_here_the_whole_runs_are_scored_and_going_on_ends_in_the_same_bytes(
    finished: Path, spec: StudySpec, tmp_path: Path
) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(finished, folder)
    for part in ("ledger.jsonl", *TABLES):
        (folder / part).unlink()
    for tested in folder.glob("jobs/*/run*/test"):
        shutil.rmtree(tested)
    shutil.rmtree(folder / Job("arcface", "run", 0, 1).path)
    shutil.rmtree(folder / Job("contrastive", "run", 1, 0).path)
    run_study(folder, spec, stop_here=True)
    with open(folder / "results.csv", newline="") as file:
        tested = {(row["method"], row["run"]) for row in csv.DictReader(file) if row["stage"] == "test"}
    assert tested == {
        *{("pretrained", "0"), ("pretrained_one_pca", "0")},
        *{("contrastive", "0"), ("arcface", "1")},
    }
    assert len(evaluations(folder)) == 1
    assert verify_study(StudyFolder.begun(folder)) == []
    run_study(folder, spec)
    assert len(evaluations(folder)) == 2
    for name in TABLES:
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
