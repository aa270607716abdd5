"""A file of `benchmarks/` as a module, for the tests of what the docs show from it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def benchmark_module(name: str) -> ModuleType:
    """`benchmarks/<name>.py`, imported."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module
