"""What commands take before they answer or begin to work, beside `import torch` in turn.

python benchmarks/start.py [--before CHECKOUT] [--turns 3]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
# `study run`, which ends where its first job would begin.
FIRST_JOB = """
import os, sys
from levelfield.study.workers import Scheduler
Scheduler.run = lambda self: os._exit(0)
from levelfield.cli.main import main
main(sys.argv[1:])
"""
STUDY = ("study", "run", "smoke", "--output")
LEVELFIELD = ("-m", "levelfield")
# What is shown, and the words of Python; `STUDY`'s folder is put after them where they end with --output.
COMMANDS = {
    "--help": (*LEVELFIELD, "--help"),
    "fit --help": (*LEVELFIELD, "fit", "--help"),
    "fit --modle.loss x": (*LEVELFIELD, "fit", "--modle.loss", "x"),
    "data list": (*LEVELFIELD, "data", "list"),
    "study run smoke, to its first job": ("-c", FIRST_JOB, *STUDY),
    "study status of it": (*LEVELFIELD, "study", "status", "smoke", "--output"),
    "study run smoke --dry-run": (*LEVELFIELD, *STUDY[:-1], "--dry-run", "--output"),
}


def seconds(words: tuple[str, ...], checkout: Path, environment: dict[str, str]) -> tuple[float, float]:
    """User CPU and wall seconds of Python with these words."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", **environment}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, *words], cwd=checkout, env=environment, **quiet)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, time.perf_counter() - started


def measure(checkout: Path) -> dict[str, tuple[float, float, float]]:
    """Command to its user CPU and wall seconds, and the former beside those of an `import torch` just before."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"LEVELFIELD_CACHE": str(Path(folder, "cache"))}
        for name, words in COMMANDS.items():
            torch, _ = seconds(("-c", "import torch"), checkout, cache)
            place = (str(Path(folder, "study")),) if words[-1] == "--output" else ()
            cpu, wall = seconds((*words, *place), checkout, cache)
            found[name] = (cpu, wall, cpu / torch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before, "now": HERE} if arguments.before else {"now": HERE}
    turns = [{title: measure(each.resolve()) for title, each in checkouts.items()} for _ in range(arguments.turns)]
    columns = [f"{what}, {title}" for title in checkouts for what in ("CPU s", "wall s", "/ import torch")]
    print(f"| levelfield | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name in COMMANDS:
        measured = [zip(*(turn[title][name] for turn in turns), strict=True) for title in checkouts]
        middle = [statistics.median(values) for columns in measured for values in columns]
        print(f"| `{name}` | {' | '.join(f'{value:.2f}' for value in middle)} |")


if __name__ == "__main__":
    main()
