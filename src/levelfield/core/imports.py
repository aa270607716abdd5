"""Import torch and its libraries without their unused dependencies."""

import atexit
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from logging import getLogger
from types import ModuleType
from typing import Any

# Large packages of which levelfield needs little: attributes that need no import (KNOWN), and the modules that are
# enough, in import order (PIECES). Lightning and levelfield use two classes of torchmetrics, whose other metrics import
# scipy.signal and transformers.
KNOWN: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "torchmetrics": lambda: {"__version__": version("torchmetrics"), "_logger": getLogger("torchmetrics")},
}
# timm imports wandb for a function that is never called, and works without it.
HIDDEN = ("wandb",)
PIECES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "torchmetrics": {
        "torchmetrics.utilities": (),
        "torchmetrics.metric": ("Metric",),
        "torchmetrics.collections": ("MetricCollection",),
    },
}


class _InPieces(Loader):
    """Runs the whole package only when a name outside its pieces is requested."""

    def __init__(self, whole: Loader) -> None:
        self.whole = whole
        self.state = "waits"

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self.whole
        vars(module).update(KNOWN[spec.name](), __getattr__=lambda name: self.find(module, name))

    def find(self, module: ModuleType, name: str) -> Any:
        pieces = PIECES.get(module.__name__, {})
        if self.state == "waits" and any(name in names for names in pieces.values()):
            self.state = "piece"
            try:
                for piece, names in pieces.items():
                    found = import_module(piece)
                    vars(module).update({each: getattr(found, each) for each in names})
            except (ImportError, AttributeError):  # in another version they need the whole package: start again
                for other in [other for other in sys.modules if other.startswith(f"{module.__name__}.")]:
                    del sys.modules[other]
            self.state = "waits"
        if self.state == "waits" and name not in vars(module):
            self.state = "whole"
            try:
                self.whole.exec_module(module)
            except Exception:
                self.state = "waits"  # the next request gets the same error
                raise
        if name in vars(module):
            return vars(module)[name]
        raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'", name=name, obj=module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in KNOWN else None
        if spec is not None and spec.loader is not None:
            spec.loader = _InPieces(spec.loader)
        return spec


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import torch and its libraries in two thirds of the time.

    Imported objects stay, so garbage collection during imports is wasted time. Packages in `PIECES` import these
    modules now and the rest on first use. A package in `HIDDEN` is missing until the end of the context.
    """
    collects, young, finder = gc.isenabled(), "torch" not in sys.modules, _Finder()
    hidden = [name for name in HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None means a missing module
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in hidden:
            sys.modules.pop(name, None)
        if collects:
            if young:  # a new process, which has few other objects
                gc.freeze()
                atexit.register(gc.unfreeze)  # libraries warn about objects that are not destroyed at exit
            gc.enable()
