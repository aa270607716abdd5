"""What a fork may delete (CONTRIBUTING.md): without it, tests that need it are skipped."""

import pytest
from tiny_fit import REPOSITORY

PAPERS, RESULTS = "papers", "results"
RAY, EXPORT = "src/levelfield/study/executors/ray.py", "src/levelfield/use/export.py"
PARTS = (PAPERS, RESULTS, "benchmarks", RAY, "scripts/slurm.sh", EXPORT)


def is_deleted(path: str) -> bool:
    """Whether a fork has deleted a file or folder of the repository."""
    return any(path.startswith(part) and not (REPOSITORY / part).exists() for part in PARTS)


def needs(part: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(is_deleted(part), reason=f"this fork has no {part}")
