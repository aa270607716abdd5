"""The time of a study's trainings, and the commands that repeat it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.analysis.conclusion import best_method
from levelfield.analysis.results import ResultRow
from levelfield.core.configuration import SHIPPED, shipped_files
from levelfield.core.source_identity import sources
from levelfield.data import datasets
from levelfield.data.dataset import has_root
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, folds_of
from levelfield.study.progress import duration
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, is_baseline

STAGES = {"trial": "search", "run": "runs"}


def costs(study: StudyFolder) -> list[dict[str, Any]]:
    """One row per method with its trainings and their time, without the tests, then a row for all."""
    found: dict[str, dict[str, Any]] = {}
    for job, result in study.state.results.items():
        for name in (job.method, "all"):
            row = found.setdefault(name, {"method": name, "trainings": 0, "search": 0.0, "runs": 0.0})
            row["trainings"] += 1
            row[STAGES[job.stage]] += result.get("seconds", 0.0)
    rows = [found[name] for name in [*(name for name in found if name != "all"), "all"] if name in found]
    for row in rows:
        seconds = row["search"] + row["runs"]
        row["each"] = f"{seconds / row['trainings']:.1f} s"
        row |= {name: duration(row[name]) if row[name] else "-" for name in ("search", "runs")}
        row["hours"] = f"{seconds / 3600:.2f}"
    return rows


def commands(study: StudyFolder, rows: list[ResultRow]) -> list[dict[str, str]]:
    """Purpose and words of each command."""
    results = study.state.results
    known = next((each["provenance"] for each in results.values() if each.get("provenance")), None)
    found = []
    if known is not None:
        found.append({"what": "Install the same versions", "words": _install(known)})
    shipped = _shipped_as(study.spec)
    if shipped is not None:
        words = f"levelfield study run {shlex.quote(shipped)}" + " --data.root DIR" * _has_root(study.spec)
        found.append({"what": "Run the study again", "words": words})
    folder = f"outputs/{study.folder.name}"
    name = shlex.quote(folder)
    found.append(
        {
            "what": "Write this page again, and check all numbers",
            "words": f"levelfield study report {name}\nlevelfield study verify {name}",
        }
    )
    trained = [method for method in study.spec.methods if not is_baseline(method)]
    if any(row.stage == "test" and row.method in trained for row in rows):
        best = best_method(rows, study.spec)
        job = folds_of(study.spec, best, 0)[0]
        own = {Path(file).parts[0] for file in sources(study.spec.class_settings(best))} - {"levelfield"}
        trust = "".join(f" --trust {name.removesuffix('.py')}" for name in sorted(own))
        path = shlex.quote(f"{folder}/{job.path}")
        found.append({"what": f"Repeat one training: {job}", "words": f"levelfield fit --config {path}/{CONFIG}"})
        found.append(
            {
                "what": "Search with its model",
                "words": f"levelfield search --ckpt_path {path}/best.ckpt{trust} --gallery IMAGES_OR_TEXTS --query ONE",
            }
        )
    return found


def _install(known: Mapping[str, Any]) -> str:
    code = known["code"]
    libraries = " ".join(f"{name}=={version}" for name, version in known["libraries"].items())
    own = f"pip install levelfield=={code['levelfield']}"
    if code["commit"]:
        own = f"git checkout {code['commit'][:12]}\npip install -e ."
    return f"{own} {libraries}"


def _has_root(spec: StudySpec) -> bool:
    """Whether the study's data set is a shipped one with a folder, `--data.root`."""
    dataset = next(iter(spec.methods.values()))["data"]["dataset"]
    name = dataset["class_path"] if isinstance(dataset, dict) else dataset
    kind = getattr(datasets, name.rpartition(".")[2], None)
    return kind is not None and has_root(kind)


def _shipped_as(spec: StudySpec) -> str | None:
    """The name of the shipped study with exactly these settings; None without one."""
    for name, path in shipped_files("study", [SHIPPED]).items():
        of_this_name = f"name: {spec.name}\n" in path.read_text(encoding="utf-8")
        if of_this_name and load_spec(path).configuration_hash() == spec.configuration_hash():
            return name.removeprefix("study/")
    return None
