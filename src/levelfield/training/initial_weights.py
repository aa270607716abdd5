"""Start a training from the weights of a checkpoint, and check which classes these were trained on."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levelfield.core.configuration import flatten, init_args, texts
from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.core.ledger import Evaluation, begin
from levelfield.core.paths import strip_paths
from levelfield.core.processes import is_first_rank
from levelfield.data.datamodule import MetricDataModule
from levelfield.training.checkpoint import load_weights, one_line, read_checkpoint
from levelfield.training.frozen_trunk import with_trunk
from levelfield.training.import_paths import class_named
from levelfield.training.trust import check_content

# Arguments that decide which weights a learner has; a plain module has others, and its weights must fit.
ARCHITECTURE = ("trunk", "embedder", "embedding_size")
DATA_MUST_AGREE = ("num_folds", "split", "fold", "train_classes", "val_classes", "fingerprint")


def start_from_checkpoint(
    path: Path | str, learner: Any, datamodule: MetricDataModule, config: Mapping[str, Any]
) -> None:
    """Give a learner the weights of a checkpoint, as `fit --ckpt_path` does; no optimizer state and no epochs.

    The weights of the loss are used if loss, data set and training classes are the same. Otherwise the loss starts from
    scratch.

    Args:
        config: The configuration of the new training, with all defaults.

    Raises:
        UserError: the checkpoint has another architecture or data set, or has seen a test class.
    """
    checkpoint = read_checkpoint(path)
    if "datamodule_hyper_parameters" not in checkpoint or checkpoint["levelfield"].get("data") is None:
        raise UserError(f"'{path}' was trained on your own loaders: use MetricLearner.load_from_checkpoint in Python")
    then, now = strip_paths(checkpoint["hyper_parameters"]), strip_paths(config["model"])
    data = checkpoint["levelfield"]["data"]
    with one_line(path):
        shared = [key for key in ARCHITECTURE if key in then and key in now]
        given = dict(flatten({key: now[key] for key in shared}))
        for key, trained in flatten({key: then[key] for key in shared}):
            if not key.endswith(".weights"):  # the origin of pretrained weights
                refuse_other(f"model.{key}", given.get(key), trained, path)
        trained = checkpoint["datamodule_hyper_parameters"]["dataset"]["class_path"]
        refuse_other("data.dataset", config["data"]["dataset"]["class_path"], trained, path)
        check_seen_classes(data, datamodule, path)
    # A plain module of another class has another loss; that of a learner made in Python may have no name.
    losses = [class_named(part.get("loss", part.get("learner"))) for part in (then, now)]
    with_loss = losses[0] is not None and losses[0] == losses[1] and has_same_classes(data, datamodule)
    if with_loss:
        learner.on_load_checkpoint(checkpoint)  # builds a loss with class weights
    load_weights(learner, with_trunk(checkpoint, path, getattr(learner, "trunk", None)), path, with_loss)
    learner.checkpoint_path, learner.has_weights = Path(path), True
    learner.trained_on = None  # is checked


def refuse_other_data(then: Mapping[str, Any], now: Mapping[str, Any], path: Path | str) -> None:
    """Raise UserError if the data on disk are not the training data of a checkpoint."""
    for key in DATA_MUST_AGREE:
        if then.get(key) != now[key]:
            raise UserError(f"the data set differs from that of '{path}' ({key}): give the same data, or fit again")


def refuse_other(key: str, given: Any, trained: Any, path: Path | str) -> None:
    """Raise UserError if a setting differs from that of a checkpoint; two paths may name one class."""
    if class_named(given) != class_named(trained):
        given, trained = (each.rpartition(".")[2] if isinstance(each, str) else each for each in (given, trained))
        raise UserError(f"--{key.replace('.init_args', '')} {given} contradicts '{path}' ({trained}): leave it out")


def has_same_classes(data: Mapping[str, Any], datamodule: MetricDataModule) -> bool:
    """Whether `data`, an earlier identity, has the data set and the training classes of a datamodule."""
    here = datamodule.identity()
    return all(data[key] == here[key] for key in ("dataset", "train_classes"))


def check_trained_classes(learner: Any, datamodule: MetricDataModule) -> None:
    """Check the classes that a learner was trained on before a fit in Python, as `start_from_checkpoint` does.

    If the training classes are others, the loss starts from scratch, with a warning.

    Raises:
        UserError: the learner has seen a test class, or its loss was not given as a class.
    """
    if learner.trained_on is None:
        return
    origin = learner.checkpoint_path or "the learner"
    check_seen_classes(learner.trained_on, datamodule, origin)
    has_weights = learner.loss is not None and any(True for _ in learner.loss.parameters())
    if not has_weights or has_same_classes(learner.trained_on, datamodule):
        return
    if learner.loss_factory is None:
        raise UserError(f"{type(learner.loss).__name__} has weights of other classes: give it as a class or partial")
    learner.loss, learner.num_classes = learner.loss_without_classes(), None
    warnings.warn(f"'{origin}' was trained on other classes: its loss starts from scratch", stacklevel=2)


def check_seen_classes(data: Mapping[str, Any], datamodule: Any, path: Path | str) -> None:
    """Warn if weights were trained on a class of the validation fold. Record it if they have seen none of the class.

    Such a class can be a test class of the checkpoint, as with `split: all`: its score is a test score.

    It only warns of test classes too if the weights are of another folder or table: equal names may be other classes.
    A datamodule of another kind is not checked, because it names no classes.

    Raises:
        UserError: they were trained on, or selected by, a test class of the same data set; or the ledger's line cannot
            be written.
    """
    if not isinstance(datamodule, MetricDataModule):
        return
    here, trained_on = datamodule.identity(), set(data["train_classes"])
    if data["dataset"]["class_path"] != here["dataset"]["class_path"]:
        return
    is_own = not {"folder", "table"}.isdisjoint(init_args(here["dataset"]))
    is_other = is_own and data["dataset"] != here["dataset"]
    otherwise = ", unless these are other classes of the same names" if is_other else ""
    if seen := sorted((trained_on | set(data["val_classes"])) & set(datamodule.test_classes())):
        message = f"'{path}' has seen {len(seen)} of the test classes (such as {seen[0]!r})"
        if not otherwise:
            raise UserError(f"{message}: give other weights")
        warnings.warn(message + otherwise, stacklevel=2)
    if seen := sorted(trained_on & set(here["val_classes"])):
        message = f"'{path}' was trained on {len(seen)} classes of the validation fold (such as {seen[0]!r})"
        warnings.warn(f"{message}: validation scores are too high{otherwise}", stacklevel=2)
    unseen = set(here["val_classes"]) - trained_on - set(data["val_classes"])
    if unseen and is_first_rank():
        dataset, file = datamodule.dataset, Path(path)
        index = dataset.read_index()
        classes = [number for number, name in enumerate(index.class_names) if name in unseen]
        samples = list(dataset.contents_of(index.select(np.isin(index.labels, classes)).keys))
        checkpoints = {file.name: file_hash(file)} if file.is_file() else {}
        begin(Evaluation(dataset.name, samples, "validation of unseen classes", checkpoints))


def check_weight_files(config: Any, datamodule: MetricDataModule) -> None:
    """`check_seen_classes` for each `weights` in a learner's configuration that is a checkpoint of levelfield."""
    given = [Path(text).expanduser() for key, text in texts(config) if key.rpartition(".")[2] == "weights"]
    for path in filter(Path.is_file, given):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, pickle.UnpicklingError):  # another format or a pickled module, not of levelfield
            continue
        if isinstance(content, dict) and "levelfield" in content:
            check_content(content, path)
            if (data := content["levelfield"].get("data")) is not None:
                check_seen_classes(data, datamodule, path)
