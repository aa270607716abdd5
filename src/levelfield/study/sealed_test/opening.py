"""The last stage of a study: the test classes are opened, once, and every checkpoint is scored on them."""

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.data.features import FeatureSubset
from levelfield.data.subset import ClassSubset
from levelfield.errors import UserError
from levelfield.runtime.processes import LOOK_SECONDS
from levelfield.storage.atomic import write_json
from levelfield.storage.lock import Lock
from levelfield.storage.provenance import provenance, software
from levelfield.study.definition.spec import BASELINE, is_baseline
from levelfield.study.environment import check_environment
from levelfield.study.integrity import result_hashes
from levelfield.study.jobs.job import EMBEDDINGS_FILE, RESULT, Job, checkpoint_hash, folds_of, method_runs
from levelfield.study.jobs.projection import Projection
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.study.same_study import check_whole_study
from levelfield.study.sealed_test.scores import EmbeddedTest, score_run
from levelfield.study.tested import distance_of, read_test, tested_config, tested_hash, tested_path
from levelfield.training.build import TrainingCLI, build
from levelfield.training.checkpoint import has_frozen_trunk_of
from levelfield.training.embed import EmbeddedSet, embed
from levelfield.training.features import TrunkExtractor
from levelfield.training.learner import MetricLearner
from levelfield.training.trust import own_packages


def open_test_classes(
    record: StudyRecord,
    reopen: str | None,
    progress: StudyProgress,
    helped: Callable[[int], AbstractContextManager[None]],
    mixed_versions: bool,
    without_failed_runs: bool,
) -> None:
    """Score every run of a study whose jobs are done on the test classes; what an interrupted opening scored is kept.

    Args:
        helped: Lets other processes score runs of an opening too, while it is entered; the others are `run_study`'s.

    Raises:
        UserError: the test classes were opened before and `reopen` is None, a checkpoint or the version has changed, or
            runs failed.
        MethodsAdded: the study has got further methods, and is not done.
    """
    state = record.read_again()
    if state.to_do:
        raise UserError(f"{record.folder / state.to_do[0].path} is not done; resume the study first")
    checkpoints = _checkpoints(record)
    ledger, configuration = record.ledger, record.spec.configuration_hash()
    finished = ledger.finished(configuration, checkpoints, reopen)
    if finished and _Opening(record, finished, checkpoints, progress).score_stored():
        if reopen:
            progress.line(
                f'the test classes were opened for "{reopen}" and all is scored; another reason opens them again'
            )
        return
    if not without_failed_runs:
        _refuse_missing_runs(record)
    first = _built(record, next(iter(record.spec.methods)))
    record.check_data(first.datamodule.identity())  # with another training half, one may train on test classes
    check_environment(record, [(BASELINE, provenance(first.trainer, first.model))], mixed_versions)
    first.datamodule.check_test_half()
    with Lock(record.folder, "study", "study"):  # a method is added under this lock, and not after the opening
        check_whole_study(record)
        samples = first.datamodule.sealed_list_hash()
        number = ledger.open(configuration, checkpoints, reopen, result_hashes(state), samples)
    opening = _Opening(record, number, checkpoints, progress)
    with helped(number):
        opening.score()
    opening.check_same_samples(opening.scored(), opening.runs[0][0])
    ledger.finish(number)


def _refuse_missing_runs(record: StudyRecord) -> None:
    """What is tested once is tested whole, unless somebody says otherwise."""
    stay = "the test classes stay sealed while a run is missing:"
    leave = "or leave out what failed by --test-without-failed-runs"
    for job, why in record.state.failures("run").items():
        path = record.folder / job.path / RESULT
        raise UserError(f"{job} failed ({why}); {stay} delete {path} and resume to try it again, {leave}")
    for method in record.state.without_setting():
        raise UserError(f"{method}: no trial had a score, so it has no runs; {stay} mend the method, {leave}")


def take_part(record: StudyRecord, opening: int, progress: StudyProgress) -> None:
    """Score runs of an opening that another process has recorded in the ledger, until none is left."""
    _Opening(record, opening, _checkpoints(record), progress).score()


def _checkpoints(record: StudyRecord) -> dict[str, str]:
    """Path in the study's folder to SHA-256 of everything that is tested."""
    return {
        str(job.path): record.state.results[job]["checkpoint"]
        if job.method in record.archived
        else checkpoint_hash(record.folder, job, record.state.results[job])
        for method_run in record.state.tested_runs()
        for job in folds_of(record.spec, *method_run)
    }


def _built(record: StudyRecord, method: str) -> TrainingCLI:
    """A method as it was searched, built for its data and versions."""
    with tempfile.TemporaryDirectory() as folder:
        return build(tested_config(record, method), Path(folder), progress=False)


class _Opening:
    """One opening of the test classes. The ledger's line must be written before this is made."""

    def __init__(self, record: StudyRecord, number: int, checkpoints: dict[str, str], progress: StudyProgress) -> None:
        self.record = record
        self.folder, self.spec = record.folder, record.spec
        whole = {*record.state.tested_runs()}
        self.runs = [each for each in method_runs(self.spec) if each in whole]  # by method: each is built once
        self.number = number
        self.line = record.ledger.line_of(number)
        self.checkpoints = checkpoints
        self.progress = progress
        self._locks: dict[str, Lock] = {}
        self._scored: dict[tuple[str, int], dict[str, Any]] = {}
        self._test_data: tuple[str, TrainingCLI, DataLoader] | None = None  # one method's: each has a trunk

    def score(self) -> None:
        """Write the test scores of every run that this opening has not scored yet, sharing them with others."""
        while missing := [each for each in self.runs if each not in self._scored]:
            if not any(self.score_run(*each) for each in missing):
                time.sleep(LOOK_SECONDS)
            self.scored()

    def score_run(self, method: str, run: int) -> bool:
        """Score one run unless another process does; whether this one did."""
        part = str(tested_path(method, run).parent.relative_to("jobs"))
        lock = self._locks.setdefault(part, Lock(self.folder, part, "test"))
        if not lock.acquire():
            return False
        try:
            scored = self.scored()
            if (method, run) not in scored:
                self.check_same_samples(scored, method)
                if method in self.record.archived:
                    self.keep_scores(method, run)
                else:
                    self.write_scores(method, run, self.embeddings(folds_of(self.spec, method, run)))
        finally:
            lock.release()
        return True

    def score_stored(self) -> bool:
        """Score runs whose scores are lost by their stored embeddings, without a sample; whether that gave them all."""
        scored = self.scored()
        lost = {each: folds_of(self.spec, *each) for each in self.runs if each not in scored}
        stored = {each: map(self.stored, jobs) for each, jobs in lost.items()}
        whole = {each: [fold for fold in folds if fold is not None] for each, folds in stored.items()}
        if any(len(folds) < self.spec.folds for folds in whole.values()):
            return False
        for (method, run), folds in whole.items():
            self.write_scores(method, run, folds)
        return True

    def scored(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The test scores that this opening has written, in any process; each is read once."""
        for each in self.runs:
            if each not in self._scored:
                test = read_test(self.record, *each)
                if test is not None and test["opening"] == self.number:
                    self._scored[each] = test
        return self._scored

    def write_scores(self, method: str, run: int, folds: list[EmbeddedTest]) -> None:
        test = {
            "method": method,
            "stage": "test",
            "number": run,
            "opening": self.number,
            "ledger": self.line,
            "configuration": tested_hash(self.spec, method, run),
            "data": {"fingerprint": folds[0].data},
            "provenance": self.origin_of_scores(method),
            **score_run(folds, distance_of(self.record, method), self.spec.metrics),
        }
        write_json(self.folder / tested_path(method, run), test)

    def keep_scores(self, method: str, run: int) -> None:
        """Take an archived run's scores over: its checkpoints, which are not here, gave them on the same samples.

        Raises:
            UserError: they were other samples, or there are no scores.
        """
        path = self.folder / tested_path(method, run)
        test = read_test(self.record, method, run)
        if test is None or test["data"]["fingerprint"] != self.fingerprint(method):
            raise UserError(
                f"{path}: {'missing' if test is None else 'scored on other test samples than those here'}, and the "
                "checkpoints of this archived run are not here to score again; unpack the archive into another folder"
            )
        write_json(path, {**test, "opening": self.number, "ledger": self.line})

    def origin_of_scores(self, method: str) -> dict[str, Any]:
        """What computed a method's scores; the device too where its samples were embedded here."""
        if self._test_data is None or self._test_data[0] != method:
            return software()
        training = self._test_data[1]
        return provenance(training.trainer, training.model)

    def check_same_samples(self, scored: dict[tuple[str, int], dict[str, Any]], method: str) -> None:
        """Refuse to score the runs of one opening on different samples.

        Raises:
            UserError: names a run that was scored on others, and the remedy.
        """
        now = self.fingerprint(method)
        for each, test in scored.items():
            if test.get("data", {}).get("fingerprint", now) != now:
                raise UserError(
                    f"{self.folder / tested_path(*each)}: the test samples have changed on disk since this run "
                    'was scored; restore them, or test all runs again: --reopen-test "why"'
                )

    def stored(self, job: Job) -> EmbeddedTest | None:
        """A fold's test embeddings if this opening wrote them and they are whole."""
        try:
            return EmbeddedTest.load(self.folder / job.path / EMBEDDINGS_FILE, self.origin(job))
        except SafetensorError:
            return None

    def embeddings(self, jobs: list[Job]) -> list[EmbeddedTest]:
        """Test embeddings of a run's folds, from their `embeddings.safetensors` where this opening wrote them."""
        data = self.fingerprint(jobs[0].method)
        found = {job: self.stored(job) for job in jobs}
        missing = [job for job, embedded in found.items() if embedded is None or embedded.data != data]
        if missing:
            self.progress.start(f"test: {missing[0].method} run {missing[0].number}")
            for job, (samples, one_pca) in zip(missing, self.embed(missing), strict=True):
                embedded = EmbeddedTest(samples, self.is_query(job.method), data, one_pca)
                embedded.save(self.folder / job.path / EMBEDDINGS_FILE, self.origin(job))
                found[job] = embedded
        return [embedded for embedded in found.values() if embedded is not None]

    def origin(self, job: Job) -> dict[str, str]:
        """What an embeddings file must say it was made from to be used in this opening."""
        return {"checkpoint": self.checkpoints[str(job.path)], "opening": str(self.number)}

    def embed(self, jobs: list[Job]) -> list[tuple[EmbeddedSet, Tensor | None]]:
        """Embed the test samples with the checkpoints of folds of one method, reading each sample once for all.

        Returns:
            A fold each, with the embeddings of the PCA for all folds together where the fold's job kept one.
        """
        training, loader = self.read_test_data(jobs[0].method)
        device = training.trainer.strategy.root_device
        steps = self.progress.advance
        paths = [self.folder / job.checkpoint for job in jobs]
        frozen = is_baseline(jobs[0].method) or all(has_frozen_trunk_of(training.model, path) for path in paths)
        if frozen and training.datamodule.features:
            loader = training.datamodule.eval_dataloader(self.test_features(jobs[0].method))
        if is_baseline(jobs[0].method):
            features = embed(training.model.trunk, loader, device=device, progress=steps)
            found: list[tuple[EmbeddedSet, Tensor | None]] = []
            for path in paths:
                one = Projection.load_one(path)
                reduced = features._replace(embeddings=Projection.load(path)(features.embeddings))
                found.append((reduced, None if one is None else one(features.embeddings)))
            return found
        trust = own_packages(training.config_dump)  # the study's file is the user's
        shared = {"trunk": training.model.trunk} if frozen else {}  # it need not be built for each of them
        learners = [MetricLearner.load_from_checkpoint(path, trust=trust, **shared) for path in paths]
        together = embed(SideBySide(learners), loader, device=device, progress=steps)
        return [(together._replace(embeddings=each.contiguous()), None) for each in together.embeddings.unbind(1)]

    def is_query(self, method: str) -> Bool[Tensor, " samples"] | None:
        """Which test samples are searched for among the others; None where each is, among all others."""
        is_query = self.read_test_data(method)[0].datamodule.test_subset.is_query
        return None if is_query is None else torch.from_numpy(is_query)

    def fingerprint(self, method: str) -> str:
        """Fingerprint of the test samples."""
        data = self.read_test_data(method)[0].datamodule
        return data.dataset.fingerprint(data.test_subset.index)

    def test_features(self, method: str) -> ClassSubset:
        """The test samples as features of the method's trunk, made when the first is asked for."""
        training, _ = self.read_test_data(method)
        data = training.datamodule
        if not isinstance(data.test_subset, FeatureSubset):
            data.use_features(TrunkExtractor(training.model.trunk, training.trainer.strategy.root_device))
        return data.test_subset

    def read_test_data(self, method: str) -> tuple[TrainingCLI, DataLoader]:
        """The test samples as a method's configuration reads them."""
        if self._test_data is None or self._test_data[0] != method:
            self._test_data = None  # before the next is built
            training = _built(self.record, method)
            training.datamodule.setup("test")
            loader = training.datamodule.eval_dataloader(training.datamodule.test_subset)
            self._test_data = method, training, loader
        return self._test_data[1:]


class SideBySide(nn.Module):
    """Several learners on one batch: (batch, learners, embedding)."""

    def __init__(self, learners: list[MetricLearner]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)

    def forward(self, samples: Any) -> Float[Tensor, "batch learners embedding"]:
        trunks = {id(learner.trunk): learner.trunk for learner in self.learners}
        if len(trunks) == 1 and type(self.learners[0]).forward is MetricLearner.forward:
            return self.embed_features(self.learners[0].trunk(samples))  # type: ignore[operator]
        return torch.stack([learner(samples) for learner in self.learners], dim=1)

    def embed_features(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch learners embedding"]:
        return torch.stack([learner.embed_features(features) for learner in self.learners], dim=1)  # type: ignore[operator]
