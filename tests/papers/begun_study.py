"""A study whose first runs have written their whole configuration; nothing is trained."""

import json
from dataclasses import asdict
from pathlib import Path

import yaml

from levelfield.core.configuration import set_dotted
from levelfield.study.jobs import Job
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec


def begun(folder: Path, file: Path, **changes: object) -> StudySpec:
    spec = load_spec(file)
    hashes = dict(spec.row_hashes)
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(spec.to_yaml())
    for method, config in spec.methods.items():
        config["model"].setdefault("distance", "cosine")  # defaults that a job's file has
        config["model"].setdefault("miner", None)
        config["data"].setdefault("sampler", "levelfield.data.MPerClassSampler")
        loss = config["model"].get("loss")
        if isinstance(loss, dict) and "weight_init" in loss.get("init_args", {}):
            loss["init_args"].setdefault("class_fraction", 1.0)
        for key, value in changes.items():
            config = set_dotted(config, key.replace("__", "."), value)
        place = folder / (job := Job(method, "run", 0, 0)).path
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        result = {**asdict(job), "configuration": hashes[method], "parameters": {}, "seed": 0, "seconds": 1.0}
        (place / "result.json").write_text(json.dumps({**result, "checkpoint": "", "validation": {"map_at_r": 0.5}}))
        (place / "best.ckpt").touch()
    return spec
