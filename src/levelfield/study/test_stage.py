"""The last stage of a study: the test classes are opened, once, and every checkpoint is scored on them."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.data.subset import ClassSubset
from levelfield.embedding import EmbeddedSet, embed
from levelfield.errors import UserError
from levelfield.learner import MetricLearner
from levelfield.study.atomic import write_json
from levelfield.study.baseline import load_pca, reduce
from levelfield.study.jobs import (
    EMBEDDINGS,
    Job,
    checkpoint_hash,
    folds_of,
    job_config,
)
from levelfield.study.ledger import Ledger
from levelfield.study.progress import StudyProgress
from levelfield.study.results import read_test, tested_hash, tested_path
from levelfield.study.spec import BASELINE, StudySpec
from levelfield.study.state import StudyState
from levelfield.study.test_scores import EmbeddedTest, score_run

if TYPE_CHECKING:
    from levelfield.training import TrainingCLI


def test_study(study_folder: Path, spec: StudySpec, reopen: str | None, progress: StudyProgress) -> None:
    """Score every run on the test classes; what an interrupted opening scored is kept.

    Args:
        study_folder: A folder whose jobs are all done.
        spec: The study.
        reopen: Why the test classes are opened another time, None for the first.
        progress: Shows what is being tested.

    Raises:
        UserError: the test classes were opened before and `reopen` is None, or a checkpoint has changed.
    """
    state = StudyState(study_folder, spec)
    if state.to_do:
        raise UserError(f"{study_folder / state.to_do[0].path} is not done; resume the study first")
    runs = state.tested_runs()
    checkpoints = {
        str(job.path): checkpoint_hash(study_folder, job, state.results[job])
        for method_run in runs
        for job in folds_of(spec, *method_run)
    }
    ledger = Ledger(study_folder / "ledger.jsonl")
    configuration = spec.configuration_hash()
    if reopen is None and (finished := ledger.finished(configuration, checkpoints)) is not None:
        tests = [read_test(study_folder, spec, *method_run) for method_run in runs]
        if all(test is not None and test["opening"] == finished for test in tests):
            return
    opening = ledger.open(configuration, checkpoints, reopen)
    _Opening(study_folder, spec, opening, checkpoints, progress).score(runs)
    ledger.finish(opening)


class _Opening:
    """One opening of the test classes. The ledger's line must be written before this is made."""

    def __init__(
        self, study_folder: Path, spec: StudySpec, number: int, checkpoints: dict[str, str], progress: StudyProgress
    ) -> None:
        self.study_folder = study_folder
        self.spec = spec
        self.number = number
        self.checkpoints = checkpoints
        self.progress = progress
        self._test_data: dict[str, tuple[TrainingCLI, DataLoader]] = {}

    def score(self, runs: list[tuple[str, int]]) -> None:
        """Write the test scores of every run that this opening has not scored yet."""
        for method, run in runs:
            before = read_test(self.study_folder, self.spec, method, run)
            if before is not None and before["opening"] == self.number:
                continue
            folds = self.embeddings(folds_of(self.spec, method, run))
            write_json(
                self.study_folder / tested_path(method, run),
                {
                    "method": method,
                    "stage": "test",
                    "number": run,
                    "opening": self.number,
                    "configuration": tested_hash(self.spec, method, run),
                    **score_run(self.spec, method, folds),
                },
            )

    def embeddings(self, jobs: list[Job]) -> list[EmbeddedTest]:
        """Test embeddings of a run's folds, from their `embeddings.safetensors` where this opening wrote them."""
        found = {job: EmbeddedTest.load(self.study_folder / job.path / EMBEDDINGS, self.origin(job)) for job in jobs}
        missing = [job for job, embedded in found.items() if embedded is None]
        if missing:
            self.progress.start(f"test: {missing[0].method} run {missing[0].number}")
            for job, samples in zip(missing, self.embed(missing), strict=True):
                embedded = EmbeddedTest(samples, self.is_query(job.method))
                embedded.save(self.study_folder / job.path / EMBEDDINGS, self.origin(job))
                found[job] = embedded
        return [embedded for embedded in found.values() if embedded is not None]

    def origin(self, job: Job) -> dict[str, str]:
        """What an embeddings file must say it was made from to be used in this opening."""
        return {"checkpoint": self.checkpoints[str(job.path)], "opening": str(self.number)}

    def embed(self, jobs: list[Job]) -> list[EmbeddedSet]:
        """Embed the test samples with the checkpoints of folds of one method, reading each sample once for all."""
        training, loader = self.test_data(jobs[0].method)
        device = training.trainer.strategy.root_device
        steps = self.progress.advance
        if jobs[0].method == BASELINE:
            features = embed(training.model.trunk, loader, device=device, progress=steps)
            projections = (load_pca(self.study_folder / job.checkpoint) for job in jobs)
            return [features._replace(embeddings=reduce(pca, features.embeddings)) for pca in projections]
        learners = [MetricLearner.load_from_checkpoint(self.study_folder / job.checkpoint) for job in jobs]
        together = embed(_SideBySide(learners), loader, device=device, progress=steps)
        return [together._replace(embeddings=each.contiguous()) for each in together.embeddings.unbind(1)]

    def is_query(self, method: str) -> Bool[Tensor, " samples"] | None:
        """Which test samples are searched for among the others; None where each is, among all others."""
        _, loader = self.test_data(method)
        assert isinstance(loader.dataset, ClassSubset)
        return None if loader.dataset.is_query is None else torch.from_numpy(loader.dataset.is_query)

    def test_data(self, method: str) -> "tuple[TrainingCLI, DataLoader]":
        """The test samples as a method's configuration reads them."""
        from levelfield.training import build

        if method not in self._test_data:
            with tempfile.TemporaryDirectory() as folder:
                training = build(job_config(self.spec, Job(method, "run", 0, 0), {}), Path(folder), progress=False)
                training.datamodule.setup("test")
                loader = training.datamodule.eval_dataloader(training.datamodule.test_subset)
            self._test_data[method] = training, loader
        return self._test_data[method]


class _SideBySide(nn.Module):
    """Several learners on one batch: (batch, learners, embedding)."""

    def __init__(self, learners: list[MetricLearner]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)

    def forward(self, samples: Any) -> Float[Tensor, "batch learners embedding"]:
        return torch.stack([learner(samples) for learner in self.learners], dim=1)
