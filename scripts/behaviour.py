"""What a rewrite must not change: scores, tensors, batches, splits, messages. Two states of the code are compared.

    python scripts/behaviour.py write now.json                # of this checkout
    python scripts/behaviour.py compare before.json now.json  # prints what differs; exits with 1
    python scripts/behaviour.py against COMMIT                # writes and compares both on this machine

Numbers and hashes depend on the processor, so files of two machines differ. Only the command line and the public
Python names are used, so that the code behind them may move.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import inspect
import json
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections import ChainMap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
Found = Iterator[tuple[str, Any]]
TINY = "--config data/glyphs --config trunk/tiny --data.dataset.num_classes 24 --data.steps_per_epoch 4"
SHORT = "--trainer.max_epochs 1 --trainer.accelerator cpu --model.freeze_batch_norm false"
FIT = f"fit {TINY} {SHORT}"
ODD_IMAGES = (
    *("1.png", "L.png", "LA.png", "P.png", "RGB.png", "RGBA.png", "I;16.png", "L.jpg", "RGB.jpg", "CMYK.jpg"),
    *("L.tif", "RGB.tif", "CMYK.tif", "LAB.tif", "RGB.bmp", "RGB.webp", "P.gif", "RGB.one.png", "RGB.turned.jpg"),
)
ODD_TEXTS = ["a", "A", " a ", "\u00e4", "a\u0308", "中文", "😀😀", "\u200b", "tab\tstop", "0", "nan", "x" * 3000]
ODD_TEXTS += ["null", '"quoted", with a comma', "don't", "<b>", "a\u00a0b", "...", "How do I get my card back?"]
SPLITS = ("random", "powerful-benchmarker", "vasilev-dyakonov", "all")


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def levelfield(words: str, code: int | None = 0) -> tuple[int, str, str]:
    """Run a command in a child of this process, which has imported torch: its exit code, output and complaint."""
    if (child := os.fork()) == 0:
        sys.argv = ["levelfield", *shlex.split(words.replace("FIT", FIT))]
        for number, name in ((1, "out"), (2, "error")):
            os.dup2(os.open(f"../{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        try:
            runpy.run_module("levelfield", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    printed, complaint = (Path("..", name).read_text() for name in ("out", "error"))
    if code is not None and status != code:
        raise SystemExit(f"levelfield {words}: exit code {status}\n{printed}\n{complaint}")
    return status, printed, complaint


def tensors(checkpoint: Path) -> str:
    """A hash of all weights, whatever their names."""
    import torch

    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return digest(*sorted(value.numpy().tobytes() for value in state.values() if isinstance(value, torch.Tensor)))


def means(folder: str) -> Found:
    for row in csv.DictReader(Path(folder, "summary.csv").read_text().splitlines()):
        yield f"{folder} {row['method']} {row['embedding']} {row['metric']}", [row["mean"], row["ci95"], row["n"]]


def study(name: str, words: str = "") -> Found:
    """Every mean and interval, and the weights of every run."""
    levelfield(f"study run {name} {words} --output {name} --executor.workers 1")
    yield from means(name)
    for path in sorted(Path(name).rglob("best.ckpt")):
        yield f"{name} {path.parent.relative_to(name)} weights", tensors(path)


def example() -> Found:
    words = [sys.executable, str(REPOSITORY / "examples/train.py"), "--epochs", "1"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    yield "examples/train.py", re.findall(r"before training: (\S+), after: (\S+)", printed)
    yield "examples/train.py weights", [tensors(path) for path in Path("outputs/train").rglob("*.ckpt")]


def predictions() -> Found:
    """Embeddings of odd images and texts by a model that has trained for a moment."""
    from safetensors.torch import load_file

    (folder := Path("odd")).mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    for number, name in enumerate(ODD_IMAGES):
        mode, *_, kind = name.split(".")  # the size follows from the place
        size = (1, 1) if "one" in name else (3 + 29 * number, 200 - 7 * number)
        pixels = bytes((number * 37 + k * k // 7) % 256 for k in range(size[0] * size[1] * 3))
        image = Image.frombytes("RGB", size, pixels)
        image = image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)
        options = {"exif": turned} if "turned" in name else {}
        image.save(folder / name, **options, **({"save_all": True, "append_images": [image]} if kind == "gif" else {}))
    Path("odd.txt").write_text("\n".join(ODD_TEXTS) + "\n", encoding="utf-8")
    rows = "".join(f'"class {k % 20} number {k}",{k % 20}\n' for k in range(100))
    Path("texts.csv").write_text(f"text,label\n{rows}")
    texts = "--config data/own_texts --data.dataset.table texts.csv --config trunk/tiny_text --data.steps_per_epoch 4"
    for kind, words, data in (("images", f"fit {TINY}", "odd"), ("texts", f"fit {texts}", "odd.txt")):
        levelfield(f"{words} {SHORT} --model.loss MultiSimilarityLoss --name {kind}")
        (checkpoint,) = Path("outputs/fit", kind).rglob("best.ckpt")
        yield f"fit of {kind} weights", tensors(checkpoint)
        levelfield(f"predict --ckpt_path {checkpoint} --data {data} --output {kind}.safetensors")
        rows = load_file(f"{kind}.safetensors")["embeddings"]
        for number, row in enumerate(rows):
            yield f"embedding of {kind} {number}", digest(row.numpy().tobytes())


def defaults() -> Found:
    """The arguments of all public classes and functions."""
    for module in ("levelfield", *(f"levelfield.{name}" for name in ("data", "losses", "metrics", "miners", "models"))):
        for name in (package := importlib.import_module(module)).__all__:
            if callable(part := getattr(package, name)):
                yield f"{module}.{name}", re.sub(" at 0x[0-9a-f]+", "", str(inspect.signature(part)))


def batches() -> Found:
    from levelfield.data import MPerClassBatchSampler, ShuffledBatchSampler

    labels = [k * k % 23 for k in range(300)]
    for sampler in (MPerClassBatchSampler, ShuffledBatchSampler):
        for options in ({}, {"rank": 1, "world_size": 2}, {"seed": 7}):
            drawn = sampler(labels, 16, 4, num_batches=5, **{"seed": 0, **options})
            for epoch in (0, 3):
                drawn.set_epoch(epoch)
                found = json.dumps([[int(index) for index in batch] for batch in drawn])
                yield f"batches {sampler.__name__} {options} {epoch}", digest(found.encode())


def splits() -> Found:
    """Classes and samples of each fold of each data set that is here."""
    from levelfield import MetricDataModule, data

    for name in ("Glyphs", "GroceryStore", "Omniglot", "Banking77", "CLINC150", "News20"):
        kind, folder = getattr(data, name), os.environ.get("LEVELFIELD_DATA", "")
        ways = [*({"fold": fold} for fold in (0, 3, "none")), *({"split": split, "fold": 1} for split in SPLITS)]
        for options in ways if kind is data.Glyphs or Path(folder, kind.name).is_dir() else []:
            known = MetricDataModule(kind(), **options).identity()
            yield f"split {name} {options}", digest(json.dumps(known, sort_keys=True, default=str).encode())


def mistakes() -> Found:
    """The exit code, the last complaint and a hash of the output of each mistake, and of helps, which show defaults."""
    Path("few").mkdir()
    for words in Path(__file__).with_name("mistakes.txt").read_text().splitlines():
        if words.startswith("> "):
            Path(words.split()[1]).write_text(words.split(" ", 2)[2].replace("\\n", "\n"))
            continue
        code, printed, complaint = levelfield(words, code=None)
        printed = printed.replace(str(Path.cwd().parent), "").replace(str(REPOSITORY), "")
        yield f"$ {words}", [code, (complaint.strip().splitlines() or [""])[-1], digest(printed.encode())]


def comparison() -> Found:
    """A comparison of small images, whose short trainings fit any machine, and the verdict of an archive."""
    for number in range(96):
        path = Path(f"small/class_{number % 16:02d}/{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number % 16 * 16, number * 2, 99)).save(path)
    options = "--data.transforms.crop_size 32 --data.transforms.resize 32 --data.steps_per_epoch 1"
    printed = levelfield(f"compare small --trunk trunk/tiny --output compared {options}")[1]
    yield "compare, what to use", [line for line in printed.splitlines() if line.startswith("Use ")]
    yield from means("compared")
    printed = levelfield(f"study report {REPOSITORY}/results/trunk/fair_groceries/archive.tar.xz --output reported")[1]
    yield "report", [line.rstrip() for line in printed.splitlines() if not line.startswith(("page:", "next:"))]


SMALL = {part.__name__: part for part in (mistakes, comparison, predictions, example, splits, defaults, batches)}
PARTS = {"quickstart": partial(study, "quickstart", "--runs 1"), "smoke": partial(study, "smoke"), **SMALL}


def observe(part: str) -> dict[str, Any]:
    """What one part of the file says, found in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = f"{folder}/cache"
        Path(folder, "work").mkdir()
        os.chdir(f"{folder}/work")
        found = json.dumps(dict(PARTS[part]())).replace(folder, "<folder>").replace(str(REPOSITORY), "<here>")
        os.chdir(REPOSITORY)
    return json.loads(found)


def write(file: Path, *, parts: list[str] | None = None) -> None:
    """Write all that is observed, or some parts of it, as one JSON file."""
    (file := file.resolve()).parent.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "WANDB_MODE": "disabled"}
    import lightning
    import torch
    import torchvision  # noqa: F401 # before the forks

    torch.set_num_threads(1)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        found = dict(ChainMap(*pool.map(observe, parts or PARTS)))
    found |= {"torch": torch.__version__, "lightning": lightning.__version__}
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(before: Path, after: Path) -> bool:
    """Print each value that differs, and whether any does."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    pairs = {key: (old.get(key, "missing"), new.get(key, "missing")) for key in {**old, **new}}
    differ = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    for key, (was, now) in differ.items():
        print(f"{key}\n  before: {was}\n  after:  {now}")
    print(f"{len(differ)} of {len(pairs)} values differ")
    return bool(differ)


def against(commit: str, *, parts: list[str] | None = None) -> bool:
    """Compare this checkout with a commit, whose file is kept in build/behaviour for the next time."""
    git = ["git", "-C", str(REPOSITORY)]
    commit = subprocess.check_output([*git, "rev-parse", commit], text=True).strip()[:12]
    kept = REPOSITORY / "build/behaviour"
    before, after = kept / f"{'-'.join([commit, *(parts or [])])}.json", kept / "now.json"
    with tempfile.TemporaryDirectory() as there:
        for file, source in [(before, Path(there))] * (not before.is_file()) + [(after, REPOSITORY)]:
            if file == before:
                tree = subprocess.check_output([*git, "archive", commit])
                subprocess.run(["tar", "--extract", "--directory", there], input=tree, check=True)
            paths = {"PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)])}
            words = [sys.executable, __file__, "write", str(file), f"--parts={json.dumps(parts)}"]
            subprocess.run(words, env=os.environ | paths, check=True)
    return compare(before, after)


if __name__ == "__main__":
    sys.exit(auto_cli([write, compare, against]))
