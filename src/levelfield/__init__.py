"""levelfield: compare deep metric learning methods under equal conditions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield import losses, metrics, miners, regularizers
    from levelfield.data.datamodule import MetricDataModule
    from levelfield.experiment import Study
    from levelfield.metrics import retrieval_metrics
    from levelfield.training.learner import MetricLearner
    from levelfield.use.encoder import embed

__version__ = "0.1.0"
__all__ = [
    "MetricDataModule",
    "MetricLearner",
    "Study",
    "__version__",
    "embed",
    "losses",
    "metrics",
    "miners",
    "regularizers",
    "retrieval_metrics",
]
# Loaded when used: torch takes seconds to import.
_MODULES = {
    "MetricDataModule": "levelfield.data.datamodule",
    "MetricLearner": "levelfield.training.learner",
    "Study": "levelfield.experiment",
    "embed": "levelfield.use.encoder",
    "retrieval_metrics": "levelfield.metrics",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in __all__:
        return import_module(f"levelfield.{name}")
    raise AttributeError(f"module 'levelfield' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
