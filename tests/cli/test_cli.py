"""The command line, as somebody at a terminal meets it: fits, checkpoints, helps, and `levelfield data`."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import yaml
from forked import levelfield, python
from own_images import image_options, own_images
from PIL import Image
from printed import numbers
from refused import refused, succeeded
from safetensors import safe_open
from small_fit import small_learner
from tiny_fit import REPOSITORY, TINY

from levelfield import __version__
from levelfield.data.datasets import Glyphs
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import MONITOR
from levelfield.training.learner import MetricLearner


def logged(folder: Path, name: str) -> list[float]:
    with open(folder / "metrics.csv") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def test_fit_writes_its_folder(fitted):
    assert sorted(path.name for path in fitted.iterdir()) == ["best.ckpt", "config.yaml", "metrics.csv"]
    first, second = logged(fitted, "val/map_at_r")
    best = torch.load(fitted / "best.ckpt", weights_only=True)
    assert best["epoch"] == int(second > first)
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
    weights = (torch.load(folder / "best.ckpt", weights_only=True)["state_dict"] for folder in (fitted, again))
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_validate_repeats_the_score_of_the_fit(fitted, run):
    printed = succeeded(run("validate", "--ckpt_path", fitted / "best.ckpt"))
    assert f"{max(logged(fitted, 'val/map_at_r')):.6f}"[:7] in printed


def embeddings_in(folder: Path) -> tuple[torch.Tensor, list[str]]:
    """What a prediction wrote, which is deleted, and its keys."""
    path = folder / "embeddings.safetensors"
    with safe_open(path, "pt") as file:
        found = file.get_tensor("embeddings"), file.metadata()["keys"].split("\n")
    path.unlink()
    return found


@pytest.mark.processes
def test_two_processes_embed_what_one_does(fitted, tmp_path):
    shutil.copy(fitted / "best.ckpt", tmp_path)
    words, found = ("predict", "--ckpt_path", "best.ckpt", "--trainer.accelerator", "cpu", "--trainer.devices"), []
    for more in (["1"], ["2", "--trainer.strategy", "ddp"]):
        done = python(*levelfield(*words, *more), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found.append(embeddings_in(tmp_path)[0])
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
    embeddings, keys = embeddings_in(tmp_path)
    index = Glyphs(num_classes=40).read_index()
    assert keys == list(index.keys)
    half, labels = index.labels >= 20, torch.from_numpy(index.labels)
    score = retrieval_metrics(embeddings[half], labels[half])["map_at_r"]
    assert f"{score:.9f}"[:6] in printed, "the test half of what predict embedded scores what test printed"


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
    assert subprocess.run(words, shell=True, capture_output=True, cwd=tmp_path).stderr == b""


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
    refused((done.returncode, "", f"{done.stderr.splitlines()[-1]}\n"), "--data.num_workers 0")
    assert "Traceback" not in done.stderr


def test_a_bad_image_is_named(tiny, run, tmp_path):
    words = [*image_options(tiny, own_images(tmp_path)), "--model.loss", "ContrastiveLoss", "--output", tmp_path]
    for name in ("9_1.png", "0_1.png"):  # class 9 belongs to the test half
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
        if name == "9_1.png":
            assert run("fit", *words)[0] == 0
    refused(run("fit", *words, "--data.cache", "false"), "0_1.png")
    code, _, complaint = run("fit", *words)
    assert (code, "0_1.png" in complaint.splitlines()[-1]) == (2, True)


LIGHT = """
import sys
from contextlib import suppress
from levelfield.cli.main import main
heavy = {"torch", "torchvision", "lightning", "torchmetrics", "timm", "optuna"}
for line in sys.argv[1:]:
    with suppress(SystemExit):
        main(line.split())
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
    assert (code != 0, "test classes" in complaint) == (True, True)


@pytest.mark.processes  # the project's modules are imported
@pytest.mark.parametrize("file", ["configs/sweep/wandb.yaml", "templates/my_project/sweep.yaml"])
def test_an_agent_of_wandb_starts_a_fit_with_what_the_sweep_tries(file):
    sweep = yaml.safe_load((REPOSITORY / file).read_text())
    assert sweep["metric"] == {"name": MONITOR.replace("val/", "best/"), "goal": "maximize"}
    tried = {name: settings["max"] for name, settings in sweep["parameters"].items()}
    parts = {"${program}": [sweep["program"]], "${args}": [f"--{name}={value}" for name, value in tried.items()]}
    program, *words = [each for word in sweep["command"] for each in parts.get(word, [word])]
    assert program == "levelfield"
    sources = {"PYTHONPATH": f"{REPOSITORY}/templates/my_project/src", "PYTHONDONTWRITEBYTECODE": "1"}
    config = yaml.safe_load(python(*levelfield(*words, "--print_config"), **sources).stdout)
    arguments = {f"model.loss.{name}": value for name, value in config["model"]["loss"]["init_args"].items()}
    assert arguments.items() >= tried.items()
    assert config["trainer"]["logger"]["init_args"]["offline"] is False


def test_the_version_is_the_packages(run):
    assert run("--version") == (0, f"{__version__}\n", "")


def test_debug_shows_where_an_error_arose(run):
    refused(run("data", "list", "nosuch"), "nosuch")
    code, _, complaint = run("data", "list", "nosuch", "--debug")
    assert (code, "levelfield.core.errors.UserError: " in complaint) == (2, True)
    assert complaint.startswith("Traceback (")


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale(frozen: bool) -> None:
    learner = small_learner(freeze_batch_norm=frozen).train()
    norms = [module for module in learner.trunk.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    learner(torch.rand(4, 3, 32, 32)).square().mean().backward()
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True)) == frozen
    (trained, *_) = [group["params"] for group in learner.configure_optimizers().param_groups]
    assert all(any(norm.weight is weight for weight in trained) for norm in norms)
    assert any(norm.weight.grad.abs().sum() > 0 for norm in norms)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)


@pytest.fixture
def small_omniglot(tmp_path: Path) -> Path:
    """A data folder whose Omniglot has two characters with a drawing each, the second one truncated."""
    Image.new("1", (105, 105)).save(drawing := BytesIO(), "PNG")
    (tmp_path / "omniglot").mkdir()
    for part, alphabet, size in (("images_background", "Greek", None), ("images_evaluation", "Tengwar", 40)):
        with ZipFile(tmp_path / "omniglot" / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/{alphabet}/character01/0001_01.png", drawing.getvalue()[:size])
    return tmp_path


# Of each named data set the published numbers of classes and of samples, and whether it is here.
PUBLISHED = """
banking77 77 13,083 no; cars196 196 16,185 no; clinc150 150 22,500 no; cub200 200 11,788 no; glyphs 1,228 16,752 yes;
grocery_store 81 5,421 no; inshop 7,982 52,712 no; news20 20 18,846 no; omniglot 1,623 32,460 yes; sop 22,634 120,053 no
"""


def test_list_tells_what_is_there_and_what_is_broken(small_omniglot: Path, run: Callable) -> None:
    (small_omniglot / "grocery_store").mkdir()
    _, *lines = succeeded(run("data", "list", "--root", small_omniglot)).splitlines()
    published = [each.split() for each in PUBLISHED.split(";")]
    assert [line.split()[:4] for line in lines[: len(published)]] == published
    assert max(map(len, lines[: len(published)])) <= 120
    below = "\n".join(lines[len(published) :])
    assert f"{small_omniglot}/grocery_store/dataset/classes.csv" in below
    assert "cub200" not in below  # what was never fetched is no mistake


def test_a_card_has_all_that_is_known(small_omniglot: Path, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_DATA", str(small_omniglot))
    omniglot, cub = succeeded(run("data", "list", "omniglot", "cub200")).split("\ncub200\n")
    facts = dict(line.strip().split(": ", 1) for line in omniglot.splitlines() if ": " in line)
    wanted = {"counts": "1,623 classes, 32,460 samples (image)", "licence": "MIT", "ready": "yes"}
    wanted |= {"source": "https://github.com/brendenlake/omniglot", "folder": f"{small_omniglot}/omniglot"}
    assert facts.items() >= wanted.items()
    assert facts["root"].startswith("holds `omniglot/` with `images_background.zip`")
    assert "CUB_200_2011.tgz: 1.2 GB, SHA-256 0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081" in cub
    assert f"no folder {small_omniglot}/cub200" in cub


def test_verify_lists_every_problem_and_exits_with_2(small_omniglot: Path, run: Callable) -> None:
    code, printed, _ = run("data", "verify", "omniglot", "--data.root", small_omniglot)
    *counts, broken = printed.splitlines()
    found = [numbers(line) for line in counts]
    assert (code, found) == (2, [[2, 2, 3], [2, 1623], [2, 32460]]), "classes, samples, problems"
    assert "images_evaluation/Tengwar/character01/0001_01.png" in broken


def test_verify_opens_ones_own_data(tmp_path: Path, run: Callable) -> None:
    for name, shade in (("a/1", 110), ("a/2", 120), ("b/1", 120)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / f"{name}.png")
    images, texts, both = (tmp_path / f"{name}.csv" for name in ("images", "texts", "both"))
    images.write_text("path,label\na/1.png,a\na/2.png,a\nb/1.png,b\n")
    texts.write_text("text,label\ngood day,a\nbye,b\n")
    lines = succeeded(run("data", "verify", images, texts, tmp_path)).splitlines()
    assert [numbers(line) for line in lines if ".png" not in line] == [
        *([2, 3], [1], [1], [1, 1, 1]),  # classes and samples, classes of one sample, to train on, samples twice
        *([2, 2], [2], [1]),
        *([2, 3], [2], [1], [1], [1, 1, 1]),  # two files are left out
    ]
    twice = [line for line in lines if ".png" in line]
    assert len(twice) == 2
    assert all("a/2.png (a, training)" in line and "b/1.png (b, test)" in line for line in twice)
    (tmp_path / "b" / "1.png").unlink()
    for file, named in ((images, "images.csv, row 4"), (tmp_path / "nowhere.csv", f"{tmp_path}/nowhere.csv")):
        code, printed, _ = run("data", "verify", file)
        assert (code, named in printed) == (2, True)
    both.write_text("text,label,path\ngood day,a,a/1.png\nbye,b,a/2.png\n")
    assert "image_table: 2 classes, 2 samples" in succeeded(run("data", "verify", both))
