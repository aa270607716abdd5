"""The configuration of a method with all defaults, from its first job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.core.configuration import SECTIONS, read_yaml
from levelfield.storage.file_hash import file_hash
from levelfield.study.jobs import CONFIG, RESULT, Job, read_result


def class_name(value: Any) -> str:
    """`ArcFaceLoss` from an import path, with or without arguments."""
    path = value["class_path"] if isinstance(value, Mapping) else str(value)
    return path.rpartition(".")[2]


def whole_config(study_folder: Path, method: str) -> dict[str, Any] | None:
    """A method's configuration with every default; None if no job's file is complete."""
    for stage in ("run", "trial"):
        folder = study_folder / Job(method, stage, 0, 0).path
        result = read_result(folder / RESULT, ())
        path = folder / CONFIG
        if result is not None and path.is_file() and path.stat().st_size:
            if file_hash(path) != result.get("files", {}).get(CONFIG, file_hash(path)):
                continue
            config = read_yaml(path)
            if not set(SECTIONS) <= set(config):
                continue
            if "split" in result.get("data", {}):
                config["data"]["split"] = result["data"]["split"]  # the configuration may leave it to the data set
            return config
    return None
