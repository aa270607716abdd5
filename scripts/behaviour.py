"""What a rewrite must not change: scores, tensors, batches, splits, messages. Two states of the code are compared.

    python scripts/behaviour.py [COMMIT]    # prints what differs between COMMIT (HEAD) and this checkout; exits with 1

Numbers depend on the processor, so both are observed here. Only the command line and the public Python names are used,
so that the code behind them may move.
"""

import csv
import hashlib
import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
Found = Iterator[tuple[str, Any]]
TINY = "--config data/glyphs --config trunk/tiny --data.dataset.num_classes 24 --data.steps_per_epoch 4"
SHORT = "--trainer.max_epochs 1 --trainer.accelerator cpu --model.freeze_batch_norm false"
TEXTS = "--config data/own_texts --data.dataset.table texts.csv --config trunk/tiny_text --data.steps_per_epoch 4"
ODD_IMAGES = "1.png L.png LA.png P.png RGB.png RGBA.png I;16.png L.jpg RGB.jpg CMYK.jpg L.tif RGB.tif CMYK.tif LAB.tif"
ODD_IMAGES += " RGB.bmp RGB.webp P.gif RGB.one.png RGB.turned.jpg"
ODD_TEXTS = ["a", "A", " a ", "\u00e4", "a\u0308", "中文", "😀😀", "\u200b", "tab\tstop", "0", "nan", "x" * 3000]
ODD_TEXTS += ["null", '"quoted", with a comma', "don't", "<b>", "a\u00a0b", "...", "How do I get my card back?"]
SPLITS = ("random", "powerful-benchmarker", "vasilev-dyakonov", "all")


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def levelfield(words: str, must_work: bool = True) -> tuple[int, str, str]:
    """Run a command in a child of this process, which has imported torch: its exit code, output and complaint."""
    if (child := os.fork()) == 0:
        sys.argv = ["levelfield", *shlex.split(words.replace("FIT", f"fit {TINY} {SHORT}"))]
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
    if must_work and status:
        raise SystemExit(f"levelfield {words}: exit code {status}\n{printed}\n{complaint}")
    return status, printed, complaint


def weights(folder: Path) -> Found:
    """A hash of all weights of each checkpoint, whatever their names."""
    import torch

    for path in sorted(folder.rglob("*.ckpt")):
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        tensors = (value.numpy().tobytes() for value in state.values() if isinstance(value, torch.Tensor))
        yield f"weights {path}", digest(*sorted(tensors))


def means(folder: str) -> Found:
    for row in csv.DictReader(Path(folder, "summary.csv").read_text().splitlines()):
        yield f"{folder} {row['method']} {row['embedding']} {row['metric']}", [row["mean"], row["ci95"], row["n"]]


def studies() -> Found:
    """Every mean and interval, and the weights of every run."""
    for name, words in (("quickstart", "--runs 1"), ("smoke", "")):
        levelfield(f"study run {name} {words} --output {name} --executor.workers 1")
        yield from means(name)
        yield from weights(Path(name))


def example() -> Found:
    words = [sys.executable, str(REPOSITORY / "examples/train.py"), "--epochs", "1"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    yield "examples/train.py", re.findall(r"before training: (\S+), after: (\S+)", printed)
    yield from weights(Path("outputs/train"))


def predictions() -> Found:
    """Embeddings of odd images and texts by a model that has trained for a moment."""
    from safetensors.torch import load_file

    (folder := Path("odd")).mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    for number, name in enumerate(ODD_IMAGES.split()):
        mode = name.partition(".")[0]
        size = (1, 1) if "one" in name else (3 + 29 * number, 200 - 7 * number)
        pixels = bytes((number * 37 + k * k // 7) % 256 for k in range(size[0] * size[1] * 3))
        image = Image.frombytes("RGB", size, pixels)
        image = image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)
        options: dict[str, Any] = {"exif": turned} if "turned" in name else {}
        image.save(folder / name, **options | ({"save_all": True, "append_images": [image]} if "gif" in name else {}))
    Path("odd.txt").write_text("\n".join(ODD_TEXTS) + "\n", encoding="utf-8")
    rows = "".join(f'"class {k % 20} number {k}",{k % 20}\n' for k in range(100))
    Path("texts.csv").write_text(f"text,label\n{rows}")
    for kind, words, data in (("images", TINY, "odd"), ("texts", TEXTS, "odd.txt")):
        levelfield(f"fit {words} {SHORT} --model.loss MultiSimilarityLoss --name {kind}")
        (checkpoint,) = Path("outputs/fit", kind).rglob("best.ckpt")
        yield from weights(checkpoint.parent)
        levelfield(f"predict --ckpt_path {checkpoint} --data {data} --output {kind}.safetensors")
        for number, row in enumerate(load_file(f"{kind}.safetensors")["embeddings"]):
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
                found = [[int(index) for index in batch] for batch in drawn]
                yield f"batches {sampler.__name__} {options} {epoch}", digest(str(found).encode())


def splits() -> Found:
    """Classes and samples of each fold of each data set that is here."""
    from levelfield import MetricDataModule, data

    for name in ("Glyphs", "GroceryStore", "Omniglot", "Banking77", "CLINC150", "News20"):
        kind, folder = getattr(data, name), os.environ.get("LEVELFIELD_DATA", "")
        ways = [*({"fold": fold} for fold in (0, 3, "none")), *({"split": split, "fold": 1} for split in SPLITS)]
        for options in ways if kind is data.Glyphs or Path(folder, kind.name).is_dir() else []:
            known = MetricDataModule(kind(), **options).identity()
            yield f"split {name} {options}", digest(str(sorted(known.items())).encode())


def mistakes() -> Found:
    """The exit code, the last complaint and a hash of the output of each mistake, and of helps, which show defaults."""
    Path("few").mkdir()
    for words in Path(__file__).with_name("mistakes.txt").read_text().splitlines():
        if words.startswith("> "):
            Path(words.split()[1]).write_text(words.split(" ", 2)[2].replace("\\n", "\n"))
            continue
        code, printed, complaint = levelfield(words, must_work=False)
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


def observe(file: Path) -> None:
    """Write a line for each value, each part found in an empty folder."""
    import lightning  # noqa: F401 # before the forks
    import torch
    import torchvision  # noqa: F401

    torch.set_num_threads(1)
    with file.open("w", encoding="utf-8") as lines, tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = f"{folder}/cache"
        for part in (studies, mistakes, comparison, predictions, example, splits, defaults, batches):
            Path(folder, part.__name__, "work").mkdir(parents=True)
            os.chdir(f"{folder}/{part.__name__}/work")
            for key, value in part():
                print(f"{key}: {value}".replace(folder, "").replace(str(REPOSITORY), ""), file=lines, flush=True)
        os.chdir(REPOSITORY)


def main(commit: str = "HEAD") -> int:
    """Show the lines that differ."""
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "WANDB_MODE": "disabled"}
    with tempfile.TemporaryDirectory() as there:
        tree = subprocess.check_output(["git", "-C", str(REPOSITORY), "archive", commit])
        subprocess.run(["tar", "--extract", "--directory", there], input=tree, check=True)
        files, processes = [f"{there}/{commit}.txt", f"{there}/now.txt"], []
        for source, file in zip((Path(there), REPOSITORY), files, strict=True):
            paths = os.pathsep.join(map(str, (source / "src", source)))
            words = [sys.executable, __file__, "--observe", file]
            processes.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": paths}))
        codes = [process.wait() for process in processes]
        if any(codes):
            return 2
        return subprocess.call(["diff", *files])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        observe(Path(sys.argv[2]))
    else:
        sys.exit(main(*sys.argv[1:]))
