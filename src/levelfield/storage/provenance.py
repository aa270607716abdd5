"""Which code and which libraries computed a result."""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import levelfield

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from levelfield.learner import MetricLearner

LIBRARIES = ("torch", "torchvision", "lightning", "timm", "numpy")


def _git(*arguments: str) -> str | None:
    folder = Path(levelfield.__file__).parent
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache  # a process computes with the code that it imported, whatever the checkout turns into
def code_version() -> dict[str, Any]:
    """Version of the package and, where it lies in a checkout, the commit and whether files differ from it."""
    known: dict[str, Any] = {"levelfield": levelfield.__version__, "commit": None, "modified": None}
    # Installed into a virtual environment inside somebody's own repository, the commit would be theirs.
    if _git("ls-files", "--error-unmatch", "__init__.py") is not None:
        known["commit"] = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no")
        known["modified"] = None if changes is None else bool(changes)
    return known


@cache
def library_versions() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def provenance(trainer: "Trainer", learner: "MetricLearner") -> dict[str, Any]:
    """Code, libraries and device behind a result."""
    device = trainer.strategy.root_device
    return {
        "code": code_version(),
        "libraries": library_versions(),
        "device": str(device),
        "weights": getattr(learner.trunk, "weights_origin", None),  # a trunk of one's own may know none
    }
