"""The configuration of a method with all defaults, from its first job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.core.configuration import read_yaml
from levelfield.core.files import file_hash
from levelfield.core.shape import count, has_shape
from levelfield.study.folder import JOB_SHAPE, read_result
from levelfield.study.jobs import CONFIG, RESULT, Job

SHAPE = {"model": {"trunk?": (str, dict)}, "data": {"steps_per_epoch": count}, "trainer": {"max_epochs": int}}


def class_name(value: Any) -> str:
    """`ArcFaceLoss` from an import path, with or without arguments."""
    path = value["class_path"] if isinstance(value, Mapping) else str(value)
    return path.rpartition(".")[2]


def whole_config(study_folder: Path, method: str) -> dict[str, Any] | None:
    """A method's configuration with every default; None if no job's file is complete."""
    for stage in ("run", "trial"):
        folder = study_folder / Job(method, stage, 0, 0).path
        result = read_result(folder / RESULT, JOB_SHAPE)
        path = folder / CONFIG
        if result is not None and path.is_file() and path.stat().st_size:
            if file_hash(path) != result.get("files", {}).get(CONFIG, file_hash(path)):
                continue
            config = read_yaml(path)
            if not has_shape(config, SHAPE):
                continue
            if result.get("data"):
                config["data"]["split"] = result["data"]["split"]  # the configuration may leave it to the data set
            return config
    return None
