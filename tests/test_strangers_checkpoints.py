"""Each attack by a checkpoint, through each door: nothing is run or fetched, and one line says what is refused."""

import copy
import io
import json
import lzma
import os
import pickle
import socket
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from own_images import image_options
from PIL import Image
from refused import refused as refuses
from tiny_fit import TINY
from tiny_text import DISTILBERT, tiny_text_model

import levelfield
from levelfield.cli.main import main
from levelfield.cli.options import configuration
from levelfield.core.configuration import Loader
from levelfield.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk, TransformersTrunk
from levelfield.study.archive import unpack_study
from levelfield.training.build import Training, build
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


class Loss(ContrastiveLoss):
    pass


class Trunk(TimmTrunk):
    pass


class Letters(Glyphs):
    pass


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)
"""
MODEL, DATA = "hyper_parameters", "datamodule_hyper_parameters"


def spec(class_path: Any, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


def write_to(file: str) -> None:
    """Of the running program, and nothing that a checkpoint may call."""
    Path(file).write_text("called")


def in_memory(loss: Any) -> dict[str, Any]:
    return spec("levelfield.losses.CrossBatchMemory", loss=loss, memory_size=8)


def text(config: Any, **init_args: Any) -> dict[str, Any]:
    return spec("levelfield.models.TransformersTrunk", name="x", config=config, **init_args)


def image(**arguments: Any) -> dict[str, Any]:
    return spec("levelfield.models.TimmTrunk", name="test_resnet", weights=None, arguments=arguments)


def own_set(**init_args: Any) -> dict[str, Any]:
    return spec("levelfield.data.datasets.image_folder.ImageFolder", **init_args)


# Words that `stored` replaces: FILE is what an attack would write, PLACE the working directory, ADDRESS a server's.
POPEN = spec("subprocess.Popen", args="id > FILE", shell=True)
PLANTED_LOSS = spec("planted.Loss")
KERNEL = text({"model_type": "bert", "attn_implementation": "somebody/kernel"})
# What timm up to 1.0.25 unpickles, and other versions fetch.
WRAPPED = {
    "model_type": "timm_wrapper",
    "architecture": "test_resnet",
    "model_args": {"pretrained": True, "pretrained_cfg": {"file": "command.pth", "url": "", "hf_hub_id": None}},
}
BACKBONE = {"backbone": "test_resnet", "use_timm_backbone": True, "use_pretrained_backbone": True}

CLASSES_OF_THE_MODEL = {
    "a command where torch asks for a truth value": ("loss", spec("torch.nn.MSELoss", size_average=POPEN)),
    "a command in a list": ("loss", spec("levelfield.losses.ContrastiveLoss", neg_margin=[0, [POPEN]])),
    "a command in a mapping": ("loss", spec("levelfield.losses.ContrastiveLoss", neg_margin={"deep": {"er": POPEN}})),
    "a command among further arguments": ("loss", {"class_path": "torch.nn.MSELoss", "dict_kwargs": {"reduce": POPEN}}),
    "a command as the loss": ("loss", POPEN),
    "a command as a plain number": ("embedding_size", POPEN),
    "a command at a key of its own": ("callbacks", [POPEN]),
    "a command as the trunk": ("trunk", POPEN),
    "a command as the miner": ("miner", POPEN),
    "a function that runs commands": ("optimizer", "os.system"),
    "a function that runs commands, as a class": ("optimizer", spec("os.system", command="id > FILE")),
    "a function behind a library's back": ("optimizer", "torch.nn.modules.module.functools.partial"),
    "a scheduler that runs code": ("lr_scheduler", "builtins.exec"),
    "a planted loss": ("loss", PLANTED_LOSS),
    "a planted loss in another": ("loss", in_memory(PLANTED_LOSS)),
    "a planted loss in another, by name alone": ("loss", in_memory("planted.Loss")),
    "a planted loss in a file": ("loss", in_memory("loss.yaml")),
    "a file as the loss": ("loss", "loss.yaml"),
    "a planted embedder": ("embedder", "planted.Loss"),
    "a planted trunk": ("trunk", spec("planted.Trunk", name="test_resnet", weights=None)),
    "a planted optimizer": ("optimizer", "planted.adam"),
    "a trunk that is none": ("trunk", spec("levelfield.losses.ContrastiveLoss")),
    "a trunk that is a data set": ("trunk", spec("levelfield.data.Glyphs")),
    "a trunk that a function fetches": ("trunk", spec("torchvision.models.resnet18", weights="DEFAULT")),
    "a trunk that an entry of the hub names": ("trunk", spec("timm.models.create_model", model_name="hf-hub:a/b")),
    "a trunk as the loss": ("loss", spec("levelfield.models.TimmTrunk", name="test_resnet")),
    "a loss that is a function": ("loss", spec("timm.create_model", model_name="resnet10t", pretrained=True)),
    "an optimizer that is none": ("optimizer", "torch.nn.Linear"),
    "a class path that is a list": ("loss", {"class_path": ["planted.Loss"]}),
    "an image trunk's weights among its arguments": ("trunk", image(pretrained_cfg="command.pth")),
    "an image trunk's weights by another argument": ("trunk", image(pretrained_cfg_overlay={"file": "command.pth"})),
    "an argument of an image trunk that is a file": ("trunk", image(patch_embed="command.pth")),
    "a text trunk of the hub": ("trunk", spec("levelfield.models.TransformersTrunk", name="somebody/something")),
    "a text trunk with code of its own": (
        "trunk",
        text({"model_type": "bert", "auto_map": {"AutoModel": "planted.Loss"}}),
    ),
    "a text trunk with a kernel of the hub": ("trunk", KERNEL),
    "a text trunk with a kernel of the hub within another": (
        "trunk",
        spec("levelfield.models.trunks.ModuleTrunk", module=KERNEL),
    ),
    "a text trunk with a kernel of the hub as the embedder": ("embedder", KERNEL),
    "a text trunk that wraps timm": ("trunk", text(WRAPPED)),
    "a text trunk that wraps timm within another": (
        "trunk",
        spec("levelfield.models.trunks.ModuleTrunk", module=text(WRAPPED)),
    ),
    "a text trunk that wraps timm as the embedder": ("embedder", text(WRAPPED)),
    "a text trunk that detects objects": ("trunk", text({"model_type": "detr", **BACKBONE})),
    "a text trunk that sees depth": ("trunk", text({"model_type": "dpt", "backbone_config": WRAPPED})),
    "a text trunk with a backbone": ("trunk", text({"model_type": "bert", **BACKBONE})),
    "a text trunk that is quantized": ("trunk", text({"model_type": "bert", "quantization_config": {"a": "b"}})),
    "a text trunk of a type that is a list": ("trunk", text({"model_type": ["bert"]})),
    "a text trunk of endless layers": ("trunk", text({"model_type": "bert", "num_hidden_layers": 10**6})),
    "a text trunk of no configuration": ("trunk", text("config.yaml")),
    "a function of the running program": ("loss", spec(f"{__name__}.write_to", file="FILE")),
    "no trunk": ("trunk", None),
}
CLASSES_OF_THE_DATA = {
    "a network where a data set belongs": ("dataset", spec("torch.nn.Linear", in_features=3, out_features=3)),
    "a planted data set": ("dataset", spec("planted.Letters", num_classes=40, image_size=32)),
    "a command as the data set": ("dataset", POPEN),
    "a command as an argument of the data set": ("dataset", spec("levelfield.data.Glyphs", num_classes=POPEN)),
    "planted transforms": ("transforms", spec("planted.Loss")),
    "transforms that are none": ("transforms", spec("levelfield.data.Glyphs")),
    "a planted datamodule": ("datamodule", "planted.Letters"),
    "a datamodule that is none": ("datamodule", "levelfield.data.Glyphs"),
    "a command as the number of workers": ("num_workers", POPEN),
    "a table of torchvision": ("dataset", spec("torchvision.datasets.MNIST", root="mnist", download=True)),
    "tar files of a store": ("dataset", spec("levelfield.data.datasets.ImageShards", shards="tars")),
}
PLACES = {
    "an absolute path": "PLACE/command.pth",
    "a path upwards": "images/../../command.pth",
    "a path of somebody's home": "~/command.pth",
    "a path of another system": "C:\\x\\command.pth",
    "a server's address": "ADDRESS/command.pth",
    "an address that holds others": "reference::ADDRESS/references.json",
    "an address through a cache": "simplecache::ADDRESS/command.pth",
    "an address of a folder": "local://PLACE/images",
}
# Where a place stands, and what it stands in.
KEYS = {
    "the trunk's weights": (f"{MODEL}.trunk.init_args.weights", None),
    "the trunk's name": (f"{MODEL}.trunk.init_args.name", None),
    "an argument of the loss": (f"{MODEL}.loss.init_args.file", None),
    "the folder of the data set": (f"{DATA}.dataset", lambda place: own_set(folder=place)),
    "the root of the data set": (f"{DATA}.root", None),
    "the trunk's own arguments": ("levelfield.trunk_args.weights", None),
    "the name of an argument": (f"{MODEL}.loss.init_args", lambda place: {place: 1}),
    "a text trunk": (f"{MODEL}.trunk", lambda place: text({"model_type": "bert"}, weights=place)),
}
NUMBERS = {
    "processes": (f"{DATA}.num_workers", 10**6),
    "samples at a time": (f"{DATA}.eval_batch_size", 10**9),
    "a batch": (f"{DATA}.batch_size", 10**12),
    "the side of an image": (f"{DATA}.transforms.crop_size", 10**6),
    "the side of a letter": (f"{DATA}.dataset.init_args.image_size", 10**6),
    "an embedding": (f"{MODEL}.embedding_size", 10**12),
    "classes": ("levelfield.num_classes", 10**15),
    "any number": (f"{MODEL}.loss.init_args.neg_margin", -(10**30)),
}


def circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["itself"] = [found]
    return found


def bomb() -> list[Any]:
    found: list[Any] = ["boom"] * 10
    for _ in range(10):
        found = [found] * 10
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


SHAPES: dict[str, tuple[str, Callable[[], Any]]] = {
    "arguments within themselves": (f"{MODEL}.loss.init_args", circle),
    "data within themselves": (DATA, circle),
    "lists of lists": (f"{MODEL}.regularizer", bomb),
    "a deep list": (f"{DATA}.features", lambda: nested(300)),
    "no arguments": (MODEL, list),
    "no part of levelfield": ("levelfield", lambda: "nothing"),
    "no weights": ("state_dict", list),
    "no class names": ("levelfield.data.train_classes", lambda: [{"class_path": "subprocess.Popen"}]),
}
OF_TENSORS = ("fit", "weights")  # these doors build nothing that a checkpoint names
OF_CALLBACKS = {
    "a file of the best epoch elsewhere": {"best_model_path": "{folder}/../../images"},
    "files to delete by an address": {"best_k_models": {"local://PLACE/images": 0.0}},
    "callbacks within themselves": {"more": circle()},
}


class Server(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET  # as http.server calls it

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and what it was asked for."""
    asked: list[str] = []
    found = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (Server,), {"asked": asked}))
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}", asked
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[str]]) -> list[Any]:
    """The hosts that were looked up or connected to, and what the server was asked for."""
    found = server[1]
    found.clear()
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def recorded(host: Any, *rest: Any, **more: Any) -> Any:
        found.append(host)
        return look_up(host, *rest, **more)

    def recorded_too(self: socket.socket, address: Any) -> Any:
        found.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    monkeypatch.setattr(socket.socket, "connect", recorded_too)
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a tiny fit of the command line stores."""
    output = tmp_path_factory.mktemp("fitted")
    words = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", "--output", str(output)]
    assert main(words) == 0
    content = torch.load(output / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt", weights_only=True)
    del content["optimizer_states"]  # no door reads them, and each door is three times as fast
    return content


class Command:
    """A pickle that writes a file when somebody loads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"id > {self.file}",)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with pictures, and with what writes `written` when it is imported or unpickled."""
    folder = tmp_path / "here"
    for number in range(4):
        (folder / "images" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (60 * number, 0, 0)).save(folder / "images" / f"{number % 2}" / f"{number}.png")
    (folder / "planted.py").write_text(PLANTED.format(file=str(folder / "written")))
    (folder / "loss.yaml").write_text("class_path: planted.Loss")
    with (folder / "command.pth").open("wb") as file:
        pickle.dump(Command(folder / "written"), file)
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
    found = build(config, tmp_path_factory.mktemp("new"), progress=False)
    found.datamodule.setup("fit")
    return found


@pytest.fixture
def refused(place: Path, run: Callable, asked: list[Any], training: Training) -> Callable[[], dict[str, str]]:
    """Gives `here/it.ckpt` to each door: the line by which each refused it, or none.

    Nothing was run, fetched, deleted or recorded by any.
    """
    path = place / "it.ckpt"

    def of_command(*words: Any) -> str:
        code, _, complaint = run(*words[:1], "--ckpt_path", path, *words[1:])
        assert code in (0, 2), complaint
        assert complaint.count("\n") == (code == 2), complaint
        return complaint

    def of_python(enter: Callable[[], Any]) -> str:
        try:
            enter()
        except UserError as error:
            line = str(error)
        else:
            return ""
        assert "\n" not in line
        return line

    def as_weights() -> None:
        TimmTrunk("test_resnet", weights=str(path))
        check_weight_files({"weights": str(path)}, training.datamodule)

    images = "images"
    doors: dict[str, Callable[[], str]] = {
        "validate": partial(of_command, "validate"),
        "test": partial(of_command, "test"),
        "predict": partial(of_command, "predict"),
        "predict --data": partial(of_command, "predict", "--data", images),
        "score": partial(of_command, "score", "--data", images),
        "search": partial(of_command, "search", "--gallery", images, "--query", "images/0/0.png"),
        "export": partial(of_command, "export", "--output", images),  # which is there: it ends in a refusal at least
        # The functions that `fit --ckpt_path` and `--model.trunk.weights` call: see `test_doors_of_fit`.
        "fit": partial(
            of_python,
            lambda: start_from_checkpoint(path, training.model, training.datamodule, training.config_dump),
        ),
        "weights": partial(of_python, as_weights),
        "load_from_checkpoint": partial(of_python, lambda: MetricLearner.load_from_checkpoint(path)),
        "Encoder": partial(of_python, lambda: Encoder(path)),
        "levelfield.embed": partial(of_python, lambda: levelfield.embed(path, images)),
    }

    def enter() -> dict[str, str]:
        lines = {}
        for name, door in doors.items():
            lines[name] = door()
            assert not (place / "written").exists(), name
            assert asked == [], name
            assert len(list((place / images).rglob("*.png"))) == 4, name
            assert name != "test" or not (place / "ledger.jsonl").exists()
        return lines

    return enter


def stored(checkpoint: dict[str, Any], place: Path, key: str, value: Any) -> None:
    """Writes `here/it.ckpt`: the checkpoint with another value at a key."""
    changed = copy.deepcopy({name: part for name, part in checkpoint.items() if name != "state_dict"})
    changed["state_dict"] = checkpoint["state_dict"]
    *way, last = key.split(".")
    section = changed
    for name in way:
        section[name] = section.get(name) or {}
        section = section[name]
    section[last] = value
    torch.save(changed, place / "it.ckpt")


@pytest.fixture
def here(place: Path, server: tuple[str, list[str]]) -> Callable[[Any], Any]:
    """An attack with the names of this place in it."""
    words = {"FILE": str(place / "written"), "PLACE": str(place), "ADDRESS": server[0]}

    def named(part: Any) -> Any:
        if isinstance(part, dict):
            return {named(name): named(each) for name, each in part.items()}
        if isinstance(part, list):
            return [named(each) for each in part]
        for word, name in words.items():
            part = part.replace(word, name) if isinstance(part, str) else part
        return part

    return named


@pytest.mark.parametrize("attack", CLASSES_OF_THE_MODEL)
def test_a_class_of_the_learner_that_nobody_trusts(attack, checkpoint, place, here, refused) -> None:
    key, value = CLASSES_OF_THE_MODEL[attack]
    stored(checkpoint, place, f"{MODEL}.{key}", here(value))
    for name, line in refused().items():
        assert name in OF_TENSORS or "it.ckpt" in line, name


@pytest.mark.parametrize("attack", CLASSES_OF_THE_DATA)
def test_a_class_of_the_data_that_nobody_trusts(attack, checkpoint, place, here, refused) -> None:
    key, value = CLASSES_OF_THE_DATA[attack]
    stored(checkpoint, place, f"{DATA}.{key}", here(value))
    lines = refused()
    # The others take other data.
    assert {name for name, line in lines.items() if "it.ckpt" in line} >= {"validate", "test", "predict"}, lines


@pytest.mark.parametrize("name", ["hf-hub:somebody/something", "local-dir:images"])
def test_an_image_trunk_that_timm_would_fetch_by_its_name(name, checkpoint, place, refused) -> None:
    stored(checkpoint, place, f"{MODEL}.trunk", spec("levelfield.models.TimmTrunk", name=name))
    for door, line in refused().items():
        assert door in OF_TENSORS or name in line, door


def test_doors_of_fit(checkpoint, place, here, run, asked) -> None:
    """They take tensors only, and no class. Each calls what the other attacks are given to."""
    compared, changed = ("trunk", "embedder", "embedding_size", "dataset"), copy.copy(checkpoint)
    for section, attacks in ((MODEL, CLASSES_OF_THE_MODEL), (DATA, CLASSES_OF_THE_DATA)):
        of_all = {key: here(value) for key, value in attacks.values() if key not in compared}
        changed[section] = {**checkpoint[section], **of_all}
    stored(changed, place, f"{MODEL}.loss", here(POPEN))
    path = place / "it.ckpt"
    words = [*TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]
    for door in ("--ckpt_path", "--model.trunk.weights"):
        code, _, complaint = run("fit", *words, door, path)
        assert (code, complaint) == (0, ""), door
    assert asked == []
    assert not (place / "written").exists()
    stored(checkpoint, place, *NUMBERS["classes"])
    refuses(run("fit", *words, "--ckpt_path", path), "it.ckpt")
    stored(checkpoint, place, "levelfield", "nothing")
    refuses(run("fit", *words, "--model.trunk.weights", path), "it.ckpt")


@pytest.mark.parametrize(
    ("attack", "where"),
    [
        *((attack, "the folder of the data set") for attack in PLACES),
        *(("a server's address", where) for where in KEYS if where != "the folder of the data set"),
    ],
)
def test_a_place(attack, where, checkpoint, place, here, refused) -> None:
    key, around = KEYS[where]
    found = here(PLACES[attack])
    stored(checkpoint, place, key, around(found) if around else found)
    for name, line in refused().items():
        assert "it.ckpt" in line, name
        assert key in line, name


@pytest.mark.parametrize("attack", NUMBERS)
def test_a_number(attack, checkpoint, place, refused) -> None:
    stored(checkpoint, place, *NUMBERS[attack])
    for name, line in refused().items():
        assert "it.ckpt" in line, name
        assert NUMBERS[attack][0] in line, name


@pytest.mark.parametrize("attack", SHAPES)
def test_a_shape(attack, checkpoint, place, refused) -> None:
    key, make = SHAPES[attack]
    stored(checkpoint, place, key, make())
    for name, line in refused().items():
        assert "it.ckpt" in line, name


def test_a_pickle(place, refused) -> None:
    torch.save({"levelfield": {}, "state_dict": {}, MODEL: Command(place / "written")}, place / "it.ckpt")
    for name, line in refused().items():
        assert "it.ckpt" in line, name


@pytest.mark.parametrize("attack", OF_CALLBACKS)
def test_files_of_callbacks(attack, checkpoint, place, here, run, asked) -> None:
    """`ModelCheckpoint` deletes the files that its state names: `fit --ckpt_path` takes weights only."""
    ((name, state),) = checkpoint["callbacks"].items()
    told = OF_CALLBACKS[attack] if attack.startswith("callbacks") else here(OF_CALLBACKS[attack])
    without_folder = {key: value for key, value in state.items() if key != "dirpath"}  # so that it is taken over
    stored({**checkpoint, "callbacks": {name: {**without_folder, **told}}}, place, "epoch", 0)
    with pytest.raises(UserError, match=r"it\.ckpt.*callbacks"):
        AtomicCheckpoints().load_checkpoint(place / "it.ckpt")
    words = ("--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "2")
    code, _, complaint = run("fit", *TINY, *words, "--ckpt_path", place / "it.ckpt")
    assert code == 0, complaint
    assert len(list((place / "images").rglob("*.png"))) == 4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (WRAPPED, "timm_wrapper"),
        ({"model_type": "detr", **BACKBONE}, "detr"),
        ({"model_type": "dpt", "backbone_config": WRAPPED}, "dpt"),
        ({**DISTILBERT, **BACKBONE}, "backbone"),
        ({**DISTILBERT, "attn_implementation": "somebody/kernel"}, "attn_implementation"),
        ({**DISTILBERT, "_attn_implementation_internal": "somebody/kernel"}, "_attn_implementation_internal"),
        ({**DISTILBERT, "auto_map": {"AutoModel": "planted.Loss"}}, "auto_map"),
        ({**DISTILBERT, "quantization_config": {"quant_method": "bitsandbytes_4bit"}}, "quantization_config"),
        ({**DISTILBERT, "n_layers": 10**6}, "n_layers"),
    ],
)
def test_the_folder_of_a_text_model(config, named, place, run, asked) -> None:
    folder = tiny_text_model(place / "model", config)
    with pytest.raises(UserError, match=named):
        TransformersTrunk(str(folder), weights=None)
    words = [*TINY, "--model.trunk", "TransformersTrunk", "--model.trunk.name", folder, "--model.trunk.weights", "null"]
    code, _, complaint = run("fit", *words, "--model.loss", "ContrastiveLoss")
    assert (code, complaint.count("\n")) == (2, 1), complaint
    assert named in complaint
    assert not (place / "written").exists()
    assert asked == []


def test_entries_of_a_text_model_that_its_network_does_not_need(place) -> None:
    config = {**DISTILBERT, "_name_or_path": "/home/its/author", "architectures": ["A"], "id2label": {"0": "a/b"}}
    trunk = TransformersTrunk(str(tiny_text_model(place / "model", config)), weights=None, max_length=64)
    kept = trunk.checkpoint_args["config"]
    assert kept["hidden_dim"] == DISTILBERT["hidden_dim"]
    assert not {"_name_or_path", "architectures", "id2label"} & set(kept)


@pytest.mark.parametrize("tokenizer", ["absent", None, "", 0])
@pytest.mark.parametrize("name", ["package:planted.model", "somebody/something", "images"])
def test_a_text_trunk_without_its_tokenizer(name, tokenizer, place, asked) -> None:
    folder = tiny_text_model(place / "model")
    learner = MetricLearner(TransformersTrunk(str(folder), weights=None, max_length=64), ContrastiveLoss)
    content = {"state_dict": learner.state_dict(), MODEL: dict(learner.hparams)}
    learner.on_save_checkpoint(content)
    content["state_dict"]["trunk._extra_state"] = tokenizer
    if tokenizer == "absent":
        del content["state_dict"]["trunk._extra_state"]
    content[MODEL]["trunk"]["init_args"]["name"] = name
    torch.save(content, place / "it.ckpt")
    for strict in (True, False):
        with pytest.raises(UserError, match=r"it\.ckpt"):
            MetricLearner.load_from_checkpoint(place / "it.ckpt", strict=strict)
    assert not (place / "written").exists()
    assert asked == []


@pytest.mark.parametrize("name", [5, None, ("trunk", 1)])
def test_a_tensor_without_a_name(name, checkpoint, place, refused) -> None:
    for frozen in (None, "0" * 64):
        content = copy.deepcopy(checkpoint)
        content["state_dict"][name] = torch.zeros(3)
        content["levelfield"] |= {} if frozen is None else {"frozen_trunk": frozen}
        torch.save(content, place / "it.ckpt")
        for door, line in refused().items():
            assert "it.ckpt" in line, door


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
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (place / "it.tar.xz").write_bytes(lzma.compress(packed.getvalue()))
    with pytest.raises(UserError, match=r"study\.yaml"):
        unpack_study(place / "it.tar.xz", place / "unpacked")


@pytest.mark.parametrize("given", ["../elsewhere", "absolute"])
def test_your_own_checkpoint_finds_your_data_and_names_no_place(given, tiny, run, tmp_path, monkeypatch) -> None:
    """By the `config.yaml` beside it, from a folder outside of the working directory."""
    folder, project = tmp_path / "elsewhere", tmp_path / "project"
    project.mkdir()
    for number in range(32):
        (folder / f"{number // 2:02d}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 7, 99, 0)).save(folder / f"{number // 2:02d}" / f"{number}.png")
    monkeypatch.chdir(project)
    data = str(folder) if given == "absolute" else given
    words = [*image_options(tiny, Path(), Path(data)), "--data.num_workers", "0", "--trainer.max_epochs", "1"]
    code, _, complaint = run("fit", *words, "--model.loss", "ContrastiveLoss")
    assert code == 0, complaint
    best = project / "outputs" / "fit" / "ImageFolder-ContrastiveLoss" / "0" / "best.ckpt"
    for name in (b"../elsewhere", b"num_workers", str(tmp_path).encode()):
        assert name not in best.read_bytes()
    content = torch.load(best, weights_only=True)
    assert content[DATA]["dataset"]["init_args"] == {"folder": "elsewhere"}
    assert content["levelfield"]["data"]["dataset"]["init_args"] == {"folder": "elsewhere"}
    for command in ("validate", "test", "predict"):
        code, _, complaint = run(command, "--ckpt_path", best)
        assert code == 0, complaint
    assert str(tmp_path) not in best.with_name("README.md").read_text()
    alone = best.rename(tmp_path / "best.ckpt")
    code, _, complaint = run("validate", "--ckpt_path", alone)
    assert (code, complaint.count("\n")) == (2, 1), complaint
    assert "--data.dataset.folder" in complaint
    code, _, complaint = run("validate", "--ckpt_path", alone, "--data.dataset.folder", data)
    assert code == 0, complaint
