"""What `--dry-run` says: the jobs, bounds of the steps, and hours from steps timed on random samples."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from tiny_fit import REPOSITORY

from levelfield.cli.study import main
from levelfield.study.definition.study_file import load_spec
from levelfield.study.dry_run.costs import MethodCost, method_costs, summary, training_steps
from levelfield.study.dry_run.step_time import network_step
from levelfield.study.jobs import Job, job_config
from levelfield.training.build import build

STUDIES = REPOSITORY / "papers" / "reality_check"
TINY_TRUNK = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
SMALL = {
    "model.trunk": TINY_TRUNK,
    "data.transforms": {"crop_size": 32, "resize": 32},
    "trainer.accelerator": "cpu",
    "threads": 1,
}
PAPERS_METHODS = 14


def test_a_dry_run_prints_jobs_and_hours_and_writes_nothing(
    toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    assert main(["run", str(toy_file), "--dry-run", "--data.root", "nowhere"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--data.root nowhere is passed over: Glyphs reads nothing from it\n")
    # 2 methods x 2 folds x (3 trials + 2 runs), and the baseline's 2 folds.
    assert re.search(r"contrastive +6 +4 +0\.\d{3} ", printed)
    assert "22 jobs: 12 trainings in the search, 8 in the runs, 2 fits of the pretrained baseline" in printed
    assert "on 16 random images of 32 px (cpu, 1 thread)" in printed
    assert "not in these hours: reading and augmenting samples, validation" in printed
    assert not list(tmp_path.iterdir())
    assert torch.get_num_threads() == threads


def test_a_study_of_untrained_trunks_says_that_nothing_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(STUDIES / "table1_cub.yaml"), "--dry-run"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    # Three trunks, a PCA for each of four folds.
    assert first == "12 jobs: 0 trainings in the search, 0 in the runs, 12 fits of the pretrained baseline"
    assert second.startswith("nothing is trained")


def test_the_first_method_may_have_class_weights(toy_file: Path) -> None:
    spec = load_spec(toy_file)
    costs = method_costs(dataclasses.replace(spec, methods={"arcface": spec.methods["arcface"]}))
    assert [cost.method for cost in costs] == ["arcface"]


def test_a_step_in_chunks_is_timed_in_chunks(toy_file: Path, tmp_path: Path) -> None:
    spec = load_spec(toy_file, {"model.chunk_size": 4, "trainer.precision": "bf16-mixed"})
    training = build(job_config(spec, Job("contrastive", "run", 0, 0), {}), tmp_path, progress=False)
    sizes: list[int] = []
    training.model.trunk.register_forward_hook(lambda trunk, samples, features: sizes.append(len(samples[0])))
    network_step(training)()
    assert sizes == [4] * 8, "16 samples, twice"


def test_hours_are_jobs_times_steps_times_seconds() -> None:
    cost = MethodCost("arcface", 200, 40, 0.05, "", least_steps=1200, most_steps=100_000)
    assert cost.least_hours == pytest.approx(4.0)  # 240 x 1,200 x 0.05 s = 14,400 s
    assert cost.most_hours == pytest.approx(333.333, abs=1e-3)


def test_bounds_of_the_steps_are_those_of_lightning(tmp_path: Path) -> None:
    """A training that never gets better, because nothing is learnt, stops at the lower bound."""
    spec = load_spec(STUDIES / "table4_cub.yaml", {**SMALL, "data.dataset": "Glyphs"})
    config = spec.methods["contrastive"]
    config["data"] |= {"dataset": {"class_path": "Glyphs", "init_args": {"num_classes": 16, "image_size": 32}}}
    config["data"] |= {"steps_per_epoch": 1, "batch_size": 8, "fold": 0, "num_folds": 2}
    config["model"] |= {"trunk_lr": 0.0, "embedder_lr": 0.0, "weight_decay": 0.0}
    training = build(config, tmp_path, progress=False)
    assert training_steps(training.trainer, 1) == (12, 1000)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    # Evaluated after epochs 2, 4, ..., 12: the first and five that are no better.
    assert training.trainer.global_step == 12


@pytest.mark.parametrize(
    ("settings", "patience", "steps"),
    [
        ({"max_epochs": 3}, None, (300, 300)),
        ({"max_epochs": 3, "max_steps": 250}, None, (250, 250)),
        ({"max_epochs": -1}, None, (float("inf"), float("inf"))),
        ({"max_epochs": 1000, "check_val_every_n_epoch": 20}, 2, (6000, 100_000)),
        ({"max_epochs": 4, "check_val_every_n_epoch": 2}, 5, (400, 400)),
        ({"max_epochs": 40, "val_check_interval": 0.25}, 3, (100, 4000)),
        ({"max_epochs": 40, "val_check_interval": 30, "check_val_every_n_epoch": None}, 3, (120, 4000)),
    ],
)
def test_the_bounds_follow_the_trainer(settings: dict, patience: int | None, steps: tuple[float, float]) -> None:
    callbacks = [] if patience is None else [EarlyStopping("val/map_at_r", mode="max", patience=patience)]
    trainer = Trainer(**settings, callbacks=callbacks, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert training_steps(trainer, steps_per_epoch=100) == steps


def test_texts_are_timed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"a text of class {label},class {label}" for label in range(16) for _ in range(2)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    dataset = {"class_path": "TextTable", "init_args": {"table": str(tmp_path / "texts.csv")}}
    study = {
        "base": [
            "trunk/tiny_text.yaml",
            {"data": {"dataset": dataset, "batch_size": 8}, "trainer": {"accelerator": "cpu"}},
        ],
        "methods": {"ntxent": {"model": {"loss": "NTXentLoss"}}},
        "folds": 2,
        "threads": 1,
    }
    (tmp_path / "texts.yaml").write_text(yaml.safe_dump(study))
    assert main(["run", str(tmp_path / "texts.yaml"), "--dry-run"]) == 0
    assert "on 8 texts of 12 words (cpu, 1 thread)" in capsys.readouterr().out


def test_every_full_size_method_takes_a_step_without_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `--dry-run` does, but with a tiny trunk: no data set is on disk, CUB's 75 training classes are known."""
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    monkeypatch.setattr("levelfield.study.dry_run.step_time.MEASURED_STEPS", 1)
    costs = method_costs(load_spec(STUDIES / "table4_cub.yaml", SMALL))
    assert len(costs) == PAPERS_METHODS
    assert all((cost.trials, cost.runs) == (200, 40) for cost in costs)
    assert all((cost.least_steps, cost.most_steps) == (1200, 100_000) for cost in costs)
    assert all(cost.step_seconds > 0 for cost in costs)
    lines = summary(load_spec(STUDIES / "table4_cub.yaml", SMALL), costs)
    assert "3,364 jobs: 2,800 trainings in the search, 560 in the runs, 4 fits" in lines[0]
    assert "early stopping at its first chance, after 1,200 steps, and never, after 100,000" in lines[2]
