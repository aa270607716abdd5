"""What a rewrite must not change: scores, weights, embeddings, messages. Two states of the code are compared.

    python scripts/behaviour.py [COMMIT]    # prints what differs between COMMIT (HEAD) and this checkout; exits with 1

Both run the commands of behaviour.txt on this machine, as numbers depend on the processor.
"""

import hashlib
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).resolve().parents[1]
MODES = ("RGB.png", "L.png", "LA.png", "P.png", "RGBA.png", "1.png", "RGB.jpg", "L.jpg", "CMYK.jpg", "RGB.tif", "P.gif")
SHORT = {
    "FIT": "fit --config data/glyphs --config trunk/tiny --data.dataset.num_classes 24 --data.steps_per_epoch 4 SHORT",
    "TEXTS": "--config data/own_texts --data.dataset.table texts.csv --config trunk/tiny_text --data.steps_per_epoch 4",
    "SHORT": "--trainer.max_epochs 1 --trainer.accelerator cpu --model.freeze_batch_norm false",
    "HERE": str(HERE),
}


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def levelfield(words: str) -> tuple[int, str, str]:
    """Run a command in a child of this process, which has imported torch: its exit code, output and complaint."""
    for word, meaning in SHORT.items():
        words = words.replace(word, meaning)
    if (child := os.fork()) == 0:
        sys.argv = ["levelfield", *shlex.split(words)]
        for number, name in ((1, "out"), (2, "error")):
            os.dup2(os.open(f"../{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        try:
            runpy.run_module("levelfield", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, Path("../out").read_text(), Path("../error").read_text()


def make_data() -> None:
    """Small images of several modes in 16 classes, texts, and an empty folder."""
    for number in range(96):
        mode, kind = MODES[number % len(MODES)].split(".")
        path = Path(f"small/class_{number % 16:02d}/{number}.{kind}")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").resize((40, 30 + number)).rotate(number * 9).convert("RGB").convert(mode).save(path)
    rows = (f'"class {number % 20} number {number}",{number % 20}' for number in range(100))
    Path("texts.csv").write_text("\n".join(["text,label", *rows]))
    Path("few").mkdir()


def results() -> Iterator[tuple[Path, Any]]:
    """Scores, embeddings, and weights whatever their names."""
    import torch

    for path in sorted(Path().rglob("*")):
        if path.name == "summary.csv":
            yield path, path.read_text()
        elif path.suffix == ".safetensors":
            yield path, digest(path.read_bytes())
        elif path.name == "best.ckpt":
            state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
            tensors = (value.numpy().tobytes() for value in state.values() if isinstance(value, torch.Tensor))
            yield path, digest(*sorted(tensors))


def observe(file: Path) -> None:
    """Write what the commands say and make."""
    import lightning  # noqa: F401 # before the forks
    import torch
    import torchvision  # noqa: F401

    torch.set_num_threads(1)
    with file.open("w", encoding="utf-8") as lines, tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = f"{folder}/cache"
        (work := Path(folder, "work")).mkdir()
        os.chdir(work)
        make_data()
        for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()[1:]:
            first, _, rest = line.partition(" ")
            if first == ">":
                name, _, text = rest.partition(" ")
                Path(name).write_text(text.replace("\\n", "\n"), encoding="utf-8")
                continue
            code, printed, complaint = levelfield(rest if first == "ok" else line)
            if first == "ok" and code:
                raise SystemExit(f"{line}: exit code {code}\n{printed}\n{complaint}")
            said: Any = [each for each in printed.splitlines() if each.startswith("Use ")]  # other lines have seconds
            if first != "ok":
                said = digest(printed.replace(folder, "").replace(str(HERE), "").encode())
            last = (complaint.strip().splitlines() or [""])[-1] if code else ""
            print(f"$ {line}: {code} {said} {last.replace(folder, '')}", file=lines, flush=True)
        for path, value in results():
            print(f"{path}: {value}", file=lines)
        os.chdir(HERE)


def main(commit: str = "HEAD") -> int:
    """Show the lines that differ."""
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "WANDB_MODE": "disabled"}
    with tempfile.TemporaryDirectory() as there:
        tree = subprocess.check_output(["git", "-C", str(HERE), "archive", commit])
        subprocess.run(["tar", "--extract", "--directory", there], input=tree, check=True)
        files, processes = [f"{there}/before.txt", f"{there}/now.txt"], []
        for source, file in zip((Path(there), HERE), files, strict=True):
            paths = os.pathsep.join(map(str, (source / "src", source)))
            words = [sys.executable, __file__, "--observe", file]
            processes.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": paths}))
        codes = [process.wait() for process in processes]
        return 2 if any(codes) else subprocess.call(["diff", *files])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        observe(Path(sys.argv[2]))
    else:
        sys.exit(main(*sys.argv[1:]))
