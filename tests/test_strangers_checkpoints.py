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
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from refused import refused, succeeded
from tiny_fit import TINY
from tiny_text import DISTILBERT, tiny_text_model
from torch import nn

from levelfield import MetricLearner, embed
from levelfield.cli.main import main
from levelfield.core.configuration import Loader
from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk, TransformersTrunk
from levelfield.study.archive import unpack_study
from levelfield.training.build import Training
from levelfield.training.checkpoint import load_learner
from levelfield.training.initial_weights import check_weight_files, start_from_checkpoint
from levelfield.training.run_folder import AtomicCheckpoints
from levelfield.use.encoder import Encoder

PLANTED = """
import pathlib
import torch
from levelfield import data, losses, models

pathlib.Path({file!r}).write_text("imported")
class Loss(losses.ContrastiveLoss): ...
class Trunk(models.TimmTrunk): ...
class Letters(data.Glyphs): ...
def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)
"""
MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"
LOSS, TRUNK, DATASET = f"{MODEL}.loss", f"{MODEL}.trunk", f"{DATA}.dataset"
FIT = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]


def spec(class_path: Any, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


def write_to(file: str) -> None:
    """Of the running program, and nothing that a checkpoint may call."""
    Path(file).write_text("called")


in_memory = partial(spec, "levelfield.losses.CrossBatchMemory", memory_size=8)
in_module = partial(spec, "levelfield.models.trunks.ModuleTrunk")
contrastive = partial(spec, "levelfield.losses.ContrastiveLoss")
image = partial(spec, "levelfield.models.TimmTrunk", name="test_resnet", weights=None)
text = partial(spec, "levelfield.models.TransformersTrunk", name="x")
# Words that `stored` replaces: FILE is what an attack would write, PLACE the working directory, ADDRESS a server's.
POPEN = spec("subprocess.Popen", args="id > FILE", shell=True)
PLANTED_LOSS = spec("planted.Loss")
# The parser reads YAML in texts, and short names of classes.
AS_TEXT, ESCAPED = '{"class_path": "planted.Loss"}', '{"class\\x5fpath": "planted.Loss"}'
SHORT = "BNInceptionTrunk"
# Of an argument that another name reaches into.
OTHER_NAME = {"module.init_args.weights": "package:planted.weights"}
BERT = {"model_type": "bert"}
KERNEL = text(config={**BERT, "attn_implementation": "somebody/kernel"})
# What timm up to 1.0.25 unpickles, and other versions fetch.
FILE_OF_TIMM = {"file": "command.pth", "url": "", "hf_hub_id": None}
WRAPPED = {"model_type": "timm_wrapper", "architecture": "test_resnet"}
WRAPPED |= {"model_args": {"pretrained": True, "pretrained_cfg": FILE_OF_TIMM}}
BACKBONE = {"backbone": "test_resnet", "use_timm_backbone": True, "use_pretrained_backbone": True}
DETR = {"model_type": "detr", **BACKBONE}
DPT = {"model_type": "dpt", "backbone_config": WRAPPED}
HELD = ("planted.Loss # of them", "|\n  planted.Loss\n", "&a planted.Loss", PLANTED_LOSS, AS_TEXT, ESCAPED, "loss.yaml")
OF_LOSS = [
    spec("torch.nn.MSELoss", size_average=POPEN),  # torch asks for its truth value
    *(contrastive(neg_margin=margin) for margin in ([0, [POPEN]], {"deep": {"er": POPEN}}, AS_TEXT)),
    {"class_path": "torch.nn.MSELoss", "dict_kwargs": {"reduce": POPEN}},
    *(POPEN, PLANTED_LOSS, "loss.yaml", AS_TEXT, ESCAPED, {"class_path": ["planted.Loss"]}, {"class_path": AS_TEXT}),
    *(in_memory(loss=loss) for loss in ("planted.Loss", *HELD)),
    *(image(), spec(f"{__name__}.write_to", file="FILE")),
    spec("timm.create_model", model_name="resnet10t", pretrained=True),
]
WITH_WEIGHTS = image(weights="package:planted.weights")
INSIDE = (SHORT, f"class_path: {SHORT}", "'levelfield.models.BNInceptionTrunk'", KERNEL, text(config=WRAPPED))
OF_TRUNK = [
    *(None, POPEN, SHORT, KERNEL, spec("planted.Trunk", name="test_resnet", weights=None)),
    in_module(module=image(arguments={}), **OTHER_NAME),
    *(in_module(module=trunk) for trunk in (*INSIDE, WITH_WEIGHTS)),
    *(spec(f"levelfield.{name}") for name in ("losses.ContrastiveLoss", "data.Glyphs")),
    spec("torchvision.models.resnet18", weights="DEFAULT"),
    spec("timm.models.create_model", model_name="hf-hub:a/b"),
    *(spec("levelfield.models.TimmTrunk", name=name) for name in ("hf-hub:somebody/something", "local-dir:images")),
    *(image(arguments={name: "command.pth"}) for name in ("pretrained_cfg", "patch_embed")),
    image(arguments={"pretrained_cfg_overlay": {"file": "command.pth"}}),
    spec("levelfield.models.TransformersTrunk", name="somebody/something"),
    *(text(config=config) for config in (WRAPPED, "config.yaml", DETR, DPT, {"model_type": ["bert"]})),
    *(text(config={**BERT, "auto_map": {"AutoModel": "planted.Loss"}}), text(config={**BERT, **BACKBONE})),
    *(text(config={**BERT, "quantization_config": {"a": "b"}}), text(config={**BERT, "num_hidden_layers": 10**6})),
]
OF_OPTIMIZER = ["os.system", "planted.adam", "torch.nn.Linear", "'os.system'", spec("os.system", command="id > FILE")]
OF_MODEL = {
    **{"loss": OF_LOSS, "trunk": OF_TRUNK, "embedder": ["planted.Loss", KERNEL, text(config=WRAPPED)]},
    **{"optimizer": [*OF_OPTIMIZER, "torch.nn.modules.module.functools.partial"], "lr_scheduler": ["builtins.exec"]},
    **{"miner": [POPEN], "embedding_size": [POPEN, "many"], "callbacks": [[POPEN]], "normalize": ["many"]},
    **{"trunk_lr": ["many"], "distance": ["many", ["cosine"]]},
}
LETTERS, IMAGES = "class_path: planted.Letters", spec("levelfield.data.datasets.ImageShards", shards="tars")
OF_DATASET = [
    *(POPEN, LETTERS, IMAGES, spec("torch.nn.Linear", in_features=3, out_features=3)),
    *(spec("planted.Letters", num_classes=40, image_size=32), spec("levelfield.data.Glyphs", num_classes=POPEN)),
    spec("torchvision.datasets.MNIST", root="mnist", download=True),
]
OF_DATA = {
    **{"dataset": OF_DATASET, "transforms": [PLANTED_LOSS, AS_TEXT, LETTERS, spec("levelfield.data.Glyphs"), "many"]},
    **{"root": [LETTERS, 3], "fold": [LETTERS], "datamodule": ["planted.Letters", "levelfield.data.Glyphs"]},
    **{"num_workers": [POPEN], "batch_size": ["many"], "split": ["many"]},
}
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
    (TRUNK, text(config=BERT, weights=SERVER)),
]
CLASSES = ("levelfield.num_classes", 10**15)
NUMBERS = [
    *((f"{DATA}.num_workers", 10**6), (f"{DATA}.eval_batch_size", 10**9), (f"{DATA}.batch_size", 10**12)),
    *((f"{DATA}.transforms.crop_size", 10**6), (f"{DATASET}.init_args.image_size", 10**6)),
    *((f"{MODEL}.embedding_size", 10**12), CLASSES, (f"{LOSS}.init_args.neg_margin", -(10**30))),
]


class Command(str):
    """A file that its pickle writes when somebody loads it."""

    def __reduce__(self) -> Any:
        return os.system, (f"id > {self}",)


def named(content: dict[str, Any], name: Any, **of_levelfield: str) -> dict[Any, Any]:
    content["levelfield"] |= of_levelfield
    return {**content["state_dict"], name: torch.zeros(3)}


CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = [CIRCLE]
# What only a function makes: from the checkpoint and the working directory.
SHAPES: list[tuple[str, Callable[[dict[str, Any], Path], Any]]] = [
    *((key, lambda *_: CIRCLE) for key in (f"{LOSS}.init_args", DATA)),
    (f"{MODEL}.regularizer", lambda *_: reduce(lambda found, _: [found] * 10, range(11), "boom")),
    (f"{DATA}.features", lambda *_: reduce(lambda found, _: [found], range(300), [])),
    *((key, lambda *_: []) for key in (MODEL, "state_dict")),
    (MODEL, lambda _, place: Command(place / "written")),
    ("levelfield", lambda *_: "nothing"),
    ("levelfield.data.train_classes", lambda *_: [{"class_path": "subprocess.Popen"}]),
    *(("state_dict", lambda content, _, name=name: named(content, name)) for name in (5, None)),
    ("state_dict", lambda content, _: named(content, ("trunk", 1), frozen_trunk="0" * 64)),
]
# Doors that build nothing that a checkpoint names, and those that take its data: the others take their own.
OF_TENSORS, OF_ITS_DATA = {"fit", "weights"}, {"validate", "test", "predict"}
ATTACKS = {
    "model": [
        *((f"{MODEL}.{key}", value) for key, values in OF_MODEL.items() for value in values),
        (MODEL, lambda content, _: {**content[MODEL], "trunk.init_args.weights": "package:planted.weights"}),
        (MODEL, lambda content, _: {**content[MODEL], "noise": {"planted.Loss"}}),
    ],
    "data": [(f"{DATA}.{key}", value) for key, values in OF_DATA.items() for value in values],
    **{"place": OF_PLACES, "number": NUMBERS, "shape": SHAPES},
}
ROWS = [pytest.param(n, kind, *row, id=f"{kind} {row[0]}") for kind in ATTACKS for n, row in enumerate(ATTACKS[kind])]
# The words of a command, or what takes the path and a fit before its first step.
DOORS: dict[str, str | Callable[[Path, Training], Any]] = {
    "validate": "validate",
    # What `fit --ckpt_path` and `--model.trunk.weights` call is here by itself: see `test_doors_of_fit`.
    "fit": lambda path, fit: start_from_checkpoint(path, fit.model, fit.datamodule, fit.config_dump),
    "weights": lambda path, fit: (
        TimmTrunk("test_resnet", weights=str(path)),
        check_weight_files({"weights": str(path)}, fit.datamodule),
    ),
    "load_from_checkpoint": lambda path, _: MetricLearner.load_from_checkpoint(path),
    "test": "test",
    "predict --data": "predict --data images",
    "Encoder": lambda path, _: Encoder(path),
    "predict": "predict",
    "score": "score --data images",
    "search": "search images --query images/0/0.png",
    "export": "export --output images",  # which is there: it ends in a refusal at least
    "levelfield.embed": lambda path, _: embed(path, "images"),
}
ALWAYS, IN_TURN = [*DOORS][:4], [*DOORS][4:]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts that were looked up or connected to."""
    found: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: found.append(host) or [])
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: found.append(address))
    return found


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny fit."""
    output = tmp_path_factory.mktemp("fitted")
    assert main([*FIT, "--output", str(output)]) == 0
    return output / "fit" / "Glyphs-ContrastiveLoss" / "0"


@pytest.fixture(scope="module")
def checkpoint(fit: Path) -> dict[str, Any]:
    return torch.load(fit / "best.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def training(fit: Path) -> Training:
    """The same fit before its first step, to which weights are given."""
    config = yaml.safe_load((fit / "config.yaml").read_text())
    found = Training({name: config[name] for name in ("trainer", "model", "data")}, fit / "new").build()
    found.datamodule.setup("fit")
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> Iterator[Path]:
    """A working directory with pictures, and with what writes `written` when it is imported or unpickled.

    At the end nothing is written unless the test has deleted it, and no server was asked.
    """
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
    assert_untouched(folder, asked)


def assert_untouched(folder: Path, asked: list[Any], door: str = "") -> None:
    assert not (folder / "written").exists(), door
    assert asked == [], door
    assert len(list((folder / "images").rglob("*.png"))) == 4, door


def stored(checkpoint: dict[str, Any], place: Path, key: str, value: Any) -> Path:
    """Writes `here/it.ckpt`: the checkpoint with another value at a key, the names of this place in it."""
    changed, text = copy.deepcopy(checkpoint), json.dumps(None if callable(value) else value)
    for word, name in {"FILE": place / "written", "PLACE": place, "ADDRESS": "http://127.0.0.1:9"}.items():
        text = text.replace(word, str(name))
    *way, last = key.split(".")
    section = reduce(lambda part, name: part.setdefault(name, {}), way, changed)
    section[last] = value(changed, place) if callable(value) else json.loads(text)
    torch.save(changed, place / "it.ckpt")
    return place / "it.ckpt"


@pytest.mark.parametrize(("turn", "kind", "key", "value"), ROWS)
def test_an_attack(turn, kind, key, value, checkpoint, training, place, run, asked) -> None:
    """Each door that has to refuse it does so in one line, and by none anything is run, fetched, deleted or recorded.

    Four doors meet every attack, the others, which read it by the same functions, three of eight in turn.
    """
    path = stored(checkpoint, place, key, value)
    for name in [*ALWAYS, *(IN_TURN[(turn + step) % len(IN_TURN)] for step in (0, 3, 5))]:
        door, line = DOORS[name], ""
        if isinstance(door, str):
            verb, *words = door.split()
            code, _, line = run(verb, "--ckpt_path", path, *words)
            assert (code, bool(line)) in ((0, False), (2, True)), line
        else:
            try:
                door(path, training)
            except UserError as error:
                line = str(error)
        assert "\n" not in line.removesuffix("\n"), name
        assert_untouched(place, asked, name)
        assert name != "test" or not (place / "ledger.jsonl").exists()
        may_ignore_it = {"model": name in OF_TENSORS, "data": name not in OF_ITS_DATA}.get(kind, False)
        assert may_ignore_it or "it.ckpt" in line, name
        assert kind not in ("place", "number") or key in line, name


def test_doors_of_fit(checkpoint, place, run) -> None:
    """They take tensors only, and no class. Each calls what the other attacks are given to."""
    compared = ("trunk", "embedder", "embedding_size", "dataset")
    changed = copy.copy(checkpoint)
    for section, attacks in ((MODEL, OF_MODEL), (DATA, OF_DATA)):
        of_all = {key: values[0] for key, values in attacks.items() if key not in compared}
        changed[section] = {**checkpoint[section], **of_all}
    path = stored(changed, place, LOSS, POPEN)
    for door in ("--ckpt_path", "--model.trunk.weights"):
        code, _, complaint = run(*FIT, door, path)
        assert (code, complaint) == (0, ""), door
    stored(checkpoint, place, *CLASSES)
    refused(run(*FIT, "--ckpt_path", path), "it.ckpt")
    stored(checkpoint, place, "levelfield", "nothing")
    refused(run(*FIT, "--model.trunk.weights", path), "it.ckpt")


def test_files_of_callbacks(checkpoint, place, run) -> None:
    """`ModelCheckpoint` deletes the files that its state names: `fit --ckpt_path` takes weights only."""
    name, state = ModelCheckpoint().state_key, ModelCheckpoint().state_dict()
    del state["dirpath"]
    paths = {"best_model_path": "{folder}/../../images"}, {"best_k_models": {f"local://{place}/images": 0.0}}
    for told in ({"more": CIRCLE}, *paths):
        path = stored({**checkpoint, "callbacks": {name: {**state, **told}}}, place, "epoch", 0)
        with pytest.raises(UserError, match=r"it\.ckpt.*callbacks"):
            AtomicCheckpoints().load_checkpoint(path)
    succeeded(run(*FIT, "--trainer.max_epochs", "2", "--ckpt_path", path))


def test_the_folder_of_a_text_model(place, run) -> None:
    kernel = dict.fromkeys(("attn_implementation", "_attn_implementation_internal"), "somebody/kernel")
    more = {"auto_map": {"AutoModel": "planted.Loss"}, "quantization_config": {"quant_method": "bitsandbytes_4bit"}}
    arguments = {**kernel, **more, "n_layers": 10**6}
    configs = {"timm_wrapper": WRAPPED, "detr": DETR, "dpt": DPT, "backbone": {**DISTILBERT, **BACKBONE}}
    configs |= {name: {**DISTILBERT, name: value} for name, value in arguments.items()}
    for named, config in configs.items():
        folder = tiny_text_model(place / named, config)
        with pytest.raises(UserError, match=named):
            TransformersTrunk(str(folder), weights=None)
    words = ["--model.trunk", "TransformersTrunk", "--model.trunk.name", folder, "--model.trunk.weights", "null"]
    refused(run(*FIT, *words), "n_layers")


TOKENIZERS = [(True, "package:planted.model", None), (True, "images", "absent"), (False, "images", 0)]
TOKENIZERS += [(False, "somebody/something", "absent"), (True, "somebody/something", "")]


@pytest.mark.filterwarnings("ignore:.*without its loss")
@pytest.mark.parametrize("loss", ["levelfield.losses.ContrastiveLoss", "pytorch_metric_learning.losses.NoSuchLoss"])
@pytest.mark.parametrize(("strict", "name", "tokenizer"), TOKENIZERS)
def test_a_text_trunk_without_its_tokenizer(strict, name, tokenizer, loss, place) -> None:
    trunk = TransformersTrunk(str(tiny_text_model(place / "model")), weights=None, max_length=64)
    learner = MetricLearner(trunk, ContrastiveLoss)
    content = {"state_dict": learner.state_dict(), MODEL: {**learner.hparams, "loss": spec(loss)}}
    learner.on_save_checkpoint(content)
    content["state_dict"]["trunk._extra_state"] = tokenizer
    if tokenizer == "absent":
        del content["state_dict"]["trunk._extra_state"]
    path = stored(content, place, f"{TRUNK}.init_args.name", name)
    with pytest.raises(UserError, match=r"it\.ckpt"):
        MetricLearner.load_from_checkpoint(path, strict=strict)


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
    succeeded(run("validate", "--ckpt_path", place / "it.ckpt"))
    content = {"study.yaml": BOMBS[bomb], "ledger.jsonl": "", "archived.json": json.dumps({"methods": []})}
    with tarfile.open(place / "it.tar.xz", "w:xz") as archive:
        for name, text in content.items():
            (place / name).write_text(text)
            archive.add(place / name, name)
    with pytest.raises(UserError, match=r"study\.yaml"):
        unpack_study(place / "it.tar.xz", place / "unpacked")


def test_what_is_trusted_is_used(checkpoint, place, run) -> None:
    stored(checkpoint, place, DATASET, spec("planted.Letters", num_classes=40))
    found = torch.load(place / "it.ckpt", weights_only=True)
    path = stored(found, place, f"{TRUNK}.class_path", "planted.Trunk")
    refused(run("validate", "--ckpt_path", path, "--trust=planted.Trunk"), "planted.Letters", "--trust planted\n")
    succeeded(run("validate", "--ckpt_path", path, "--trust", "planted"))
    (place / "written").unlink()
    del sys.modules["planted"]
    stored(checkpoint, place, LOSS, PLANTED_LOSS)
    with pytest.raises(UserError, match=r"--trust planted"):
        MetricLearner.load_from_checkpoint(path)
    for trust in (["planted"], []):  # it is imported then: to import it again runs nothing
        learner = MetricLearner.load_from_checkpoint(path, trust=trust)
        assert type(learner.loss).__module__ == "planted"
    (place / "written").unlink()
    # A trusted module opens no way to what it imported.
    (place / "planted.py").write_text("import subprocess\nfrom torch.fx import GraphModule\n")
    del sys.modules["planted"]
    popen = spec("planted.subprocess.Popen", args="id > FILE", shell=True)
    for loss, key in ((popen, "Popen"), (spec("planted.GraphModule", root={}, graph={}), r"torch\.fx")):
        with pytest.raises(UserError, match=key):
            MetricLearner.load_from_checkpoint(stored(checkpoint, place, LOSS, loss), trust=["planted"])


@dataclass
class Rates:
    head: float
    betas: tuple[float, float]


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
        "loss": contrastive(neg_margin=0.25),
        "head": spec("torch.nn.Linear", out_features=3),
        "activation": "torch.nn.functional.relu",
        "norm": "torch.nn.LayerNorm",
        "optimizer": spec("torch.optim.Adam", lr=0.5),
        "rates": {"head": 0.1, "betas": [0.5, 0.6]},
    }
    found = Plain(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), lambda size: nn.Linear(size, 3))
    content = {"levelfield": {}, MODEL: arguments, "state_dict": found.state_dict()}
    path = stored(content, place, f"{MODEL}.mode", "a.b")
    for kind in (None, Plain):
        learner = load_learner(kind, path)
        assert (type(learner), learner.backbone.weights_origin) == (Plain, "random")
        torch.testing.assert_close(learner.head.weight, found.head.weight)
        assert (learner.activation, learner.norm) == (torch.nn.functional.relu, torch.nn.LayerNorm)
        assert (learner.loss.neg_margin, learner.optimizer(learner.parameters()).defaults["lr"]) == (0.25, 0.5)
        assert (learner.rates.head, learner.rates.betas, learner.mode) == (0.1, (0.5, 0.6), "a.b")
    for key in ("learner", "backbone", "head", "activation", "norm", "optimizer"):
        value = {"head": POPEN, "learner": "planted.Loss"}.get(key, "subprocess.Popen")
        with pytest.raises(UserError, match=r"it\.ckpt"):
            load_learner(None, stored(content, place, f"{MODEL}.{key}", value))
