"""`levelfield compare PATH`: the laptop study on one's own data, and what it says to do."""

import csv
import io
import shlex
from collections.abc import Sequence, Set
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from levelfield.analysis.conclusion import decide, decision_lines, kind_of, usual_epochs
from levelfield.analysis.results import collect_rows
from levelfield.cli import study
from levelfield.cli.study_output import Ending
from levelfield.core.configuration import stack
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.storage.atomic import write_atomically
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import CONFIG, Job
from levelfield.study.spec import COUNTS, STUDY

if TYPE_CHECKING:
    from levelfield.data.datasets import MetricDataset
    from levelfield.data.index import SampleIndex

HELP = """\
usage: levelfield compare PATH [--KEY VALUE ...]

Which of 14 methods suits your data, and does training pay at all? A linear layer is trained on a frozen trunk, whose
features are computed once: 4 folds, 5 runs, the test classes scored once, at the end. The first line after the
training says what to use: the features as they are, a PCA of them, or a method. The same command goes on where it was
stopped.

  PATH                a folder with a folder a class, or a table (.csv, .parquet) with the columns path,label or
                      text,label; 16 classes or more for 4 folds

  --trunk FILE ...    another trunk, or several to compare: configs/trunk/convnext_tiny.yaml
  --skip-broken       leave out the pictures that cannot be opened; without it they are named and nothing is trained
  --output DIR        study folder (default: outputs/compare_<PATH>); the study file made for PATH lies beside it
  --search.trials N   search each method's arguments; without it they are those that did best
                      over seven data sets (configs/study/laptop/unsearched.yaml)

and all that `levelfield study run` takes: --executor.workers N, --folds N, --runs N, --add-method my_loss.MyLoss,
--dry-run.

  levelfield compare my_images --executor.workers 2
  levelfield compare my_texts.csv
  levelfield compare my_images --trunk configs/trunk/convnext_tiny.yaml configs/trunk/efficientnet_lite0.yaml
"""
MOST_NAMED = 20


def main(argv: Sequence[str]) -> int:
    """Run `levelfield compare` with `argv` (what follows `compare`) and return the exit code.

    Raises:
        UserError: a mistake, data that are too few to compare anything on, or pictures that cannot be opened.
    """
    if not argv or {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    path, words, trunks, skip_broken = _own_words(argv)
    given = study.parse(["run", path, *words])
    for key in given.overrides:
        if f"{key}.".startswith("data.dataset."):
            raise UserError(f"--{key}: {path} names the data; leave the option out")
    if trunks and "model.trunk" in given.overrides:
        raise UserError("--model.trunk takes the place of every --trunk: leave one of the two out")
    from levelfield.data.own import own_dataset  # with torch, which the help does not need

    root = given.overrides.get("data.root")
    dataset = own_dataset(path, root)
    if dataset is None:
        raise UserError(f"{path} is neither a folder with a folder a class nor a .csv or .parquet table; give one")
    if skip_broken and dataset.modality == "text":
        print(f"note: --skip-broken is passed over: {path} holds texts, and no pictures")
    index = dataset.read_index()
    split = given.overrides.get("data.split"), given.overrides.get("data.split_seed", 0)
    _check_classes(path, dataset, index, split, given.overrides.get("folds", COUNTS["folds"]))
    name = f"compare_{Path(path).resolve().stem}"
    file = (given.output or Path("outputs", name)).with_suffix(".yaml")
    has_begun = ((given.output or Path("outputs", name)) / STUDY).is_file()
    dataset = _unbroken(path, dataset, index, split, skip_broken, file, has_begun)
    write_atomically(file, yaml.safe_dump(_definition(name, dataset, root, trunks), sort_keys=False).encode())
    conclude = partial(_conclusion, dataset=dataset, split=split)
    return study.main(["run", str(file), *words], Ending(["levelfield", "compare", *argv], conclude))


def _own_words(argv: Sequence[str]) -> tuple[str, list[str], list[str], bool]:
    """The path, the words of `study run`, the trunks, and whether broken pictures are left out."""
    path, words = argv[0], list(argv[1:])
    if path.startswith("--"):
        raise UserError(f"levelfield compare {path}: give the PATH of your data first")
    trunks: list[str] = []
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--trunk=") else [word])]
    while "--trunk" in words:
        at = words.index("--trunk")
        named = list(takewhile(lambda word: not word.startswith("--"), words[at + 1 :]))
        if not named:
            raise UserError("--trunk: name one or more files, such as configs/trunk/convnext_tiny.yaml")
        trunks += named
        del words[at : at + 1 + len(named)]
    skip_broken = "--skip-broken" in words
    return path, [word for word in words if word != "--skip-broken"], trunks, skip_broken


def _check_classes(
    path: str, dataset: "MetricDataset", index: "SampleIndex", split: tuple[Any, int], folds: int
) -> None:
    """Refuse data with too few classes for the folds.

    Raises:
        UserError: says what can still be done.
    """
    from levelfield.data.splits import MIN_VALIDATION_CLASSES

    classes = len(index.class_names)
    trained = classes - len(dataset.test_classes(index, *split))
    if folds == 1 or trained >= folds * MIN_VALIDATION_CLASSES:
        return
    possible = trained // MIN_VALIDATION_CLASSES
    found = (
        f"{path} has {classes} classes, {trained} of them to train and validate on: too few for {folds} folds, which "
        f"need {folds * MIN_VALIDATION_CLASSES} there (in halves, {2 * folds * MIN_VALIDATION_CLASSES} in all)"
    )
    if possible > 1:
        raise UserError(f"{found}; with fewer folds: levelfield compare {shlex.quote(path)} --folds {possible}")
    kind, key, trunk = _of(dataset)
    files = [f"configs/data/{kind}.yaml", f"configs/trunk/{trunk}.yaml"]
    files += ["configs/protocol/laptop.yaml", "configs/method/contrastive.yaml"]
    words = [part for file in files for part in ("--config", file)]
    fit = shlex.join(["levelfield", "fit", *words, f"--data.dataset.{key}", path, "--data.fold", "none"])
    raise UserError(f"{found}; add classes, or train without comparing: {fit}")


def _of(dataset: "MetricDataset") -> tuple[str, str, str]:
    """Which configuration of configs/data the data have, the argument that names them, and the usual trunk."""
    if dataset.modality == "text":
        return "own_texts", "table", "minilm"
    kind, key = ("image_folder", "folder") if hasattr(dataset, "folder") else ("own_images", "table")
    return kind, key, "efficientnet_lite0"


def _unbroken(
    path: str,
    dataset: "MetricDataset",
    index: "SampleIndex",
    split: tuple[Any, int],
    skip_broken: bool,
    file: Path,
    has_begun: bool,
) -> "MetricDataset":
    """The data set, or a table of its pictures that open, beside the study file.

    Those that the table of a study that has begun lists are not opened again.

    Raises:
        UserError: some do not open, and `skip_broken` is not set; or the study has begun with others.
    """
    from levelfield.data.datasets import ImageTable

    chosen = file.with_name(f"{file.stem}_unbroken.csv")
    if has_begun and not (skip_broken and chosen.is_file()):
        return dataset
    before = chosen.read_bytes() if has_begun else b""
    listed = {row["path"] for row in csv.DictReader(io.StringIO(before.decode(), newline=""))}
    whole = _openable(path, dataset, index, skip_broken, listed)
    if whole.all():
        return dataset
    table = _table(dataset, index, split, whole)
    if has_begun and table != before:
        raise UserError(
            f"{file.with_suffix('')} has begun with other pictures than those of {path} that open now, as {chosen} "
            "lists them: choose another --output"
        )
    write_atomically(chosen, table)
    return ImageTable(chosen)


def _openable(path: str, dataset: "MetricDataset", index: "SampleIndex", skip_broken: bool, listed: Set[str]) -> Any:
    """Which samples open, looked at before anything is trained, for the test half would come last.

    Args:
        listed: files that were opened before.

    Raises:
        UserError: some do not, and `skip_broken` is not set.
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
        named.append(f"and {len(broken) - MOST_NAMED:,} more (levelfield data verify {path} names all)")
    print("\n".join(named), end="\n" * bool(named))
    if broken and not skip_broken:
        raise UserError(
            f"{len(broken):,} of {len(index.keys):,} pictures of {path} cannot be opened; mend them, or leave them "
            "out: --skip-broken"
        )
    if broken:
        print(f"{len(broken):,} of {len(index.keys):,} pictures are left out")
    return ~np.isin(np.arange(len(index.keys)), list(broken))


def _table(dataset: "MetricDataset", index: "SampleIndex", split: tuple[Any, int], whole: Any) -> bytes:
    """A table of the pictures that open, in the halves that all of them have."""
    tested = set(dataset.test_classes(index, *split).tolist())
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
    assert file is not None  # a picture each
    return str(file.parent.resolve() / file.name)  # a link to another picture stays one


def _definition(name: str, dataset: "MetricDataset", root: Any, trunks: Sequence[str]) -> dict[str, Any]:
    """The study file for a data set; several trunks are a sweep."""
    from levelfield.data.places import own_file

    _, key, _ = _of(dataset)
    place = str(own_file(getattr(dataset, key), root).resolve())
    own = {"class_path": f"levelfield.data.datasets.{type(dataset).__name__}", "init_args": {key: place}}
    definition: dict[str, Any] = {
        "name": name,
        "extends": "own_texts_quick.yaml" if dataset.modality == "text" else "own_images_quick.yaml",
        "base+": [{"data": {"dataset": own}}],
    }
    settings = {Path(trunk).stem: stack(trunk, Path(), "--trunk") for trunk in trunks}
    if len(settings) == 1:
        definition["base+"] += settings.values()
    elif settings:
        values = {
            trunk: {f"{section}.{part}": value for section, parts in config.items() for part, value in parts.items()}
            for trunk, config in settings.items()
        }
        definition |= {"sweep": {"model.trunk": values}}
    return definition


def _conclusion(finished: Study, dataset: "MetricDataset", split: tuple[Any, int]) -> tuple[list[str], list[str]]:
    """The decision, and below the table on how many classes it rests and the commands that follow from it."""
    import numpy as np

    from levelfield.training.trust import own_packages

    study = finished.record()
    rows = collect_rows(study)
    decision = decide(rows, study.spec)
    sizes = {row: _pca_sizes(study, row) for row in decision.gains if kind_of(row, study.spec) == "pca"}
    index = dataset.read_index()
    tested = index.labels[np.isin(index.labels, dataset.test_classes(index, *split))]
    below = [f"This rests on {len(np.unique(tested))} unseen classes with {len(tested):,} samples."]
    if kind_of(decision.row, study.spec) == "method":
        config = finished.folder / Job(decision.row, "run", 0, 0).path / CONFIG
        epochs = usual_epochs(study, decision.row)
        fit = ["levelfield", "fit", "--config", str(config), "--data.fold", "none", "--trainer.max_epochs", str(epochs)]
        fit += ["--name", study.folder.name]  # of two studies of the same data, each has its own
        below.append(f"next: train {decision.row} on all training classes: {shlex.join(fit)}")
        checkpoint, caption = Path("outputs/fit", study.folder.name, "0/best.ckpt"), "then embed"
    else:
        from levelfield.use.untrained_checkpoint import write_untrained_checkpoint

        written, caption = write_untrained_checkpoint(study, decision.row), f"next: embed with {decision.row}"
        checkpoint = finished.folder / written.relative_to(study.folder)
        config = checkpoint.with_name(CONFIG)
    embed = ["levelfield", "predict", "--ckpt_path", str(checkpoint)]
    trusted = own_packages(yaml.safe_load(config.read_bytes()))
    embed += [word for name in sorted(trusted) for word in ("--trust", name)]
    return decision_lines(decision, rows, study.spec, sizes), [*below, f"{caption}: {shlex.join(embed)}"]


def _pca_sizes(study: StudyFolder, row: str) -> tuple[int, int]:
    """From how many numbers a PCA goes to how many: fewer than was asked for if there are fewer samples."""
    from levelfield.study.projection import Projection

    components = Projection.load(study.checkpoint(Job(row, "run", 0, 0))).components_FC
    assert components is not None
    before, after = components.shape
    return before, after
