"""Code, libraries and device behind a result."""

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import levelfield

# The packages of a training and a search; packages of a learner's classes are recorded too.
LIBRARIES = ("torch", "torchvision", "lightning", "timm", "numpy", "scipy", "optuna", "pillow")
_version = cache(version)  # which reads files


@cache  # a process computes with the code that it imported, even if the checkout changes
def code_version() -> dict[str, Any]:
    """Version of the package and, in a checkout, the commit and whether files differ from it."""

    def git(*arguments: str) -> str:  # without its lock: reading a checkout must not write its index
        command = ["git", "--no-optional-locks", "-C", str(Path(levelfield.__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    commit, modified = None, None
    with suppress(OSError, subprocess.SubprocessError):  # no git, or no checkout
        git("ls-files", "--error-unmatch", "__init__.py")  # else the commit may be of a repository around this package
        commit = git("rev-parse", "HEAD")
        modified = bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"levelfield": levelfield.__version__, "commit": commit, "modified": modified}


def library_versions(module: Any = None) -> dict[str, str]:
    """Versions of the libraries, and of the packages, except levelfield, that a network's classes come from."""
    parts = () if module is None else module.modules()
    packages = {type(part).__module__.partition(".")[0].replace("_", "-") for part in parts} - {"levelfield"}
    found: dict[str, str] = {}
    for name in (*LIBRARIES, *sorted(packages)):
        with suppress(PackageNotFoundError):  # the user's code, which a study identifies by its source
            found[name] = _version(name)
    return found


@cache
def processor() -> str:
    """The model of the CPU and the widest instructions that torch uses."""
    import torch

    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
