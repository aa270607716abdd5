"""The command line, as somebody at a terminal meets it."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, python
from own_images import image_options, own_images
from printed import numbers
from refused import refused, succeeded
from safetensors import safe_open
from tiny_fit import REPOSITORY, TINY
from torch import nn

from levelfield import __version__
from levelfield.data.datasets import Glyphs
from levelfield.losses import ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import MONITOR
from levelfield.models import TimmTrunk
from levelfield.training.learner import MetricLearner


def logged(folder: Path, name: str) -> list[float]:
    with open(folder / "metrics.csv") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def test_fit_writes_its_folder(fitted):
    assert sorted(path.name for path in fitted.iterdir()) == ["best.ckpt", "config.yaml", "metrics.csv"]
    scores = logged(fitted, "val/map_at_r")
    assert len(scores) == 2
    best = torch.load(fitted / "best.ckpt", weights_only=True)
    assert best["epoch"] == max(range(2), key=scores.__getitem__)
    assert "optimizer_states" not in best, "last.ckpt has them, while the fit is not finished"
    assert best["levelfield"]["data"]["fold"] == 2


def test_a_fit_takes_one_device_unless_told(run, monkeypatch):
    def devices(*words: str) -> Any:
        return yaml.safe_load(run("fit", *TINY, *words, "--print_config")[1])["trainer"]["devices"]

    assert devices() == 1
    assert devices("--config", "trainer/gpus") == -1
    assert devices("--trainer.devices", "3") == "3"
    monkeypatch.setenv("WORLD_SIZE", "2")  # of torchrun
    assert devices() == "auto"


def test_config_of_a_fit_repeats_it(fitted, run, tmp_path):
    succeeded(run("fit", "--config", fitted / "config.yaml", "--output", tmp_path))
    again = tmp_path / "fit" / "Glyphs-ArcFaceLoss" / "0"
    assert (again / "metrics.csv").read_bytes() == (fitted / "metrics.csv").read_bytes()
    weights = [torch.load(folder / "best.ckpt", weights_only=True)["state_dict"] for folder in (fitted, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_validate_repeats_the_score_of_the_fit(fitted, run):
    printed = succeeded(run("validate", "--ckpt_path", fitted / "best.ckpt"))
    assert f"{max(logged(fitted, 'val/map_at_r')):.6f}"[:7] in printed


@pytest.mark.processes
def test_two_processes_embed_what_one_does(fitted, run, tmp_path):
    shutil.copy(fitted / "best.ckpt", tmp_path)
    words, found = ("predict", "--ckpt_path", tmp_path / "best.ckpt", "--trainer.accelerator", "cpu"), []
    for more in ([], ["--trainer.devices", "2", "--trainer.strategy", "ddp"]):
        done = python(*levelfield(*words, *more), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        with safe_open(tmp_path / "embeddings.safetensors", "pt") as file:
            found.append(file.get_tensor("embeddings"))
        (tmp_path / "embeddings.safetensors").unlink()
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.slow
def test_test_is_recorded_and_predict_embeds_everything(fitted, run, tmp_path):
    shutil.copy(fitted / "best.ckpt", tmp_path)
    checkpoint = tmp_path / "best.ckpt"
    printed = succeeded(run("test", "--ckpt_path", checkpoint))
    assert run("test", "--ckpt_path", checkpoint, "--reopen-test", "a colleague asked")[0] == 0
    entries = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [entry["reason"] for entry in entries if entry["event"] == "evaluated"] == ["", "a colleague asked"]

    some = run("predict", "--ckpt_path", checkpoint, "--trainer.limit_predict_batches", "1")
    refused(some, "leaves 576 of 640 samples out")
    assert not (tmp_path / "embeddings.safetensors").exists()
    succeeded(run("predict", "--ckpt_path", checkpoint))
    with safe_open(tmp_path / "embeddings.safetensors", "pt") as file:
        embeddings, keys = file.get_tensor("embeddings"), file.metadata()["keys"].split("\n")
    index = Glyphs(num_classes=40).read_index()
    assert keys == list(index.keys)
    # The test half of what predict embedded scores what test printed.
    half = torch.from_numpy(index.labels >= 20)
    score = retrieval_metrics(embeddings[half], torch.from_numpy(index.labels)[half], metrics=("map_at_r",))["map_at_r"]
    assert f"{score:.9f}"[:6] in printed


def test_a_fit_takes_another_sampler_and_its_checkpoint_keeps_it(tiny, run, tmp_path):
    words = [*tiny, "--model.loss=ArcFaceLoss", "--data.samples_per_class=5", "--name=balanced"]
    words += ["--data.sampler", "papers.zhai_wu.samplers.ClassBalancedBatchSampler"]
    printed = succeeded(run("fit", *words, "--output", tmp_path))
    (note,) = (line for line in printed.splitlines() if line.startswith("note: "))
    assert numbers(note) == [30, 6, 32, 6], "30 samples of 6 classes instead of 32 of 6"
    checkpoint = tmp_path / "fit" / "balanced" / "0" / "best.ckpt"
    succeeded(run("validate", "--ckpt_path", checkpoint, "--trust", "papers"))
    refused(run("validate", "--ckpt_path", checkpoint, "--data.sampler", "ShuffledBatchSampler"), "--data.sampler")


@pytest.mark.slow
def test_a_final_fit_trains_on_the_whole_half_for_a_fixed_time(tiny, run, tmp_path):
    stop = ["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/map_at_r"]
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--data.fold", "none", *stop, "--output", tmp_path]
    printed = succeeded(run(*words, "--name", "final"))
    assert "20 classes" in printed
    checkpoint = tmp_path / "fit" / "final" / "0" / "best.ckpt"
    assert str(checkpoint) in printed
    stored = torch.load(checkpoint, weights_only=True)
    assert (stored["epoch"], stored["levelfield"]["num_classes"]) == (1, 20)
    refused(run("validate", "--ckpt_path", checkpoint), "--data.fold none")
    assert "test/map_at_r" in run("test", "--ckpt_path", checkpoint)[1]
    assert str(tmp_path / "fit" / "final" / "1") in run(*words, "--name", "final")[1], "a second fit"


def test_the_papers_settings_go_by_the_command_line_and_into_the_checkpoint(run, tiny, tmp_path):
    """A trunk's own arguments, crops of the original image, a schedule of steps."""
    words = "--model.loss CosFaceLoss --model.loss.weight_init uniform --data.steps_per_epoch 2 --trainer.max_epochs 1 "
    words += "--data.transforms.resize null --data.transforms.eval_resize 40 --model.lr_scheduler StepLR "
    words += "--model.lr_scheduler.step_size 1 --model.lr_scheduler_interval step --trainer.log_every_n_steps 1 "
    words += "--trainer.callbacks+ LearningRateMonitor --model.trunk.arguments"
    trunk = "{global_pool: catavgmax, drop_path_rate: 0.1}"
    succeeded(run("fit", *tiny, *words.split(), trunk, "--output", tmp_path, "--name", "papers"))
    path = tmp_path / "fit" / "papers" / "0" / "best.ckpt"
    learner = MetricLearner.load_from_checkpoint(path)
    assert learner.trunk.num_features == 2 * 96
    assert learner.loss.class_weights.abs().max() < learner.embedding_size**-0.5 + 0.03, "two steps of AdamW at 0.01"
    assert logged(path.parent, "lr-AdamW/loss") == pytest.approx([0.01, 0.001]), "a tenth after each step"


def test_a_working_directory_that_is_gone_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    refused(run("data", "list"), "working directory")
    tmp_path.mkdir()


def test_a_reader_that_has_read_enough(tmp_path):
    words = f"{sys.executable} -m levelfield study --help | head -c 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""


def test_checkpoint_loads_in_a_fresh_python_with_no_other_argument(fitted, tmp_path):
    code = (
        "import sys, torch; from levelfield.training.learner import MetricLearner;"
        "learner = MetricLearner.load_from_checkpoint(sys.argv[1]);"
        "assert type(learner.loss).__name__ == 'ArcFaceLoss' and learner.loss.margin == 20;"
        "print(tuple(learner(torch.rand(3, 3, 32, 32)).shape))"
    )
    done = python("-c", code, fitted / "best.ckpt", folder=tmp_path)
    assert done.stdout.strip() == "(3, 128)", done.stderr


DEADLY = """
import os, signal
import torch
from levelfield.data.datasets import ImageTable


class Deadly(ImageTable):
    def load(self, key):
        if torch.utils.data.get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load(key)
"""


@pytest.mark.processes
def test_a_loader_process_that_is_killed_is_one_line(tiny, tmp_path):
    own_images(tmp_path)
    (tmp_path / "deadly.py").write_text(DEADLY)
    words = [*image_options(tiny, "table.csv"), "--data.dataset", "deadly.Deadly", "--data.dataset.table", "table.csv"]
    words += ["--data.cache", "false", "--model.loss", "ContrastiveLoss", "--data.num_workers", "1"]
    done = python(*levelfield("fit", *words), folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--data.num_workers 0" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_bad_image_is_named(tiny, run, tmp_path):
    words = [*image_options(tiny, own_images(tmp_path)), "--model.loss", "ContrastiveLoss", "--output", tmp_path]
    for name in ("9_1.png", "0_1.png"):  # class 9 belongs to the test half
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
        if name == "9_1.png":
            assert run("fit", *words)[0] == 0
    refused(run("fit", *words, "--data.cache", "false"), "0_1.png")
    code, _, complaint = run("fit", *words)
    assert code == 2
    assert "0_1.png" in complaint.splitlines()[-1]


LIGHT = """
import sys
from levelfield.cli.main import main
heavy = {"torch", "torchvision", "lightning", "torchmetrics", "timm", "optuna"}
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit:
        pass
    print("\\nanswered", line, *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.processes
def test_helps_lists_mistakes_and_a_finished_study_import_no_torch(finished, toy_file, tmp_path, monkeypatch):
    helps = [f"{command} --help" for command in ("fit", "validate", "predict", "export", "compare", "study", "data")]
    study = shutil.copytree(finished, tmp_path / "out")
    (study / "report").mkdir(exist_ok=True)
    (study / "report/index.html").touch()  # drawing a page takes more
    commands = [
        *("--help", *helps, "init --help", "search --ckpt_path x", "study status x", "data list", "data list glyphs"),
        *("study run smoke --moddel.loss x", f"study status {study}", f"study run {toy_file} --output {study}"),
    ]
    stamp = [path.stat().st_mtime_ns for path in study.rglob("result.json")]
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", LIGHT, *commands], capture_output=True, text=True)
    answers = [line for line in done.stderr.splitlines() if line.startswith("answered")]
    assert answers == [f"answered {line}" for line in commands], done.stderr
    assert [path.stat().st_mtime_ns for path in study.rglob("result.json")] == stamp


@pytest.mark.slow
def test_a_checkpoint_of_a_random_split_and_another_seed_is_validated_and_tested_on_its_classes(tiny, tmp_path, run):
    """Every job of a study has a seed that is not the default."""
    words = [*tiny, "--model.loss", "ArcFaceLoss", "--model.loss.weight_init", "class_means", "--output", tmp_path]
    words += ["--model.embedder_init", "whitening", "--model.embedding_size", "16", "--trainer.max_epochs", "1"]
    words += ["--data.split", "random", "--data.split_seed"]
    succeeded(run("fit", *words, "3", "--seed_everything", "7"))
    path = tmp_path / "fit" / "Glyphs-ArcFaceLoss" / "0" / "best.ckpt"
    for command in ("validate", "test", "predict"):
        succeeded(run(command, "--ckpt_path", path))
    refused(run("validate", "--ckpt_path", path, "--model.seed", "1"), "--model.seed")
    refused(run("validate", "--ckpt_path", path, "--data.split_seed", "4"), "--data.split_seed")
    code, _, complaint = run("fit", *words, "4", "--ckpt_path", path)
    assert code != 0
    assert "test classes" in complaint


def test_an_agent_of_wandb_starts_a_fit_with_what_the_sweep_tries(run):
    sweep = yaml.safe_load((REPOSITORY / "configs/sweep/wandb.yaml").read_text())
    assert sweep["metric"] == {"name": MONITOR.replace("val/", "best/"), "goal": "maximize"}
    tried = {name: settings["max"] for name, settings in sweep["parameters"].items()}
    parts = {"${program}": [sweep["program"]], "${args}": [f"--{name}={value}" for name, value in tried.items()]}
    program, *words = [each for word in sweep["command"] for each in parts.get(word, [word])]
    assert program == "levelfield"
    config = yaml.safe_load(succeeded(run(*words, "--print_config")))
    arguments = {f"model.loss.{name}": value for name, value in config["model"]["loss"]["init_args"].items()}
    assert arguments.items() >= tried.items()
    assert config["trainer"]["logger"]["init_args"]["offline"] is False


def test_the_version_is_the_packages(run):
    assert run("--version") == (0, f"{__version__}\n", "")


def test_debug_shows_where_an_error_arose(run):
    refused(run("data", "list", "nosuch"), "nosuch")
    code, _, complaint = run("data", "list", "nosuch", "--debug")
    assert code == 2
    assert complaint.startswith("Traceback (")
    assert "levelfield.core.errors.UserError: " in complaint


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale(frozen: bool) -> None:
    trunk = TimmTrunk("test_resnet", weights=None)
    learner = MetricLearner(trunk, ContrastiveLoss(), embedding_size=8, freeze_batch_norm=frozen).train()
    norms = [module for module in trunk.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    learner(torch.rand(4, 3, 32, 32)).square().mean().backward()
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True)) == frozen
    (trained, *_) = [group["params"] for group in learner.configure_optimizers().param_groups]
    assert all(any(norm.weight is weight for weight in trained) for norm in norms)
    assert any(norm.weight.grad.abs().sum() > 0 for norm in norms)
