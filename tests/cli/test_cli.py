"""The command line, as somebody at a terminal meets it."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from deletable import EXPORT, needs
from own_images import image_options, own_images
from printed import numbers
from refused import refused
from safetensors import safe_open
from tiny_fit import TINY

from levelfield.data.datasets import Glyphs
from levelfield.metrics import retrieval_metrics
from levelfield.training.learner import MetricLearner


def test_fit_writes_its_folder(fitted):
    assert sorted(path.name for path in fitted.iterdir()) == ["best.ckpt", "config.yaml", "metrics.csv"]
    with open(fitted / "metrics.csv") as file:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert len(scores) == 2
    best = torch.load(fitted / "best.ckpt", weights_only=True)
    assert best["epoch"] == max(range(2), key=scores.__getitem__)
    assert best["levelfield"]["data"]["fold"] == 2


def test_config_of_a_fit_repeats_it(fitted, run, tmp_path):
    code, _, complaint = run("fit", "--config", fitted / "config.yaml", "--output", tmp_path)
    assert code == 0, complaint
    again = tmp_path / "fit" / "Glyphs-ArcFaceLoss" / "0"
    assert (again / "metrics.csv").read_bytes() == (fitted / "metrics.csv").read_bytes()
    weights = [torch.load(folder / "best.ckpt", weights_only=True)["state_dict"] for folder in (fitted, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_second_fit_takes_the_next_folder(tiny, run, tmp_path):
    words = ["fit", *tiny, "--trainer.max_epochs", "1", "--model.loss", "ContrastiveLoss", "--output", tmp_path]
    for number in "01":
        code, printed, complaint = run(*words, "--name", "mine")
        assert code == 0, complaint
        assert str(tmp_path / "fit" / "mine" / number) in printed
    assert (tmp_path / "fit" / "mine" / "1" / "best.ckpt").exists()


def test_checkpoint_loads_in_a_fresh_python_with_no_other_argument(fitted, tmp_path):
    code = (
        "import sys, torch; from levelfield.training.learner import MetricLearner;"
        "learner = MetricLearner.load_from_checkpoint(sys.argv[1]);"
        "assert type(learner.loss).__name__ == 'ArcFaceLoss' and learner.loss.margin == 20;"
        "print(tuple(learner(torch.rand(3, 3, 32, 32)).shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(fitted / "best.ckpt")], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "(3, 128)", done.stderr


def test_validate_repeats_the_score_of_the_fit(fitted, run):
    code, printed, complaint = run("validate", "--ckpt_path", fitted / "best.ckpt")
    assert code == 0, complaint
    with open(fitted / "metrics.csv") as file:
        best = max(float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"])
    assert f"{best:.6f}"[:7] in printed


def test_validate_takes_no_configuration_of_a_learner(fitted, run):
    words = ("validate", "--ckpt_path", fitted / "best.ckpt")
    refused(run(*words, "--config", fitted / "config.yaml"), str(fitted / "best.ckpt"))
    code, printed, _ = run(*words, "--data.eval_batch_size", "8", "--print_config")
    assert code == 0
    settings = yaml.safe_load(printed)
    assert settings["data"]["eval_batch_size"] == 8
    assert settings["model"]["loss"]["class_path"] == "levelfield.losses.ArcFaceLoss"


def test_test_is_recorded_and_predict_embeds_everything(fitted, run, tmp_path):
    shutil.copy(fitted / "best.ckpt", tmp_path)
    checkpoint = tmp_path / "best.ckpt"
    code, printed, complaint = run("test", "--ckpt_path", checkpoint)
    assert code == 0, complaint
    assert "test/map_at_r" in printed
    assert run("test", "--ckpt_path", checkpoint, "--reopen-test", "a colleague asked")[0] == 0
    entries = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [entry["reason"] for entry in entries if entry["event"] == "evaluated"] == ["", "a colleague asked"]

    some = run("predict", "--ckpt_path", checkpoint, "--trainer.limit_predict_batches", "1")
    refused(some, "leaves 576 of 640 samples out")
    assert not (tmp_path / "embeddings.safetensors").exists()
    code, _, complaint = run("predict", "--ckpt_path", checkpoint)
    assert code == 0, complaint
    with safe_open(tmp_path / "embeddings.safetensors", "pt") as file:
        embeddings = file.get_tensor("embeddings")
        keys = file.metadata()["keys"].split("\n")
    index = Glyphs(num_classes=40).read_index()
    assert keys == list(index.keys)
    assert embeddings.shape == (len(keys), 128)
    # The test half of what predict embedded scores what test printed.
    half = torch.from_numpy(index.labels >= 20)
    score = retrieval_metrics(embeddings[half], torch.from_numpy(index.labels)[half], metrics=("map_at_r",))["map_at_r"]
    assert f"{score:.5f}"[:6] in printed


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
@pytest.mark.parametrize(
    "option",
    [
        *("--data.fold 1", "--data.dataset Omniglot", "--data.batch_size 64", "--data.transforms.crop_size 40"),
        *("--model.loss.margin 30", "--model.loss ContrastiveLoss", "--model.embedding_size 64"),
        *("--model.trunk.name resnet10t", "--model.miner MultiSimilarityMiner", "--model.regularizer KoLeo"),
        *("--output elsewhere", "--output=x", "--trainer.max_epochs 7", "--trainer.limit_train_batches=3"),
        *("--trainer.logger CSVLogger", "--trainer.logger.init_args.name=x", "--checkpoint_seconds 5"),
        *(
            "--seed_everything 5",
            "--model.trunk.weights other.pth",
            "--model.trunk.weights=null",
        ),
        *("--ckpt_path other.ckpt", "--reopen-tst why", "--trainer.acelerator cpu"),
    ],
)
def test_what_contradicts_the_checkpoint_is_refused(fitted, run, command, option):
    key = re.match(r"--\w[\w-]*(\.\w+)?", option)[0]
    refused(run(command, "--ckpt_path", fitted / "best.ckpt", *option.split()), key)
    assert not (fitted / "ledger.jsonl").exists()


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_another_data_set_than_the_checkpoint_s_is_refused(fitted, run, command):
    refused(run(command, "--ckpt_path", fitted / "best.ckpt", "--data.dataset.num_classes", "60"), "(train_classes)")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--model.loss ArcFaceLos", "'ArcFaceLoss'"),
        ("--model.loss.margn 2", "'margin'"),
        ("--model.los ArcFaceLoss", "'--model.loss'"),
        ("--model.emb 4", "--model.emb"),
        ("--model.trunk.name resnet5", "'resnet50'"),
        ("--model.trunk.weights none.pth", "none.pth"),
        ("--data.fold 9", "--data.fold 9"),
        ("--data.dataset Glyph", "'Glyphs'"),
        ("--data.sampler ShuffleBatchSampler", "'ShuffledBatchSampler'"),
        ("--data.samples_per_class 5", "samples_per_class"),
        ("--data.dataset ImageTable", "--data.dataset.table"),
        ("--data.dataset ImageFolder --data.dataset.num_classes 3", "'num_classes'"),
        ("--data.dataset.num_classes 12", "num_folds"),
        ("--model.loss missing_module.MyLoss", "missing_module"),
        ("--model.loss collections.Counter", "collections.Counter"),
        ("--config nothing.yaml", "nothing.yaml"),
        ("--ckpt_path nothing.ckpt", "nothing.ckpt"),
        ("--trainer.precision 17", "precision"),
        ("--trainer.strategy dpp", "strategy='dpp'"),
        ("--trainer.strategy ddp_spawn --trainer.devices 2", "--trainer.strategy ddp_spawn"),
        ("--trainer.accelerator gpu", "--trainer.accelerator gpu"),
        ("--name a/../../b", "--name a/../../b"),
        ("--checkpoint_seconds -3", "--checkpoint_seconds -3"),
        ("--checkpoint_seconds nan", "--checkpoint_seconds"),
        ("--resume --trainer.enable_checkpointing false", "--resume"),
        ("--trainer.callbacks EarlyStopping --trainer.callbacks.monitor x", "--trainer.callbacks"),
        # What Lightning, torch and their loggers refuse when they are built or in the fit.
        ("--trainer.callbacks LearningRateFinder", "--model.trunk_lr"),
        ("--trainer.callbacks BatchSizeFinder", "--data.batch_size"),
        ("--trainer.callbacks BackboneFinetuning", "NewWeightsFirst"),
        ("--trainer.strategy ddp_notebook", "--trainer.strategy ddp_notebook"),
        ("--trainer.precision transformer-engine", "transformer_engine"),
        ("--trainer.barebones true", "--trainer.barebones"),
        ("--trainer.val_check_interval 100", "--trainer.val_check_interval"),
        ("--config logger/wandb --trainer.logger.log_model true", "log_model"),
        ("--trainer.logger MLFlowLogger", "mlflow"),
        ("--model.lr_scheduler ReduceLROnPlateau", "--model.lr_scheduler.mode"),
        ("--model.optimizer SparseAdam", "--model.optimizer"),
        (
            "--model.lr_scheduler OneCycleLR --model.lr_scheduler.max_lr 0.1 --model.lr_scheduler.total_steps 3 "
            "--model.lr_scheduler_interval step",
            "--model.lr_scheduler",
        ),
        ("--data.fold none --trainer.max_epochs -1", "--trainer.max_epochs"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tiny, run, tmp_path, options, key):
    refused(run("fit", *tiny, "--model.loss", "ArcFaceLoss", "--output", tmp_path, *options.split()), key)


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        *(("model.embedder_lr", bad) for bad in ("-1", ".nan", ".inf", "nan", "fast")),
        *((f"model.{key}", "-0.1") for key in ("trunk_lr", "loss_lr", "weight_decay", "loss_weight_decay")),
        *((f"model.{key}", "0") for key in ("embedding_size", "num_features", "loss.scale")),
        ("model.loss.margin", "[1]"),
        *((f"data.{key}", "0") for key in ("batch_size", "samples_per_class", "steps_per_epoch", "eval_batch_size")),
        *((f"data.{key}", "-1") for key in ("num_workers", "fold", "num_folds", "dataset.num_classes")),
        *((f"data.{key}", "1.5") for key in ("batch_size", "fold", "features", "transforms.crop_size")),
        ("data.transforms.scale", "[0.5]"),
        *((f"trainer.{key}", "0") for key in ("accumulate_grad_batches", "check_val_every_n_epoch", "devices")),
        *((f"trainer.{key}", "0") for key in ("num_nodes", "val_check_interval")),
        *((f"trainer.{key}", "-2") for key in ("max_epochs", "max_steps", "min_epochs", "limit_train_batches")),
        *((f"trainer.{key}", "-2") for key in ("log_every_n_steps", "num_sanity_val_steps", "fast_dev_run")),
        *(("trainer.gradient_clip_val", bad) for bad in ("-1", ".nan")),
        *(("seed_everything", bad) for bad in ("-1", "99999999999", "nan")),
    ],
)
def test_a_number_out_of_its_range_is_one_line_that_names_it(tiny, run, tmp_path, option, bad):
    result = run("fit", *tiny, "--model.loss", "ArcFaceLoss", "--output", tmp_path, f"--{option}", bad)
    refused(result, option.rpartition(".")[2])
    assert not {"NestedArg", "<class"} & set(result[2].replace("(", " ").split()), result[2]
    assert not list(tmp_path.glob("fit/*/*/best.ckpt"))


def test_a_fit_takes_another_sampler_and_its_checkpoint_keeps_it(tiny, run, tmp_path):
    words = ["--data.sampler", "ClassBalancedBatchSampler", "--data.samples_per_class", "5", "--name", "balanced"]
    code, printed, complaint = run("fit", *tiny, "--model.loss", "ArcFaceLoss", *words, "--output", tmp_path)
    assert code == 0, complaint
    (note,) = (line for line in printed.splitlines() if line.startswith("note: "))
    assert numbers(note) == [30, 32, 5, 6], "30 samples instead of 32: 5 of each of 6 classes"
    checkpoint = tmp_path / "fit" / "balanced" / "0" / "best.ckpt"
    code, _, complaint = run("validate", "--ckpt_path", checkpoint)
    assert code == 0, complaint
    refused(run("validate", "--ckpt_path", checkpoint, "--data.sampler", "ShuffledBatchSampler"), "--data.sampler")


def test_a_final_fit_trains_on_the_whole_half_for_a_fixed_time(tiny, run, tmp_path):
    stop = ["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/map_at_r"]
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--data.fold", "none", *stop, "--output", tmp_path]
    code, printed, complaint = run(*words, "--name", "final")
    assert code == 0, complaint
    assert "20 classes" in printed
    checkpoint = tmp_path / "fit" / "final" / "0" / "best.ckpt"
    assert str(checkpoint) in printed
    stored = torch.load(checkpoint, weights_only=True)
    assert stored["epoch"] == 1
    assert stored["levelfield"]["num_classes"] == 20
    refused(run("validate", "--ckpt_path", checkpoint), "--data.fold none")
    code, printed, complaint = run("test", "--ckpt_path", checkpoint)
    assert code == 0, complaint
    assert "test/map_at_r" in printed


@pytest.mark.parametrize("options", [["fast_dev_run", "true"], ["max_epochs", "0"], ["limit_val_batches", "0"]])
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_a_fit_without_validation_says_so(tiny, run, tmp_path, options):
    words = ["--model.loss", "ContrastiveLoss", f"--trainer.{options[0]}", options[1]]
    code, printed, complaint = run("fit", *tiny, *words, "--output", tmp_path)
    assert (code, complaint) == (0, "")
    assert "no best.ckpt" in printed.splitlines()[-1]


def test_the_best_score_is_told_beside_a_checkpoint_callback_of_ones_own(tiny, run, tmp_path):
    words = ["--model.loss", "ContrastiveLoss", "--trainer.callbacks", "ModelCheckpoint", "--output", tmp_path]
    code, printed, complaint = run("fit", *tiny, *words)
    assert code == 0, complaint
    assert "MAP@R" in printed
    assert list((tmp_path / "fit" / "Glyphs-ContrastiveLoss" / "0" / "checkpoints").glob("*.ckpt"))


def test_embeddings_that_cannot_be_written_are_one_line(fitted, run):
    (fitted / "embeddings.safetensors").mkdir()
    try:
        refused(run("predict", "--ckpt_path", fitted / "best.ckpt"), "/embeddings.safetensors")
    finally:
        (fitted / "embeddings.safetensors").rmdir()


@pytest.mark.processes
def test_ctrl_c_ends_a_fit_in_one_line_and_its_best_checkpoint_stays(tiny, tmp_path):
    words = ["fit", *tiny, "--trainer.max_epochs", "1000", "--model.loss", "ContrastiveLoss", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "levelfield", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    best = tmp_path / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt"
    deadline = time.monotonic() + 120
    while not best.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert str(best) in complaint.splitlines()[-1]
    assert "Traceback" not in complaint


def test_ctrl_c_before_anything_is_kept_names_no_file(tiny, run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(MetricLearner, "training_step", interrupted)
    code, _, complaint = run("fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path)
    assert (code, complaint.splitlines()) == (130, ["", "stopped; no epoch is kept: the same command starts again"])


def test_commands_are_checked_too(run):
    refused(run("fti"), "'fti'", "'fit'")
    refused(run("test"), "--ckpt_path")
    refused(run("validate", "--ckpt_path", "nothing.ckpt"), "nothing.ckpt")


def test_help_reads_well(run):
    code, printed, _ = run("--help")
    assert code == 0
    assert len(printed.splitlines()) < 25
    for command in ("study run", "fit", "validate, test", "predict, score", "search", "data list"):
        assert command in printed
    code, printed, _ = run("fit", "--help")
    assert code == 0
    assert len(printed.splitlines()) < 100
    for word in ("ArcFaceLoss", "--trainer.max_epochs 5", "--model.loss_lr", "--data.batch_size"):
        assert word in printed
    for command in ("validate", "test", "predict"):
        code, printed, _ = run(command, "--help")
        assert code == 0
        assert f"levelfield {command} --ckpt_path FILE" in printed
        assert "--trust NAME" in printed


@pytest.mark.parametrize(
    "command",
    [
        *("study", "study run", "compare", "data", "data list", "init"),
        *("validate", "test", "predict", "score", "search", pytest.param("export", marks=needs(EXPORT))),
    ],
)
def test_a_help_fits_a_screen(command, run):
    code, printed, _ = run(*command.split(), "--help")
    lines = printed.splitlines()
    assert code == 0
    assert lines[0].startswith(f"usage: levelfield {command} ")
    assert "{" not in printed
    assert len(lines) < 50
    assert max(map(len, lines)) <= 120


def test_fit_on_own_images(tiny, run, tmp_path):
    words = image_options(tiny, own_images(tmp_path))
    code, printed, complaint = run("fit", *words, "--model.loss", "TripletMarginLoss", "--output", tmp_path)
    assert code == 0, complaint
    assert "best.ckpt" in printed


@pytest.mark.parametrize("content", [b"", b"this is no image", None])
def test_a_bad_image_is_named(tiny, run, tmp_path, content):
    table = own_images(tmp_path)
    victim = tmp_path / "9_1.png"  # class 9 belongs to the test half
    victim.write_bytes(victim.read_bytes()[:50] if content is None else content)
    words = [*image_options(tiny, table), "--model.loss", "ContrastiveLoss", "--output", str(tmp_path)]
    assert run("fit", *words)[0] == 0
    victim = tmp_path / "0_1.png"
    victim.write_bytes(victim.read_bytes()[:50] if content is None else content)
    refused(run("fit", *words, "--data.cache", "false"), "0_1.png")
    code, _, complaint = run("fit", *words)
    assert code == 2
    assert "0_1.png" in complaint.splitlines()[-1]


def test_a_bad_table_is_named(tiny, run, tmp_path):
    table = own_images(tmp_path)
    words = [*image_options(tiny, table), "--model.loss", "ContrastiveLoss", "--output", str(tmp_path)]
    table.write_text(table.read_text().replace("path,label", "path,name"))
    refused(run("fit", *words), "table.csv", "label")
    table.unlink()
    refused(run("fit", *words), "table.csv")
    folder = ["--data.dataset", "ImageFolder", "--data.dataset.folder", "nowhere"]
    refused(run("fit", *tiny, *folder, "--model.loss", "ArcFaceLoss"), "nowhere")


def test_classes_with_one_sample_leave_training(tiny, run, tmp_path):
    table = own_images(tmp_path, classes=24)
    lines = [line for line in table.read_text().splitlines() if not line.startswith(("4_1", "4_2", "4_3"))]
    table.write_text("\n".join(lines) + "\n")
    words = [*image_options(tiny, table), "--model.loss", "ContrastiveLoss", "--output", str(tmp_path)]
    code, printed, complaint = run("fit", *words)
    assert code == 0, complaint
    assert "1 class " in printed + complaint


def test_the_papers_settings_go_by_the_command_line_and_into_the_checkpoint(run, tiny, tmp_path):
    """A trunk's own arguments, crops of the original image, a schedule of steps."""
    words = ["--model.loss", "CosFaceLoss", "--model.loss.weight_init", "uniform", "--data.steps_per_epoch", "2"]
    words += ["--model.trunk.arguments", "{global_pool: catavgmax, drop_path_rate: 0.1}"]
    words += ["--data.transforms.resize", "null", "--data.transforms.eval_resize", "40"]
    words += ["--model.lr_scheduler", "StepLR", "--model.lr_scheduler.step_size", "1"]
    words += ["--model.lr_scheduler_interval", "step", "--trainer.max_epochs", "1"]
    code, _, complaint = run("fit", *tiny, *words, "--output", tmp_path, "--name", "papers")
    assert code == 0, complaint
    path = tmp_path / "fit" / "papers" / "0" / "best.ckpt"
    learner = MetricLearner.load_from_checkpoint(path)
    assert learner.trunk.num_features == 2 * 96
    assert learner.loss.class_weights.abs().max() < learner.embedding_size**-0.5 + 0.03, "two steps of AdamW at 0.01"
    [schedule] = torch.load(path, weights_only=True)["lr_schedulers"]
    assert schedule["last_epoch"] == 2, "one epoch of two steps"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--output", "/proc/nowhere"), "/proc/nowhere"),
        (("--name", "long" * 80), "shorter name"),
    ],
)
def test_a_folder_that_cannot_be_made_is_one_line(words, line, tiny, run):
    code, _, complaint = run("fit", *tiny, "--model.loss", "ContrastiveLoss", *words)
    assert (code, len(complaint.strip().splitlines())) == (2, 1)
    assert line in complaint


def test_a_working_directory_that_is_gone_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    code, _, complaint = run("data", "list")
    tmp_path.mkdir()
    assert (code, "working directory" in complaint) == (2, True)


def test_a_reader_that_has_read_enough(tmp_path):
    words = f"{sys.executable} -m levelfield study --help | head -c 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""


def test_a_loader_process_that_is_killed_is_one_line(run, tmp_path, monkeypatch):
    own_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nimport torch\nfrom levelfield.data.datasets import ImageTable\n\n\n"
        "class Deadly(ImageTable):\n    def load(self, key):\n"
        "        if torch.utils.data.get_worker_info():\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().load(key)\n"
    )
    words = [*TINY[: TINY.index("--data.dataset.num_classes")], *TINY[TINY.index("--data.dataset.num_classes") + 2 :]]
    words += ["--data.dataset", "deadly.Deadly", "--data.dataset.table", "table.csv", "--data.cache", "false"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "levelfield",
            "fit",
            *words,
            "--model.loss",
            "ContrastiveLoss",
            "--data.num_workers",
            "1",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "--data.num_workers 0" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
