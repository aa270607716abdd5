"""Attacks by a checkpoint, through its doors: nothing is run or fetched, and one line says what is refused."""

import copy
import json
import os
import pickle
import socket
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from refused import refused as refuses
from refused import succeeded
from tiny_fit import TINY
from tiny_text import DISTILBERT, tiny_text_model
from torch import nn

import levelfield
from levelfield.cli.main import main
from levelfield.cli.options import configuration
from levelfield.core.configuration import Loader
from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk, TransformersTrunk
from levelfield.study.archive import unpack_study
from levelfield.training.build import Training
from levelfield.training.checkpoint import load_learner
from levelfield.training.initial_weights import check_weight_files, start_from_checkpoint
from levelfield.training.learner import MetricLearner
from levelfield.training.run_folder import AtomicCheckpoints
from levelfield.use.encoder import Encoder

PLANTED = """
import pathlib
import torch
from levelfield.data import Glyphs
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk

pathlib.Path({file!r}).write_text("imported")

class Loss(ContrastiveLoss): ...

class Trunk(TimmTrunk): ...

class Letters(Glyphs): ...

def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)
"""
MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"
LOSS, TRUNK, DATASET = f"{MODEL}.loss", f"{MODEL}.trunk", f"{DATA}.dataset"


def spec(class_path: Any, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


def write_to(file: str) -> None:
    """Of the running program, and nothing that a checkpoint may call."""
    Path(file).write_text("called")


def in_memory(loss: Any) -> dict[str, Any]:
    return spec("levelfield.losses.CrossBatchMemory", loss=loss, memory_size=8)


def in_module(trunk: Any) -> dict[str, Any]:
    return spec("levelfield.models.trunks.ModuleTrunk", module=trunk)


def contrastive(margin: Any) -> dict[str, Any]:
    return spec("levelfield.losses.ContrastiveLoss", neg_margin=margin)


def text(config: Any, **init_args: Any) -> dict[str, Any]:
    return spec("levelfield.models.TransformersTrunk", name="x", config=config, **init_args)


def bert(**config: Any) -> dict[str, Any]:
    return text({"model_type": "bert", **config})


def image(**arguments: Any) -> dict[str, Any]:
    return spec("levelfield.models.TimmTrunk", name="test_resnet", weights=None, arguments=arguments)


# Words that `stored` replaces: FILE is what an attack would write, PLACE the working directory, ADDRESS a server's.
POPEN = spec("subprocess.Popen", args="id > FILE", shell=True)
PLANTED_LOSS = spec("planted.Loss")
# The parser reads YAML in texts, and short names of classes.
AS_TEXT, ESCAPED = '{"class_path": "planted.Loss"}', '{"class\\x5fpath": "planted.Loss"}'
SHORT = "BNInceptionTrunk"
# Of an argument that another name reaches into.
OTHER_NAME = {"module.init_args.weights": "package:planted.weights"}
KERNEL = bert(attn_implementation="somebody/kernel")
# What timm up to 1.0.25 unpickles, and other versions fetch.
WRAPPED = {
    "model_type": "timm_wrapper",
    "architecture": "test_resnet",
    "model_args": {"pretrained": True, "pretrained_cfg": {"file": "command.pth", "url": "", "hf_hub_id": None}},
}
BACKBONE = {"backbone": "test_resnet", "use_timm_backbone": True, "use_pretrained_backbone": True}
OF_LOSS = [
    spec("torch.nn.MSELoss", size_average=POPEN),  # torch asks for its truth value
    contrastive([0, [POPEN]]),
    contrastive({"deep": {"er": POPEN}}),
    {"class_path": "torch.nn.MSELoss", "dict_kwargs": {"reduce": POPEN}},
    *(POPEN, PLANTED_LOSS, in_memory(PLANTED_LOSS), in_memory("planted.Loss"), in_memory("loss.yaml"), "loss.yaml"),
    {"class_path": ["planted.Loss"]},
    *(in_memory(text) for text in ("planted.Loss # of them", "|\n  planted.Loss\n", "&a planted.Loss")),
    *(AS_TEXT, ESCAPED, in_memory(AS_TEXT), in_memory(ESCAPED), contrastive(AS_TEXT), {"class_path": AS_TEXT}),
    spec("levelfield.models.TimmTrunk", name="test_resnet"),
    spec("timm.create_model", model_name="resnet10t", pretrained=True),
    spec(f"{__name__}.write_to", file="FILE"),
]
OF_TRUNK = [
    *(None, POPEN, spec("planted.Trunk", name="test_resnet", weights=None)),
    spec("levelfield.models.trunks.ModuleTrunk", module=image(), **OTHER_NAME),
    *(SHORT, in_module(SHORT), in_module(f"class_path: {SHORT}"), in_module("'levelfield.models.BNInceptionTrunk'")),
    spec("levelfield.losses.ContrastiveLoss"),
    spec("levelfield.data.Glyphs"),
    spec("torchvision.models.resnet18", weights="DEFAULT"),
    spec("timm.models.create_model", model_name="hf-hub:a/b"),
    spec("levelfield.models.TimmTrunk", name="hf-hub:somebody/something"),
    spec("levelfield.models.TimmTrunk", name="local-dir:images"),
    image(pretrained_cfg="command.pth"),
    image(pretrained_cfg_overlay={"file": "command.pth"}),
    image(patch_embed="command.pth"),
    spec("levelfield.models.TransformersTrunk", name="somebody/something"),
    in_module(spec("levelfield.models.TimmTrunk", name="test_resnet", weights="package:planted.weights")),
    *(KERNEL, in_module(KERNEL), text(WRAPPED), in_module(text(WRAPPED)), text("config.yaml")),
    bert(auto_map={"AutoModel": "planted.Loss"}),
    text({"model_type": "detr", **BACKBONE}),
    text({"model_type": "dpt", "backbone_config": WRAPPED}),
    *(bert(**BACKBONE), bert(quantization_config={"a": "b"}), bert(model_type=["bert"]), bert(num_hidden_layers=10**6)),
]
OF_MODEL = [
    *((LOSS, value) for value in OF_LOSS),
    *((TRUNK, value) for value in OF_TRUNK),
    *((f"{MODEL}.embedder", value) for value in ("planted.Loss", KERNEL, text(WRAPPED))),
    *((f"{MODEL}.optimizer", value) for value in ("os.system", "planted.adam", "torch.nn.Linear", "'os.system'")),
    (f"{MODEL}.optimizer", spec("os.system", command="id > FILE")),
    (f"{MODEL}.optimizer", "torch.nn.modules.module.functools.partial"),
    (f"{MODEL}.lr_scheduler", "builtins.exec"),
    (f"{MODEL}.miner", POPEN),
    (f"{MODEL}.embedding_size", POPEN),
    (f"{MODEL}.callbacks", [POPEN]),
    (MODEL, lambda content, _: {**content[MODEL], "trunk.init_args.weights": "package:planted.weights"}),
    (MODEL, lambda content, _: {**content[MODEL], "noise": {"planted.Loss"}}),
]
OF_DATA = [
    (DATASET, spec("torch.nn.Linear", in_features=3, out_features=3)),
    (DATASET, spec("planted.Letters", num_classes=40, image_size=32)),
    (DATASET, POPEN),
    (DATASET, spec("levelfield.data.Glyphs", num_classes=POPEN)),
    (DATASET, spec("torchvision.datasets.MNIST", root="mnist", download=True)),
    (DATASET, spec("levelfield.data.datasets.ImageShards", shards="tars")),
    *((f"{DATA}.transforms", value) for value in (PLANTED_LOSS, AS_TEXT, "class_path: planted.Letters")),
    *((key, "class_path: planted.Letters") for key in (DATASET, f"{DATA}.root", f"{DATA}.fold")),
    (f"{DATA}.transforms", spec("levelfield.data.Glyphs")),
    (f"{DATA}.datamodule", "planted.Letters"),
    (f"{DATA}.datamodule", "levelfield.data.Glyphs"),
    (f"{DATA}.num_workers", POPEN),
]
SERVER = "ADDRESS/command.pth"
PLACES = [
    *("PLACE/command.pth", "images/../../command.pth", "~/command.pth", "C:\\x\\command.pth", "local://PLACE/images"),
    *(SERVER, "reference::ADDRESS/references.json", "simplecache::ADDRESS/command.pth"),
]
OF_PLACES = [
    *((DATASET, spec("levelfield.data.datasets.image_folder.ImageFolder", folder=place)) for place in PLACES),
    *((key, SERVER) for key in (f"{TRUNK}.init_args.weights", f"{TRUNK}.init_args.name", f"{LOSS}.init_args.file")),
    *((key, SERVER) for key in (f"{DATA}.root", "levelfield.trunk_args.weights")),
    (f"{LOSS}.init_args", {SERVER: 1}),
    (TRUNK, text({"model_type": "bert"}, weights=SERVER)),
]
CLASSES = ("levelfield.num_classes", 10**15)
NUMBERS = [
    *((f"{DATA}.num_workers", 10**6), (f"{DATA}.eval_batch_size", 10**9), (f"{DATA}.batch_size", 10**12)),
    *((f"{DATA}.transforms.crop_size", 10**6), (f"{DATASET}.init_args.image_size", 10**6)),
    *((f"{MODEL}.embedding_size", 10**12), CLASSES, (f"{LOSS}.init_args.neg_margin", -(10**30))),
]


class Command:
    """A pickle that writes a file when somebody loads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"id > {self.file}",)


def circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["itself"] = [found]
    return found


def within(found: Any, depth: int, times: int = 1) -> list[Any]:
    for _ in range(depth):
        found = [found] * times
    return found


def unnamed(name: Any, **of_levelfield: str) -> Callable:
    def tensors(content: dict[str, Any], _: Path) -> dict[Any, Any]:
        content["levelfield"] |= of_levelfield
        return {**content["state_dict"], name: torch.zeros(3)}

    return tensors


# What only a function makes: from the checkpoint and the working directory.
SHAPES: list[tuple[str, Callable[[dict[str, Any], Path], Any]]] = [
    (f"{LOSS}.init_args", lambda *_: circle()),
    (DATA, lambda *_: circle()),
    (f"{MODEL}.regularizer", lambda *_: within("boom", 11, times=10)),
    (f"{DATA}.features", lambda *_: within([], 300)),
    (MODEL, lambda *_: []),
    (MODEL, lambda _, place: Command(place / "written")),
    ("levelfield", lambda *_: "nothing"),
    ("levelfield.data.train_classes", lambda *_: [{"class_path": "subprocess.Popen"}]),
    ("state_dict", lambda *_: []),
    *(("state_dict", unnamed(name)) for name in (5, None)),
    ("state_dict", unnamed(("trunk", 1), frozen_trunk="0" * 64)),
]
# Doors that build nothing that a checkpoint names, and those that take its data: the others take their own.
OF_TENSORS, OF_ITS_DATA = {"fit", "weights"}, {"validate", "test", "predict"}
ATTACKS = {"model": OF_MODEL, "data": OF_DATA, "place": OF_PLACES, "number": NUMBERS, "shape": SHAPES}
ROWS = [
    pytest.param(n, kind, *row, id=f"{kind} {n} {row[0]}")
    for kind, rows in ATTACKS.items()
    for n, row in enumerate(rows)
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts that were looked up or connected to."""
    found: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: found.append(host) or [])
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: found.append(address))
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a tiny fit of the command line stores."""
    output = tmp_path_factory.mktemp("fitted")
    words = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", "--output", str(output)]
    assert main(words) == 0
    return torch.load(output / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt", weights_only=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with pictures, and with what writes `written` when it is imported or unpickled."""
    folder = tmp_path / "here"
    for number in range(4):
        (folder / "images" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (60 * number, 0, 0)).save(folder / "images" / f"{number % 2}" / f"{number}.png")
    (folder / "planted.py").write_text(PLANTED.format(file=str(folder / "written")))
    (folder / "loss.yaml").write_text("class_path: planted.Loss")
    (folder / "command.pth").write_bytes(pickle.dumps(Command(folder / "written")))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("planted", None)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A fit before its first step, to which weights are given."""
    words = [*zip(TINY[::2], TINY[1::2], strict=True), ("--model.loss", "ContrastiveLoss")]
    files = [value for key, value in words if key == "--config"]
    config = configuration(files, [(key[2:], value) for key, value in words if key != "--config"])
    found = Training(config, tmp_path_factory.mktemp("new")).build()
    found.datamodule.setup("fit")
    return found


@pytest.fixture
def refused(place: Path, run: Callable, asked: list[Any], training: Training) -> Callable[[int], dict[str, str]]:
    """Gives `here/it.ckpt` to doors: the line by which each refused it, or none.

    Four doors meet every attack, the others, which read it by the same functions, three of eight in turn. Nothing was
    run, fetched, deleted or recorded by any.
    """
    path = place / "it.ckpt"

    def weights() -> None:
        TimmTrunk("test_resnet", weights=str(path))
        check_weight_files({"weights": str(path)}, training.datamodule)

    doors: dict[str, str | Callable[[], Any]] = {
        "validate": "validate",
        # What `fit --ckpt_path` and `--model.trunk.weights` call is here by itself: see `test_doors_of_fit`.
        "fit": lambda: start_from_checkpoint(path, training.model, training.datamodule, training.config_dump),
        "weights": weights,
        "load_from_checkpoint": lambda: MetricLearner.load_from_checkpoint(path),
        "test": "test",
        "predict --data": "predict --data images",
        "Encoder": lambda: Encoder(path),
        "predict": "predict",
        "score": "score --data images",
        "search": "search images --query images/0/0.png",
        "export": "export --output images",  # which is there: it ends in a refusal at least
        "levelfield.embed": lambda: levelfield.embed(path, "images"),
    }
    always, in_turn = [*doors][:4], [*doors][4:]

    def complaint_of(door: str | Callable[[], Any]) -> str:
        if isinstance(door, str):
            verb, *words = door.split()
            code, _, complaint = run(verb, "--ckpt_path", path, *words)
            assert (code, bool(complaint)) in ((0, False), (2, True)), complaint
            return complaint
        try:
            door()
        except UserError as error:
            return str(error)
        return ""

    def enter(turn: int) -> dict[str, str]:
        lines = {}
        for name in [*always, *(in_turn[(turn + step) % len(in_turn)] for step in (0, 3, 5))]:
            lines[name] = complaint_of(doors[name])
            assert "\n" not in lines[name].removesuffix("\n"), name
            assert not (place / "written").exists(), name
            assert asked == [], name
            assert len(list((place / "images").rglob("*.png"))) == 4, name
            assert name != "test" or not (place / "ledger.jsonl").exists()
        return lines

    return enter


def stored(checkpoint: dict[str, Any], place: Path, key: str, value: Any) -> None:
    """Writes `here/it.ckpt`: the checkpoint with another value at a key, the names of this place in it."""
    words = {"FILE": str(place / "written"), "PLACE": str(place), "ADDRESS": "http://127.0.0.1:9"}

    def named(part: Any) -> Any:
        if isinstance(part, dict):
            return {named(name): named(each) for name, each in part.items()}
        if isinstance(part, list):
            return [named(each) for each in part]
        for word, name in words.items():
            part = part.replace(word, name) if isinstance(part, str) else part
        return part

    changed = copy.deepcopy({name: part for name, part in checkpoint.items() if name != "state_dict"})
    changed["state_dict"] = checkpoint["state_dict"]
    *way, last = key.split(".")
    section = changed
    for name in way:
        section[name] = section.get(name) or {}
        section = section[name]
    section[last] = value(changed, place) if callable(value) else named(value)
    torch.save(changed, place / "it.ckpt")


@pytest.mark.parametrize(("number", "kind", "key", "value"), ROWS)
def test_an_attack(number, kind, key, value, checkpoint, place, refused) -> None:
    stored(checkpoint, place, key, value)
    for name, line in refused(number).items():
        if kind == "model":
            assert name in OF_TENSORS or "it.ckpt" in line, name
        elif kind == "data":
            assert name not in OF_ITS_DATA or "it.ckpt" in line, name
        else:
            assert "it.ckpt" in line, name
            assert kind == "shape" or key in line, name


def test_doors_of_fit(checkpoint, place, run, asked) -> None:
    """They take tensors only, and no class. Each calls what the other attacks are given to."""
    compared = (TRUNK, f"{MODEL}.embedder", f"{MODEL}.embedding_size", DATASET, MODEL)
    changed = copy.copy(checkpoint)
    for section, attacks in ((MODEL, OF_MODEL), (DATA, OF_DATA)):
        of_all = {key.rpartition(".")[2]: value for key, value in attacks if key not in compared}
        changed[section] = {**checkpoint[section], **of_all}
    stored(changed, place, LOSS, POPEN)
    path = place / "it.ckpt"
    words = [*TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]
    for door in ("--ckpt_path", "--model.trunk.weights"):
        code, _, complaint = run("fit", *words, door, path)
        assert (code, complaint) == (0, ""), door
    assert asked == []
    assert not (place / "written").exists()
    stored(checkpoint, place, *CLASSES)
    refuses(run("fit", *words, "--ckpt_path", path), "it.ckpt")
    stored(checkpoint, place, "levelfield", "nothing")
    refuses(run("fit", *words, "--model.trunk.weights", path), "it.ckpt")


def test_files_of_callbacks(checkpoint, place, run, asked) -> None:
    """`ModelCheckpoint` deletes the files that its state names: `fit --ckpt_path` takes weights only."""
    name, state = ModelCheckpoint().state_key, ModelCheckpoint().state_dict()
    del state["dirpath"]
    for told in (
        {"more": circle()},
        {"best_model_path": "{folder}/../../images"},
        {"best_k_models": {f"local://{place}/images": 0.0}},
    ):
        stored({**checkpoint, "callbacks": {name: {**state, **told}}}, place, "epoch", 0)
        with pytest.raises(UserError, match=r"it\.ckpt.*callbacks"):
            AtomicCheckpoints().load_checkpoint(place / "it.ckpt")
    words = ("--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "2")
    code, _, complaint = run("fit", *TINY, *words, "--ckpt_path", place / "it.ckpt")
    assert code == 0, complaint
    assert len(list((place / "images").rglob("*.png"))) == 4


def test_the_folder_of_a_text_model(place, run, asked) -> None:
    for named, config in {
        "timm_wrapper": WRAPPED,
        "detr": {"model_type": "detr", **BACKBONE},
        "dpt": {"model_type": "dpt", "backbone_config": WRAPPED},
        "backbone": {**DISTILBERT, **BACKBONE},
        "attn_implementation": {**DISTILBERT, "attn_implementation": "somebody/kernel"},
        "_attn_implementation_internal": {**DISTILBERT, "_attn_implementation_internal": "somebody/kernel"},
        "auto_map": {**DISTILBERT, "auto_map": {"AutoModel": "planted.Loss"}},
        "quantization_config": {**DISTILBERT, "quantization_config": {"quant_method": "bitsandbytes_4bit"}},
        "n_layers": {**DISTILBERT, "n_layers": 10**6},
    }.items():
        folder = tiny_text_model(place / named, config)
        with pytest.raises(UserError, match=named):
            TransformersTrunk(str(folder), weights=None)
    words = [*TINY, "--model.trunk", "TransformersTrunk", "--model.trunk.name", folder, "--model.trunk.weights", "null"]
    refuses(run("fit", *words, "--model.loss", "ContrastiveLoss"), "n_layers")
    assert not (place / "written").exists()
    assert asked == []


TOKENIZERS = [
    *((True, "package:planted.model", None), (False, "somebody/something", "absent"), (True, "somebody/something", "")),
    *((True, "images", "absent"), (False, "images", 0)),
]


@pytest.mark.filterwarnings("ignore:.*without its loss")
@pytest.mark.parametrize("loss", ["levelfield.losses.ContrastiveLoss", "pytorch_metric_learning.losses.NoSuchLoss"])
@pytest.mark.parametrize(("strict", "name", "tokenizer"), TOKENIZERS)
def test_a_text_trunk_without_its_tokenizer(strict, name, tokenizer, loss, place, asked) -> None:
    trunk = TransformersTrunk(str(tiny_text_model(place / "model")), weights=None, max_length=64)
    learner = MetricLearner(trunk, ContrastiveLoss)
    content = {"state_dict": learner.state_dict(), MODEL: dict(learner.hparams)}
    learner.on_save_checkpoint(content)
    content["state_dict"]["trunk._extra_state"] = tokenizer
    if tokenizer == "absent":
        del content["state_dict"]["trunk._extra_state"]
    content[MODEL]["trunk"]["init_args"]["name"] = name
    content[MODEL]["loss"] = spec(loss)
    torch.save(content, place / "it.ckpt")
    with pytest.raises(UserError, match=r"it\.ckpt"):
        MetricLearner.load_from_checkpoint(place / "it.ckpt", strict=strict)
    assert not (place / "written").exists()
    assert asked == []


def test_a_tokenizer_that_panics_on_a_text(place) -> None:
    """An error in its Rust code is no Exception of Python."""
    trunk = TransformersTrunk(str(tiny_text_model(place / "model", DISTILBERT)), weights=None, max_length=64)
    content = json.loads(trunk.get_extra_state())
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    trunk.set_extra_state(json.dumps({**content, "pre_tokenizer": slow}))
    with pytest.raises(UserError, match="fails on a text"):
        trunk(["a" * 60 + "b"])
    trunk.set_extra_state("{}")
    with pytest.raises(UserError, match="is not a tokenizer"):
        trunk(["a"])


TENS = "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh"))
BOMBS = {
    "lists": f"a: &a [boom, boom]\n{TENS}",
    "merged keys": "a: &a {x: 1}\n" + TENS.replace("[", "{<<: [").replace("]", "]}"),
    "a circle": "a: &a [*a]\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_yaml_that_grows(bomb, checkpoint, place, run) -> None:
    with pytest.raises(yaml.YAMLError):
        yaml.load(BOMBS[bomb], Loader)
    torch.save(checkpoint, place / "it.ckpt")
    (place / "config.yaml").write_text(BOMBS[bomb])
    code, _, complaint = run("validate", "--ckpt_path", place / "it.ckpt")
    assert code == 0, complaint
    content = {"study.yaml": BOMBS[bomb], "ledger.jsonl": "", "archived.json": json.dumps({"methods": []})}
    with tarfile.open(place / "it.tar.xz", "w:xz") as archive:
        for name, text in content.items():
            (place / name).write_text(text)
            archive.add(place / name, name)
    with pytest.raises(UserError, match=r"study\.yaml"):
        unpack_study(place / "it.tar.xz", place / "unpacked")


def test_what_the_command_line_trusts_is_used(checkpoint, place, run) -> None:
    stored(checkpoint, place, DATASET, spec("planted.Letters", num_classes=40))
    found = torch.load(place / "it.ckpt", weights_only=True)
    stored(found, place, f"{TRUNK}.class_path", "planted.Trunk")
    path = place / "it.ckpt"
    refuses(run("validate", "--ckpt_path", path, "--trust=planted.Trunk"), "planted.Letters", "--trust planted\n")
    succeeded(run("validate", "--ckpt_path", path, "--trust", "planted"))
    assert (place / "written").exists()


def test_trust_in_python(checkpoint, place) -> None:
    stored(checkpoint, place, LOSS, PLANTED_LOSS)
    with pytest.raises(UserError, match=r"--trust planted"):
        MetricLearner.load_from_checkpoint(place / "it.ckpt")
    for trust in (["planted"], []):  # it is imported then: to import it again runs nothing
        learner = MetricLearner.load_from_checkpoint(place / "it.ckpt", trust=trust)
        assert type(learner.loss).__module__ == "planted"


def test_a_trusted_module_opens_no_way_to_what_it_imported(checkpoint, place) -> None:
    (place / "planted.py").write_text("import subprocess\nfrom torch.fx import GraphModule\n")
    popen = spec("planted.subprocess.Popen", args="id > FILE", shell=True)
    for loss, key in ((popen, "Popen"), (spec("planted.GraphModule", root={}, graph={}), r"torch\.fx")):
        stored(checkpoint, place, LOSS, loss)
        with pytest.raises(UserError, match=key):
            MetricLearner.load_from_checkpoint(place / "it.ckpt", trust=["planted"])
    assert not (place / "written").exists()


@dataclass
class Rates:
    head: float
    betas: tuple[float, float] = (0.9, 0.999)


class Plain(LightningModule):
    def __init__(
        self,
        backbone: nn.Module,
        loss: nn.Module,
        head: Callable[[int], nn.Module],
        activation: Callable = torch.nn.functional.gelu,
        norm: type[nn.Module] | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.SGD,
        rates: Rates | None = None,
        mode: str = "nothing",
    ):
        super().__init__()
        self.backbone, self.loss, self.head = backbone, loss, head(8)
        self.activation, self.norm, self.optimizer, self.rates, self.mode = activation, norm, optimizer, rates, mode


def test_any_module_is_rebuilt_by_the_types_of_its_arguments(place) -> None:
    arguments = {
        "learner": f"{__name__}.Plain",
        "backbone": spec("levelfield.models.TimmTrunk", name="test_resnet"),  # of no weights, which it does not say
        "loss": contrastive(0.25),
        "head": spec("torch.nn.Linear", out_features=3),
        "activation": "torch.nn.functional.relu",
        "norm": "torch.nn.LayerNorm",
        "optimizer": spec("torch.optim.Adam", lr=0.5),
        "rates": {"head": 0.1, "betas": [0.5, 0.6]},
        "mode": "a.b",
    }
    found = Plain(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), lambda size: nn.Linear(size, 3))
    content = {"levelfield": {}, MODEL: arguments, "state_dict": found.state_dict()}
    torch.save(content, place / "it.ckpt")
    for kind in (None, Plain):
        learner = load_learner(kind, place / "it.ckpt")
        assert (type(learner), learner.backbone.weights_origin) == (Plain, "random")
        torch.testing.assert_close(learner.head.weight, found.head.weight)
        assert (learner.activation, learner.norm) == (torch.nn.functional.relu, torch.nn.LayerNorm)
        assert (learner.loss.neg_margin, learner.optimizer(learner.parameters()).defaults["lr"]) == (0.25, 0.5)
        assert (learner.rates.head, learner.rates.betas, learner.mode) == (0.1, (0.5, 0.6), "a.b")
    for key in ("learner", "backbone", "head", "activation", "norm", "optimizer"):
        value = {"head": POPEN, "learner": "planted.Loss"}.get(key, "subprocess.Popen")
        stored(content, place, f"{MODEL}.{key}", value)
        with pytest.raises(UserError, match=r"it\.ckpt"):
            load_learner(None, place / "it.ckpt")
    assert not (place / "written").exists()


VALUES = [*((key, "many") for key in ("embedding_size", "normalize", "trunk_lr", "distance")), ("distance", ["cosine"])]
VALUES += [*((key, "many") for key in ("batch_size", "split", "transforms")), ("root", 3)]


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_value_of_another_type_is_one_line(key, value, checkpoint, place, run):
    stored(checkpoint, place, f"{MODEL if key in checkpoint[MODEL] else DATA}.{key}", value)
    refuses(run("validate", "--ckpt_path", place / "it.ckpt"), "it.ckpt")
