"""Where the units of a study run: on this machine or on a Ray cluster. An executor changes no result.

To add one, write a class with the methods of `workers.Slots`. Its first argument is the spec of the study, the others
are its options: `--executor my_slots.MySlots --executor.queue long`.
"""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from levelfield.core.errors import UserError, nearest
from levelfield.core.import_path import import_named
from levelfield.study.spec import StudySpec
from levelfield.study.workers import Here, Slots


def make_slots(spec: StudySpec, name: str = "local", options: Mapping[str, Any] | None = None) -> Slots:
    """The slots of `--executor NAME` with the options `--executor.KEY VALUE`; this process is the only one of `local`.

    Args:
        name: A file of this package (`local` with its class `Local`), or the import path of a class.

    Raises:
        UserError: no such executor, an unknown option or a wrong value.
    """
    from levelfield.training.settings import class_parser, parse

    path = name
    if "." not in name:
        shipped = [module.name for module in iter_modules([str(Path(__file__).parent)])]
        if name.lower() not in shipped:
            raise UserError(f"--executor {name}: no such executor{nearest(name, shipped)}")
        path = f"{__package__}.{name.lower()}.{name.title().replace('_', '')}"
    kind = import_named(path, f"--executor {name}")
    parser = class_parser(kind, "executor", skip={"spec"}, instantiate=False)
    slots = kind(spec, **parse(parser, {"executor": dict(options or {})}).executor.as_dict())
    return Here() if slots.number == 1 and path == f"{__package__}.local.Local" else slots


def on_cpu(spec: StudySpec) -> bool:
    """Whether all rows of a study are configured to train on the CPU."""
    return all(config["trainer"].get("accelerator") == "cpu" for config in spec.methods.values())


def devices_of_a_job(spec: StudySpec) -> int:
    """The most devices that a job of a study trains on."""
    return max(config["trainer"].get("devices", 1) for config in spec.methods.values())
