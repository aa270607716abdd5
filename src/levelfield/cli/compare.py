"""`levelfield compare PATH`: finds the best embedding for your data, from pretrained features to a trained trunk."""

import csv
import io
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from levelfield.cli.commands import MINUTES
from levelfield.cli.study import with_overrides
from levelfield.cli.study_output import Ending, answer
from levelfield.core.configuration import OURS, Config, merge, set_dotted, stack
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.core.processes import cores_here
from levelfield.core.terminal import say
from levelfield.experiment import Study
from levelfield.study.spec import COUNTS, STUDY

if TYPE_CHECKING:
    from levelfield.data.datasets import MetricDataset
    from levelfield.data.index import SampleIndex

MOST_NAMED = 20
# How a study file of `compare` begins.
WRITTEN = b"# Written by levelfield compare.\n"
USUAL_TRUNK = {"image": "efficientnet_lite0", "text": "minilm"}


def main(given: Namespace) -> int:
    """Run `levelfield compare` and return the exit code.

    Raises:
        UserError: a mistake, too few classes, or images that cannot be opened.
    """
    given.command = "run"
    given = with_overrides(given)
    if given.minutes is not None and not 0 < given.minutes < float("inf"):
        raise UserError(f"--minutes {given.minutes:g}: give a number above 0")
    path = given.file
    for key in given.overrides:
        _check_option(key, path)
    from levelfield.data.own import dataset_from_path  # imports torch, which the help does not need

    dataset = dataset_from_path(path, given.overrides.get("data.root"))
    if dataset is None:
        if not Path(path).exists():
            raise UserError(f"no file or folder '{path}'; correct the PATH")
        raise UserError(f"{path}: give a folder with one folder per class, or a .csv or .parquet table")
    if given.skip_broken and dataset.modality == "text":
        say(f"note: --skip-broken has no effect: {path} has texts, not images", file=sys.stderr)
    data = Path(path).resolve()
    name = f"compare_{data.stem if data.is_file() else data.name}"
    folder = given.output or Path("outputs", name)
    file = folder.with_name(f"{folder.name}.yaml")
    has_begun = (folder / STUDY).is_file() and file.is_file()
    if folder.is_file() or (file.exists() and not file.read_bytes().startswith(WRITTEN)):
        raise UserError(f"{folder if folder.is_file() else file} is a file of yours: choose another --output")
    split = _split(dataset, given.overrides)
    blocks = _blocks(path, dataset, split)
    dataset = _unbroken(path, dataset, split, given.skip_broken, file, has_begun)
    if has_begun:
        _check_begun(file, dataset, given)
    else:
        lines = _write_study(file, name, dataset, split, blocks, given)
        if not given.json:
            say(*lines)
    given.file = str(file)
    if not given.options and given.executor == "local":
        given.options = {"workers": cores_here()}
    return answer(given, Ending(["levelfield", "compare", *given.words], partial(_conclusion, dataset=dataset)))


def _check_option(key: str, path: str) -> None:
    section = key.partition(".")[0]
    if f"{key}.".startswith("data.dataset."):
        raise UserError(f"--{key}: PATH ({path}) gives the data; leave the option out")
    if section in ("model", "search", "second_searches") or key in (
        "folds",
        "runs",
        "selected_by",
        "trainer.max_epochs",
    ):
        raise UserError(
            f"--{key}: compare sets this itself from --trunk and --minutes; to set it, run a study: levelfield study "
            "run own_images_quick.yaml"
        )


def _split(dataset: "MetricDataset", overrides: Config) -> Config:
    """A random split of the classes, unless the data or an option give another."""
    keys = ("split", "split_seed", "keep_groups")
    given = {key: overrides[f"data.{key}"] for key in keys if f"data.{key}" in overrides}
    is_given = "split" in given or dataset.halves(dataset.index())[0] == "official"
    return given if is_given else {**given, "split": "random"}


def _write_study(
    file: Path, name: str, dataset: "MetricDataset", split: Config, blocks: int, given: Namespace
) -> Sequence[str]:
    """Measure, plan and write the study file; returns the plan's lines for the user."""
    import numpy as np

    from levelfield.use.ladder import HEADS, PAIR, definition, make_plan

    index = dataset.read_index()
    tested = int(np.isin(index.labels, dataset.halves(index, **split)[2]).sum())
    data: Config = {"data": {**_own_data(dataset, given.overrides.get("data.root")), **split}}
    for key, value in given.overrides.items():
        if key.startswith("data."):
            data = set_dotted(data, key, value)
    trunks = {
        Path(trunk).stem: stack(trunk, Path(), "--trunk")
        for trunk in given.trunk or [f"{OURS}trunk/{USUAL_TRUNK[dataset.modality]}.yaml"]
    }
    for file_of_trunk, settings in zip(given.trunk, trunks.values(), strict=False):
        if "trunk" not in settings.get("model", {}):
            raise UserError(
                f"--trunk {file_of_trunk} sets no model.trunk: give a file such as configs/trunk/minilm.yaml"
            )
    protocol = stack(HEADS, Path(), "compare")
    workers = given.options.get("workers", cores_here())
    budget = 60 * (given.minutes or MINUTES) * (workers if isinstance(workers, int) else cores_here())
    method = stack(f"{OURS}method/{PAIR}.yaml", Path(), "compare")
    base = merge(merge(protocol, data), {"model": method["model"]})
    plan = make_plan(dataset, index, tested, base, trunks, blocks, budget)
    content = definition(name, dataset.modality, data, trunks, plan)
    write_atomically(file, WRITTEN + yaml.safe_dump(content, sort_keys=False).encode())
    return plan.lines


def _check_begun(file: Path, dataset: "MetricDataset", given: Namespace) -> None:
    """Check that a comparison has begun with these data, and name the options that have no effect on it.

    Raises:
        UserError: it has begun with other data.
    """
    _, data, *_ = yaml.safe_load(file.read_bytes())["base"]
    there, here = (
        dict(each["dataset"]) for each in (data["data"], _own_data(dataset, given.overrides.get("data.root")))
    )
    if there != here:
        places = [next(iter(each["init_args"].values())) for each in (there, here)]
        raise UserError(f"{file} compares {places[0]}, not {places[1]}: choose another --output")
    for option, value in (("--minutes", given.minutes), ("--trunk", given.trunk)):
        if value:
            say(f"note: {option} has no effect: the comparison has begun with the plan in {file}", file=sys.stderr)


def _blocks(path: str, dataset: "MetricDataset", split: Config) -> int:
    """Blocks of classes that a fold can validate.

    Raises:
        UserError: too few classes for two blocks; names the command that still works.
    """
    from levelfield.data.splits import MIN_VALIDATION_CLASSES
    from levelfield.data.verify import counted

    index = dataset.read_index()
    classes = len(index.class_names)
    trained = classes - len(dataset.halves(index, **split)[2])
    blocks = min(COUNTS["folds"], trained // MIN_VALIDATION_CLASSES)
    if blocks >= 2:
        return blocks
    kind, key = _of(dataset)
    files = [f"configs/data/{kind}.yaml", f"configs/trunk/{USUAL_TRUNK[dataset.modality]}.yaml"]
    files += ["configs/protocol/heads.yaml", "configs/method/contrastive.yaml"]
    words = [part for file in files for part in ("--config", file)]
    fit = shlex.join(["levelfield", "fit", *words, f"--data.dataset.{key}", path, "--data.fold", "none"])
    raise UserError(
        f"{path} has {counted(classes, 'class')}, {trained} of them to train and validate; compare needs 4 there "
        f"(8 in all): add classes, or only train: {fit}"
    )


def _of(dataset: "MetricDataset") -> tuple[str, str]:
    """The file of configs/data for the data, and the argument that names them."""
    if dataset.modality == "text":
        return "own_texts", "table"
    return ("image_folder", "folder") if hasattr(dataset, "folder") else ("own_images", "table")


def _own_data(dataset: "MetricDataset", root: Any) -> Config:
    """The section `data` of the study."""
    from levelfield.data.dataset import find_file

    kind, key = _of(dataset)
    place = str(find_file(getattr(dataset, key), root).resolve())
    own = {"class_path": f"levelfield.data.datasets.{type(dataset).__name__}", "init_args": {key: place}}
    shipped = stack(f"{OURS}data/{kind}.yaml", Path(), "compare")["data"]
    shipped.pop("transforms", None)  # the plan sets the size of images
    return {**shipped, "dataset": own}


def _unbroken(
    path: str,
    dataset: "MetricDataset",
    split: Config,
    skip_broken: bool,
    file: Path,
    has_begun: bool,
) -> "MetricDataset":
    """The data set, or a table of those images that can be opened, written next to the study file.

    A study that has begun opens only images that are not in its table.

    Raises:
        UserError: some cannot be opened, and `skip_broken` is not set; or the study has begun with other images.
    """
    from levelfield.data.datasets import ImageTable

    chosen = file.with_name(f"{file.stem}_unbroken.csv")
    if has_begun and not chosen.is_file():
        return dataset
    before = chosen.read_bytes() if has_begun else b""
    index = dataset.read_index()
    listed = {row["path"] for row in csv.DictReader(io.StringIO(before.decode(), newline=""))}
    whole = _openable(path, dataset, index, skip_broken, listed)
    if whole.all():
        return dataset
    table = _table(dataset, index, split, whole)
    if has_begun and table != before:
        raise UserError(
            f"{file.with_suffix('')} has begun with other images (listed in {chosen}) than those in {path} that open "
            "now: choose another --output"
        )
    write_atomically(chosen, table)
    return ImageTable(chosen)


def _openable(path: str, dataset: "MetricDataset", index: "SampleIndex", skip_broken: bool, listed: Set[str]) -> Any:
    """Which samples can be opened. It opens all before training, because the test half would fail only at the end.

    Args:
        listed: files that opened before.

    Raises:
        UserError: some cannot, and `skip_broken` is not set.
    """
    import numpy as np

    broken: dict[int, str] = {}
    if dataset.modality == "image":
        for position, key in enumerate(index.keys):
            try:
                if not listed or _place(dataset, key) not in listed:
                    dataset.load(key)
            except UserError as error:
                broken[position] = str(error)
    named = list(broken.values())[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        named.append(f"and {len(broken) - MOST_NAMED:,} more (all: levelfield data verify {path})")
    say(*named, file=sys.stderr)
    if broken and not skip_broken:
        raise UserError(
            f"{len(broken):,} of {len(index.keys):,} images in {path} cannot be opened: replace them, or skip them "
            "with --skip-broken"
        )
    if broken:
        say(f"{len(broken):,} of {len(index.keys):,} images are left out", file=sys.stderr)
    return ~np.isin(np.arange(len(index.keys)), list(broken))


def _table(dataset: "MetricDataset", index: "SampleIndex", split: Config, whole: Any) -> bytes:
    """A table of the images that can be opened; each class keeps its half."""
    tested = set(dataset.halves(index, **split)[2].tolist())
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["path", "label", "split", *(["role"] if index.roles else [])])
    for position in whole.nonzero()[0].tolist():
        label = int(index.labels[position])
        role = [index.roles[position]] if index.roles else []
        half = "test" if label in tested else "train"
        writer.writerow([_place(dataset, index.keys[position]), index.class_names[label], half, *role])
    return table.getvalue().encode()


def _place(dataset: "MetricDataset", key: str) -> str:
    file = dataset.file_of(key)
    assert file is not None  # each sample is an image
    if file.suffix.lower() == ".parquet":
        raise UserError(f"{file} has the images themselves: remove the rows that cannot be opened from it")
    return str(file.parent.resolve() / file.name)  # does not resolve a link to another image


def _conclusion(finished: Study, dataset: "MetricDataset") -> tuple[list[str], list[str]]:
    """The decision with its table, and the next commands."""
    from levelfield.compare.decide import decide, decision_lines, rungs
    from levelfield.compare.whole_half import whole_half_command
    from levelfield.study.jobs import CHECKPOINT, CONFIG, Job
    from levelfield.study.spec import ALPHA, is_baseline
    from levelfield.training.trust import user_packages

    study = finished.record()
    table = rungs(study)
    decision = decide(table)
    if is_baseline(decision.row):
        from levelfield.use.untrained_checkpoint import write_untrained_checkpoint

        written = write_untrained_checkpoint(study, decision.row)
        checkpoint = finished.folder / written.relative_to(study.folder)
    else:
        checkpoint = finished.folder / Job(decision.row, "run", 0, 0).path / CHECKPOINT
    trusted = user_packages(yaml.safe_load(checkpoint.with_name(CONFIG).read_bytes()))
    embed = ["levelfield", "predict", "--ckpt_path", str(checkpoint)]
    embed += [word for name in sorted(trusted) for word in ("--trust", name)]
    lines = [f"checkpoint: {checkpoint} (fold 0): {decision.of_fold}"]
    if study.spec.trains(decision.row) or ALPHA in study.spec.derived.get(decision.row, {}):
        fit = whole_half_command(study, decision.row, finished.folder)
        lines.append(f"or train it on all training classes first: {shlex.join(fit)}")
    return decision_lines(decision, table, study.spec), [*lines, f"next: embed with it: {shlex.join(embed)}"]
