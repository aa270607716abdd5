"""The last stage of a study: score its runs on the test classes in one evaluation.

`evaluate` writes and fsyncs the line of the ledger before any unit of work reads a test label.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.core.configuration import Config
from levelfield.core.errors import UserError
from levelfield.core.files import write_json
from levelfield.core.ledger import Evaluation, begin, finish, finished_evaluation, has_line
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.features import FeatureSubset
from levelfield.data.verify import check_test_split
from levelfield.study.folder import StudyFolder, scores_hash
from levelfield.study.jobs import EMBEDDINGS_FILE, RESULT, folds_of
from levelfield.study.test_scores import EmbeddedTest, score_folds
from levelfield.study.training_job import fixed_threads, memory_errors
from levelfield.study.workers import Line, Scheduler, Slots, Unit
from levelfield.training.build import Training
from levelfield.training.checkpoint import has_frozen_trunk_of, load_learner
from levelfield.training.embed import EmbeddedSet, TrunkExtractor, embed
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import embed_by_steps
from levelfield.training.trust import user_packages

FIRST = "first evaluation of this study"
CHANGED = "rows or results have changed since the last one"


@dataclass(frozen=True)
class RunTask:
    """One run in one evaluation, for any process.

    Args:
        study: Its folder and spec; nothing is read from it.
        config: The configuration of the row, with the setting that its search selected.
        checkpoints: The checkpoints of the folds, each with its SHA-256.
        evaluation: Id of the line in the ledger.
    """

    study: StudyFolder
    row: str
    run: int
    config: Config
    checkpoints: list[tuple[Path, str]]
    evaluation: str

    def stored(self) -> list[tuple[Path, dict[str, str]]]:
        """For each fold the file of its test embeddings and the origin that the file must have."""
        return [
            (path.with_name(EMBEDDINGS_FILE), {"checkpoint": content, "evaluation": self.evaluation})
            for path, content in self.checkpoints
        ]


def evaluate(study: StudyFolder, slots: Slots, line: Line, retest: str | None, without_failed: bool) -> None:
    """Score every run of a study whose jobs are finished; an interrupted evaluation continues with its scores.

    Args:
        line: Prints a message.
        retest: The reason for scoring all runs again.

    Raises:
        UserError: a checkpoint or the data have changed, or runs failed.
    """
    study.tests()  # raises an error if the ledger has lost an evaluation, before it gets another line
    configuration, checkpoints = study.spec.configuration_hash(), study.checkpoint_hashes()
    last = finished_evaluation(study.folder)
    same = last is not None and (last["configuration"], last["checkpoints"]) == (configuration, checkpoints)
    again = retest is not None and last is not None and retest != last["reason"]
    if last is not None and same and not again and not _Tests(study, last["id"]).to_do:
        return
    if not without_failed:
        _refuse_missing_runs(study)
    halves = _halves(study)
    what = Evaluation(
        data=next(iter(halves.values())).dataset.name,
        samples=_samples(halves.values()),
        by=f"study {study.spec.name}",
        checkpoints=checkpoints,
        configuration=configuration,
        reason=retest or "",
        results=study.result_hashes(),
    )
    identity = begin(what, study.folder, usual_reasons=(FIRST, CHANGED))
    tests = _Tests(study, identity)
    Scheduler(tests, slots, line).run()
    tests.check_same_samples()
    scores = {str(path.relative_to(study.folder)): scores_hash(test) for path, test in tests.scored.items()}
    finish(identity, scores, study.folder)


def _refuse_missing_runs(study: StudyFolder) -> None:
    """Raise an error if runs are missing, because the test classes are scored once."""
    stay = "the test classes are scored only when all runs are complete:"
    leave = "or score the others with --stop-here"
    for job, why in study.state.failures("run").items():
        path = study.folder / job.path / RESULT
        raise UserError(f"{job} failed ({why}); {stay} delete {path} and resume to try it again, {leave}")
    for row in study.state.without_setting():
        raise UserError(f"{row}: no trial had a score, so it has no runs; {stay} correct the method, {leave}")


def _halves(study: StudyFolder) -> dict[str, MetricDataModule]:
    """The data of each half of `StudySpec.halves`.

    Raises:
        UserError: a half has changed: a row may have trained on classes that are test classes now.
    """
    halves: dict[str, MetricDataModule] = {}
    for row in study.spec.methods:
        if (half := study.spec.halves[row]) not in halves:
            with tempfile.TemporaryDirectory() as folder:
                halves[half] = Training(study.test_config(row), Path(folder)).build().datamodule
            check_test_split(halves[half].half("test"))
    now = {half: data.identity()["fingerprint"] for half, data in halves.items()}
    for job, result in study.state.results.items():
        here = now[study.spec.halves[job.method]]
        if result.get("data", {}).get("fingerprint", here) != here:
            raise UserError(
                f"{study.folder / job.path}: the data on disk have changed since this job; restore them, or compute "
                f"the row again: --recompute {job.method}"
            )
    for row, run in study.state.tested_runs():
        if row not in study.archived:
            continue
        data, tested = halves[study.spec.halves[row]], study.read_test(row, run)
        if tested is None or tested["data"]["fingerprint"] != data.dataset.fingerprint(data.half("test")):
            what = "missing" if tested is None else "of other test samples than those here"
            raise UserError(
                f"{study.test_file(row, run)}: {what}, and {row} was not computed here; choose another --output"
            )
    return halves


def _samples(halves: Iterable[MetricDataModule]) -> list[str]:
    """Hashes of the test samples; a sample in several test halves counts once."""
    first, *others = (data.dataset.contents_of(data.half("test").keys) for data in halves)
    return [*first, *{sample for other in others for sample in other}.difference(first)]


class _Tests:
    """The runs of one evaluation as units of work. The ledger must already have its line.

    Attributes:
        scored: File to its scores.
        to_do: Name to the unit of each run that is not scored.
    """

    def __init__(self, study: StudyFolder, evaluation: str) -> None:
        self.study = StudyFolder(study.folder, study.spec)  # without the results, which no task needs
        self.scored: dict[Path, dict[str, Any]] = {}
        self.to_do: dict[str, Unit] = {}
        for row, run in study.state.tested_runs():
            file, known = study.test_file(row, run), study.read_test(row, run)
            if known is not None and row in study.archived:  # it keeps its scores, which are of the same samples
                known |= {"evaluation": evaluation}
                write_json(file, known)
            if known is not None and known["evaluation"] == evaluation:
                self.scored[file] = known
                continue
            jobs, config = folds_of(study.spec, row, run), study.test_config(row)
            checkpoints = [(study.checkpoint(job), study.state.results[job]["checkpoint"]) for job in jobs]
            task = RunTask(self.study, row, run, config, checkpoints, evaluation)
            self.to_do[f"test: {row} run {run}"] = Unit(f"test: {row} run {run}", row, score_run, (task,))

    def ready(self) -> Iterator[Unit]:
        return iter(list(self.to_do.values()))

    def add(self, unit: Unit, value: dict[str, Any]) -> None:
        del self.to_do[unit.name]
        self.scored[self.study.test_file(unit.row, value["number"])] = value
        self.check_same_samples()

    def check_same_samples(self) -> None:
        """Raise an error if the runs of one evaluation would be scored on different samples."""
        scored = [(path, self.study.spec.halves[test["method"]], test["data"]) for path, test in self.scored.items()]
        last = {half: data["fingerprint"] for _, half, data in scored}
        for other, half, data in scored:
            if data["fingerprint"] != last[half]:
                raise UserError(
                    f"{other}: the test samples on disk have changed since this run was scored; restore them, or score "
                    'all runs again: --reopen-test "REASON"'
                )


# The last row that this process has built in an evaluation, with its test samples: other runs of the row share them.
_built: list[tuple[tuple[str, Config], Training, DataLoader]] = []


def score_run(task: RunTask, earlier: tuple[str, ...] = ()) -> dict[str, Any]:
    """Embed the test samples with the folds of one run and score them; writes both and returns the scores.

    Raises:
        UserError: the ledger has no line of the evaluation.
    """
    with fixed_threads(task.study.spec.threads), memory_errors():
        training, loader = _test_data(task)
        data, device = training.datamodule, training.trainer.strategy.root_device
        fingerprint, known = data.dataset.fingerprint(data.test_subset.index), data.test_subset
        queries, groups = (None if each is None else torch.from_numpy(each) for each in (known.is_query, known.groups))
        files = task.stored()
        folds = [EmbeddedTest.load(*each) for each in files]
        missing = [n for n, fold in enumerate(folds) if fold is None or fold.data != fingerprint]
        paths = [task.checkpoints[n][0] for n in missing]
        embedded = list[EmbeddedSet]()
        if missing and not isinstance(training.model, MetricLearner):
            where = {"accelerator": device.type}
            embedded = [embed_by_steps(_load(path, training), loader, where) for path in paths]
        elif missing:
            embedded = _embed(paths, training, loader)
        for n, samples in zip(missing, embedded, strict=True):
            folds[n] = fold = EmbeddedTest(samples, queries, fingerprint, groups)
            fold.save(*files[n])
        whole, distance = [fold for fold in folds if fold is not None], task.config["model"].get("distance", "cosine")
        test = {
            **{"method": task.row, "stage": "test", "number": task.run, "evaluation": task.evaluation},
            "configuration": task.study.test_hash(task.row),
            "data": {"fingerprint": fingerprint},
            "provenance": training.provenance(),
            **score_folds(whole, distance, task.study.spec.metrics, device),
        }
        write_json(task.study.test_file(task.row, task.run), test)
        return test


def _test_data(task: RunTask) -> tuple[Training, DataLoader]:
    """The test samples for the configuration of a row. A study opens them only here."""
    if not has_line(task.evaluation, task.study.folder):
        raise UserError(f"{task.study.folder}: the ledger has no line {task.evaluation}, so no test label is read")
    key = task.evaluation, task.config
    if not _built or _built[0][0] != key:
        _built.clear()  # free memory before the next
        with tempfile.TemporaryDirectory() as folder:
            training = Training(task.config, Path(folder)).build()
        training.datamodule.setup("test")
        training.datamodule.evaluation = task.evaluation
        _built.append((key, training, training.datamodule.eval_dataloader(training.datamodule.test_subset)))
    return _built[0][1:]


def _embed(paths: list[Path], training: Training, loader: DataLoader) -> list[EmbeddedSet]:
    """Embed the test samples with several folds, reading each sample once."""
    model, data, device = training.model, training.datamodule, training.trainer.strategy.root_device
    frozen = all(has_frozen_trunk_of(model, path) for path in paths)
    if frozen and data.features:
        if not isinstance(data.test_subset, FeatureSubset):
            data.use_features(TrunkExtractor(model.trunk, device))
        loader = data.eval_dataloader(data.test_subset)
    shared = {"trunk": model.trunk} if frozen else {}  # build it only once
    learners = [_load(path, training, **shared) for path in paths]
    together = embed(SideBySide(learners), loader, device=device)
    return [together._replace(embeddings=each.contiguous()) for each in together.embeddings.unbind(1)]


def _load(path: Path, training: Training, **parts: Any) -> Any:
    """The model of a job. Its classes are trusted, because they come from the user's study file."""
    trust = user_packages(training.config_dump)
    return load_learner(type(training.model), path, trust=trust, parts=parts)


class SideBySide(nn.Module):
    """Several learners on one batch: (batch, learners, embedding)."""

    def __init__(self, learners: list[MetricLearner]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)

    def forward(self, samples: Any) -> Float[Tensor, "batch learners embedding"]:
        trunks = {id(getattr(learner, "trunk", None)) for learner in self.learners}
        if len(trunks) == 1 and type(self.learners[0]).forward is MetricLearner.forward:
            return self.embed_features(self.learners[0].trunk(samples))  # type: ignore[operator]
        return torch.stack([learner(samples) for learner in self.learners], dim=1)

    def embed_features(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch learners embedding"]:
        return torch.stack([learner.embed_features(features) for learner in self.learners], dim=1)  # type: ignore[operator]
