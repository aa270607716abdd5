"""Mistakes of a fit's files and options: each is one line that names the key and the nearest right name."""

import re
from pathlib import Path

import pytest
import yaml
from refused import refused

from levelfield.core.configuration import set_dotted

GLYPHS = ["--config", "data/glyphs.yaml", "--config", "trunk/tiny.yaml"]
FIT = [*GLYPHS, "--model.loss", "ArcFaceLoss"]
FILES = {
    "section.yaml": "modle: {loss: ArcFaceLoss}\n",
    "key.yaml": "model: {los: {class_path: ArcFaceLoss}}\n",
    "empty.yaml": "model: {los: {}}\n",
    "trainer.yaml": "seed_everything: 1\ntrainer: {max_epoch: 2}\n",
    "argument.yaml": "model: {loss: {class_path: ArcFaceLoss, init_args: {magin: 2}}}\n",
    "beside.yaml": "model: {loss: {class_path: ArcFaceLoss, margin: 2}}\n",
    "number.yaml": "trainer: 3\n",
    "learner.yaml": "model: {learner: 3}\n",
    "seed.yaml": "seed_everything: many\n",
    "twice.yaml": "model: {loss: ArcFaceLoss}\ndata: {fold: 0}\nmodel: {embedding_size: 8}\n",
    "list.yaml": "- model\n",
    "no.yaml": "model: [\n",
}

# Options behind FIT, and what the line must say.
MISTAKES = [
    # A misspelt name at each level.
    (["--modle.loss", "x"], ["--modle.loss", "'--model.loss'"]),
    (["--modle.loss=x"], ["--modle.loss", "'--model.loss'"]),
    (["--nmae", "x"], ["--nmae", "'--name'"]),
    (["--model.embedding_sise", "4"], ["--model.embedding_sise", "'--model.embedding_size'"]),
    (["--model.emb", "4"], ["--model.emb"]),
    (["--trainer.max_epoch", "4"], ["--trainer.max_epoch", "'--trainer.max_epochs'"]),
    (["--model.loss.magin", "20"], ["--model.loss", "'magin'", "'margin'"]),
    (["--data.dataset.imagesize", "20"], ["--data.dataset", "'imagesize'", "'image_size'"]),
    (["--data.transforms.crop_sise", "8"], ["--data.transforms", "'crop_sise'", "'crop_size'"]),
    (
        ["--trainer.callbacks+", "EarlyStopping", "--trainer.callbacks.monitr", "x"],
        ["--trainer.callbacks", "'monitor'"],
    ),
    (["--model.optimizer", "SGD", "--model.optimizer.momentun", "0.9"], ["--model.optimizer", "'momentum'"]),
    # In a file.
    (["--config", "section.yaml"], ["modle.loss", "'--model.loss'"]),
    (["--config", "key.yaml"], ["model.los", "'--model.loss'"]),
    (["--config", "empty.yaml"], ["model.los", "'--model.loss'"]),
    (["--config=trainer.yaml"], ["trainer.max_epoch", "'--trainer.max_epochs'"]),
    (["--config", "argument.yaml"], ["--model.loss", "'magin'", "'margin'"]),
    (["--config", "beside.yaml"], ["ArcFaceLoss", "'margin'", "init_args"]),
    (["--config", "number.yaml"], ["--trainer 3"]),
    (["--config", "learner.yaml"], ["--model 3"]),
    # No such class or file.
    (["--model.loss", "ArcFaceLos"], ["--model.loss", "'ArcFaceLoss'"]),
    (["--model.trunk.adapter", "lora"], ["--model.trunk.adapter", "'LoRA'"]),
    (["--model.optimizer", "SGDD"], ["--model.optimizer", "'SGD'"]),
    (["--trainer.callbacks", "EarlyStoping"], ["--trainer.callbacks", "'EarlyStopping'"]),
    (["--model.loss", "levelfield.losses.ArcFaceLos"], ["--model.loss", "'ArcFaceLoss'"]),
    (["--model.loss", "my_los.MyLoss"], ["--model.loss", "'my_los'"]),
    (["--model", "my_learner.Mine"], ["--model my_learner.Mine", "'my_learner'"]),
    (["--config", "data/glyfs.yaml"], ["--config", "'data/glyfs.yaml'", "'data/glyphs.yaml'"]),
    (["--trainer", "trainr.yaml"], ["trainr.yaml"]),
    # A name of a configuration or of a timm model in place of a class; your own data in place of a datamodule.
    (["--model.trunk", "resnet50"], ["--model.trunk", "--config trunk/resnet50.yaml"]),
    (["--model.trunk", "resnet101"], ["--model.trunk", "--model.trunk.name"]),
    (["--data", "few"], ["--data few", "--config data/image_folder.yaml --data.dataset.folder few"]),
    (["--data", "few.csv"], ["--data few.csv", "--data.dataset.table few.csv"]),
    # The name of another program, without or with a section.
    (["--epochs", "3"], ["--epochs", "--trainer.max_epochs"]),
    (["--trainer.epochs", "3"], ["--trainer.epochs", "--trainer.max_epochs"]),
    (["--lr", "0.1"], ["--lr", "--model.trunk_lr", "--model.embedder_lr", "--model.loss_lr"]),
    (["--batch-size=3"], ["--batch-size", "--data.batch_size"]),
    (["--model.gradient_checkpointing", "true"], ["--trainer.callbacks+ GradientCheckpointing"]),
    # Another kind of class.
    (["--model.loss", "collections.Counter"], ["--model.loss", "'collections.Counter'", "Module"]),
    # A wrong type, choice or range.
    (["--model.embedding_size", "many"], ["--model.embedding_size many", "int"]),
    (["--model.loss.margin", "a"], ["--model.loss.margin a", "float"]),
    (["--model.loss_lr="], ["--model.loss_lr", "float"]),
    (["--trainer.max_epochs", "1.5"], ["--trainer.max_epochs 1.5", "int"]),
    (["--config", "seed.yaml"], ["--seed_everything many", "int"]),
    (["--model.distance", "cosin"], ["--model.distance cosin", "'cosine'"]),
    (["--model.embedding_size", "0"], ["--model.embedding_size 0", "1"]),
    (["--data.fold", "9"], ["--data.fold 9", "3"]),
    # What is missing, supplied or linked.
    (["--model.loss"], ["--model.loss"]),
    (["--data.dataset", "ImageTable"], ["--data.dataset.table"]),
    (["--model.loss.num_classes", "3"], ["--model.loss.num_classes"]),
    (["--model.seed", "3"], ["--model.seed", "--seed_everything"]),
    # Files that are no mapping, or contradict themselves.
    (["--config", "twice.yaml"], ["twice.yaml", "line 3", "'model'"]),
    (["--config", "list.yaml"], ["list.yaml", "list"]),
    (["--config", "no.yaml"], ["no.yaml", "YAML"]),
]


# Commands, and what the line must say.
COMMANDS = [
    (["train"], ["'train'", "levelfield fit"]),
    (["list"], ["'list'", "levelfield data list"]),
    (["compare", "nosuch"], ["no file or folder 'nosuch'"]),
    (["compare", "few", "--loss", "x"], ["--loss", "--add-method"]),
    (["compare", "few", "--epochs", "3"], ["--epochs", "--minutes"]),
    (["study", "run", "nosuch"], ["'nosuch'", "quickstart", "smoke", "laptop/glyphs"]),
    (["study", "run", "quickstrat"], ["'quickstrat'", "'quickstart'"]),
    (["study", "run", "quickstart", "--workers", "2"], ["--workers", "--executor.workers"]),
    (["validate", "--batch_size", "2"], ["--batch_size", "--data.eval_batch_size"]),
    (["score", "--checkpoint", "x"], ["--checkpoint", "--ckpt_path"]),
]


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "few").mkdir()


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_line_with_the_key_and_the_nearest_name(words, expected, run, tmp_path):
    in_loss = bool({"argument.yaml", "beside.yaml"} & set(words))
    refused(run("fit", *(GLYPHS if in_loss else FIT), *words), *expected)
    assert not list(tmp_path.glob("outputs/fit/*/*"))


@pytest.mark.parametrize(("words", "expected"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_a_mistake_names_what_to_give(words, expected, run):
    refused(run(*words), *expected)


def test_a_configuration_is_printed_before_it_is_complete_and_is_a_file_for_config(run, tmp_path):
    code, printed, complaint = run("fit", "--data.dataset", "ImageTable", "--data.root", "all", "--print_config")
    assert code == 0, complaint
    found = yaml.safe_load(printed)
    assert (found["model"]["loss"], found["data"]["dataset"]["init_args"]["table"]) == (None, None)
    assert found["trainer"]["max_epochs"] == 10
    (tmp_path / "printed.yaml").write_text(printed)
    words = ["--model.loss", "ArcFaceLoss", "--data.dataset.table", "all.csv", "--print_config"]
    code, again, complaint = run("fit", "--config", "printed.yaml", *words)
    assert code == 0, complaint
    assert yaml.safe_load(again)["data"] == set_dotted(found["data"], "dataset.table", "all.csv")
    refused(run("fit", "--modle.loss", "x", "--print_config"), "--modle.loss", "'--model.loss'")


@pytest.mark.parametrize(("words", "missing"), [(GLYPHS, "--model.loss"), (FIT[4:], "--data.dataset")])
def test_what_a_fit_cannot_do_without_is_named(words, missing, run):
    result = run("fit", *words)
    refused(result, f"{missing} is required")
    assert re.findall(r"--\w+\.\w+ is required", result[2]) == [f"{missing} is required"]
