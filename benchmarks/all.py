"""Runs the commands of benchmarks/README.md and writes what they print into it, under the machine and the versions.

python benchmarks/all.py [losses retrieval ...]    # all of them take about an hour on two quiet cores

LEVELFIELD_DATA must have grocery_store/.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks/README.md"
BLOCK = re.compile(r"^(    python benchmarks/(\w+)\.py[^\n]*)\n\n<!-- printed -->\n.*?^<!-- -->$", re.M | re.S)


def machine() -> str:
    """Processor, cores, GPU and versions in a line."""
    import torch

    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = [f"{name} {version(name)}" for name in ("torch", "lightning", "pytorch-metric-learning")]
    processor = f"{os.cpu_count()} cores of {(names or [platform.processor()])[0]}"
    return ", ".join([processor, device, *versions, f"{date.today():%d %B %Y}"])


def printed(command: str) -> str:
    words = [sys.executable, *shlex.split(command)[1:]]
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    named = sys.argv[1:]
    if (not named or "training" in named) and not Path(os.environ.get("LEVELFIELD_DATA", ""), "grocery_store").is_dir():
        sys.exit("set LEVELFIELD_DATA=DIR, with grocery_store/: levelfield data prepare grocery_store --root DIR")
    text = PAGE.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if not named or found[2] in named:
            print(found[1].strip(), flush=True)
            block = f"{found[1]}\n\n<!-- printed -->\n\n*{machine()}*\n\n{printed(found[1])}\n\n<!-- -->"
            text = text.replace(found[0], block)
            PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
