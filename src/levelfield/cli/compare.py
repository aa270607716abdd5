"""`levelfield compare PATH`: finds the best embedding for your data, from pretrained features to a trained trunk."""

import shlex
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from levelfield.analysis.all_classes import on_all_classes
from levelfield.analysis.verdict import DECISION
from levelfield.cli.commands import MINUTES
from levelfield.cli.study import run, with_overrides
from levelfield.compare.decide import decide, decision_lines, measured, rungs
from levelfield.compare.measure import Machine, machine_here
from levelfield.compare.plan import HEADS, LOSSES, ON_GPU, PAIR, TRUNK, Planner
from levelfield.compare.samples import A_MINUTE, blocks_of, data_settings, split_of, usable
from levelfield.core.configuration import OURS, Config, set_dotted
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically, write_json
from levelfield.core.terminal import say
from levelfield.data.dataset import MetricDataset
from levelfield.data.own import dataset_from_path
from levelfield.experiment import Study
from levelfield.study.executors import make_slots
from levelfield.study.jobs import CHECKPOINT, CONFIG, Job, failed
from levelfield.study.rows import load_spec
from levelfield.study.spec import ALPHA, STUDY
from levelfield.training.trust import user_packages
from levelfield.use.samples import USUAL_TRUNK, read_trunk

# How a study file of `compare` begins, before the place of its data.
WRITTEN = "# Written by levelfield compare, with the data of "


def main(given: Namespace) -> int:
    """Run `levelfield compare` and return the exit code."""
    given.command = "run"
    with_overrides(given)
    path, accelerator = given.path, given.overrides.get("trainer.accelerator")
    minutes = MINUTES if given.minutes is None else given.minutes
    if not 0 < minutes < float("inf"):
        raise UserError(f"--minutes {minutes:g}: give a number above 0")
    given.ends = time.monotonic() + 60 * minutes
    for key in given.overrides:
        _check_option(key, path)
    dataset = dataset_from_path(path, given.overrides.get("data.root"))
    if dataset is None:
        missing = "" if Path(path).exists() else "no such file or folder; "
        raise UserError(f"{path}: {missing}give a folder of class folders, or a .csv or .parquet table")
    if given.skip_broken and dataset.modality == "text":
        say(f"note: --skip-broken has no effect: {path} has texts, not images", file=sys.stderr)
    data = Path(path).resolve()
    name = f"compare_{data.stem if data.is_file() else data.name}"
    folder = given.output or Path("outputs", name)
    file = folder.with_name(f"{folder.name}.yaml")
    has_begun = (folder / STUDY).is_file() and file.is_file()
    first = file.read_text().partition("\n")[0] if file.is_file() else WRITTEN
    if folder.is_file() or not first.startswith(WRITTEN):
        raise UserError(f"{folder if folder.is_file() else file} is a file of yours: choose another --output")
    if has_begun:
        if first != f"{WRITTEN}{data}":
            raise UserError(f"{file} compares {first.removeprefix(WRITTEN)}, not {data}: choose another --output")
        for option, value in (("--minutes", given.minutes), ("--trunk", given.trunk)):
            if value:
                say(f"note: {option} has no effect: the comparison has begun with the plan in {file}", file=sys.stderr)
    else:
        split = split_of(dataset, given.overrides)
        blocks = blocks_of(path, dataset, split)
        machine = machine_here(given.options, accelerator)
        most = int(A_MINUTE[machine.kind, dataset.modality] * machine.cores * minutes)
        chosen = file.with_name(f"{file.stem}_samples.parquet")
        dataset = usable(path, dataset, split, most, given.skip_broken, chosen)
        _write_study(file, name, dataset, split, blocks, machine, given)
    threads = yaml.safe_load(file.read_bytes())["threads"]
    given.file, given.options = str(file), _options(given, machine_here(given.options, accelerator, threads))
    return run(given, partial(_conclusion, cheapest=given.cheapest))


def _check_option(key: str, path: str) -> None:
    if f"{key}.".startswith("data.dataset."):
        raise UserError(f"--{key}: PATH ({path}) gives the data; leave the option out")
    if f"{key}.".startswith(("model.", "search.", "trainer.max_epochs.")):
        raise UserError(
            f"--{key}: compare sets this itself from --trunk and --minutes; to set it, run a study: levelfield study "
            "run own_images_quick.yaml"
        )


def _write_study(
    file: Path, name: str, dataset: MetricDataset, split: Config, blocks: int, machine: Machine, given: Namespace
) -> None:
    """Measure, plan and write the study file; `given.replan` makes the plan again in its run."""
    index, place = dataset.read_index(), Path(given.path).resolve()
    tested = int(np.isin(index.labels, dataset.halves(index, **split)[2]).sum())
    data: Config = {"data": {**data_settings(dataset, given.overrides.get("data.root")), **split}}
    for key, value in given.overrides.items():
        if key.startswith("data."):
            data = set_dotted(data, key, value)
    usual = f"{OURS}trunk/{USUAL_TRUNK[dataset.modality]}.yaml"
    trunks = {Path(trunk).stem: read_trunk(trunk) for trunk in given.trunk or [usual]}
    if len(trunks) < len(given.trunk):
        raise UserError(f"--trunk {' '.join(given.trunk)}: several files have one name; rename all but one")
    base: list[Any] = [HEADS, *([ON_GPU] if machine.kind == "gpu" else []), data]
    heads = {f"trunk{number}": [LOSSES[PAIR], settings] for number, settings in enumerate(trunks.values())}
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder, "study.yaml")
        aside.write_text(yaml.safe_dump({"base": base, "methods": heads, "runs": 1}))
        spec = load_spec(aside, given.overrides)
    configs = dict(zip(trunks, spec.methods.values(), strict=True))
    planner = Planner(
        *(dataset, index, tested, base, trunks, configs, blocks, given.ends),
        lambda here: make_slots(replace(spec, threads=here.threads), given.executor, _options(given, here)),
    )
    plan = planner.plan(machine, given.executor == "local" and "workers" not in given.options)
    content = {"name": name, **plan.study}
    _write(file, place, content)
    say(*plan.lines, file=sys.stderr if given.json else None)

    def replan(job: Job, result: Mapping[str, Any], started: Sequence[Job]) -> int | None:
        if not job.method.startswith(TRUNK) or failed(result):
            return None
        begun = [each.fold for each in started if each.method in content["methods"] and each.method.startswith(TRUNK)]
        folds = plan.path.folds_again(plan.lengths, blocks, result["seconds"], begun, given.ends - time.monotonic())
        if folds != plan.lengths.folds:
            _write(file, place, content | {"folds": folds})
        return folds

    given.replan = replan


def _write(file: Path, data: Path, content: Config) -> None:
    write_atomically(file, f"{WRITTEN}{data}\n{yaml.safe_dump(content, sort_keys=False)}".encode())


def _options(given: Namespace, machine: Machine) -> Config:
    """The options of the executor, by default with a worker for each slot."""
    return {**({"workers": machine.slots} if given.executor == "local" else {}), **given.options}


def _conclusion(finished: Study, cheapest: bool) -> list[str]:
    """Write the decision, which the table of the study shows; returns the next commands."""
    study = finished.record()
    table = rungs(study)
    decision = decide(table, cheapest)
    checkpoint = finished.folder / Job(decision.best.row, "run", 0, 0).path / CHECKPOINT
    trusted = user_packages(yaml.safe_load(checkpoint.with_name(CONFIG).read_bytes()))
    embed = ["levelfield", "predict", "--ckpt_path", str(checkpoint)]
    embed += [word for name in sorted(trusted) for word in ("--trust", name)]
    lines = [f"checkpoint: {checkpoint} (fold 0)"]
    if study.spec.trains(decision.best.row) or ALPHA in study.spec.derived.get(decision.best.row, {}):
        fit, alpha = on_all_classes(study, decision.best.row, finished.folder)
        mean = "" if alpha is None else f", then take its mean with the start, alpha {alpha:g}"
        lines.append(f"or train it on all training classes first{mean}: {shlex.join(fit)}")
    sentences = decision_lines(decision, table, study.spec, measured(study, decision))
    of = study.spec.configuration_hash()
    write_json(study.folder / DECISION, {"of": of, "row": decision.best.row, "sentences": sentences})
    return [*lines, f"next: embed with it: {shlex.join(embed)}"]
