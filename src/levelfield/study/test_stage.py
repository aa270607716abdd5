"""The last stage of a study: the test classes are opened, once, and every checkpoint is scored on them."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from levelfield.data.subset import ClassSubset
from levelfield.embedding import EmbeddedSet, embed
from levelfield.errors import UserError
from levelfield.learner import MetricLearner
from levelfield.metrics import retrieval_metrics
from levelfield.study.atomic import write_atomically, write_json
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

if TYPE_CHECKING:
    from levelfield.training import TrainingCLI

METRICS = ("map_at_r", "r_precision", "precision_at_1")


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
            for other in folds[1:]:
                assert torch.equal(other.index, folds[0].index)
                assert torch.equal(other.labels, folds[0].labels)
            labels = folds[0].labels
            distance, is_query = self.distance(method), self.is_query(method)
            separated = [score_samples(fold.embeddings, labels, is_query, distance) for fold in folds]
            together = concatenate([fold.embeddings for fold in folds])
            concatenated = score_samples(together, labels, is_query)
            write_json(
                self.study_folder / tested_path(method, run),
                {
                    "method": method,
                    "stage": "test",
                    "number": run,
                    "opening": self.number,
                    "configuration": tested_hash(self.spec, method, run),
                    "separated": [_scores(fold) for fold in separated],
                    "concatenated": _scores(concatenated),
                    "num_skipped": int(concatenated["num_skipped"]),
                },
            )

    def distance(self, method: str) -> Literal["cosine", "euclidean"]:
        """What the method's setting ranks separated embeddings by; concatenated ones are of unit length."""
        return "cosine" if method == BASELINE else self.spec.methods[method]["model"].get("distance", "cosine")

    def is_query(self, method: str) -> Bool[np.ndarray, " samples"] | None:
        """Which test samples are searched for among the others; None where each is, among all others."""
        _, loader = self.test_data(method)
        assert isinstance(loader.dataset, ClassSubset)
        return loader.dataset.is_query

    def embeddings(self, jobs: list[Job]) -> list[EmbeddedSet]:
        """Test embeddings of a run's folds, from their `embeddings.safetensors` where this opening wrote them."""
        found = {job: _read_embeddings(self.study_folder / job.path / EMBEDDINGS, self.origin(job)) for job in jobs}
        missing = [job for job, embedded in found.items() if embedded is None]
        if missing:
            self.progress.start(f"test: {missing[0].method} run {missing[0].number}")
            for job, embedded in zip(missing, self.embed(missing), strict=True):
                path = self.study_folder / job.path / EMBEDDINGS
                write_atomically(path, safetensors.torch.save(embedded._asdict(), metadata=self.origin(job)))
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


def score_samples(
    embeddings: Float[Tensor, "samples embedding"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[np.ndarray, " samples"] | None,
    distance: Literal["cosine", "euclidean"] = "cosine",
) -> dict[str, Any]:
    """Retrieval scores of the queries among the rest, or of each sample among all others where there are no queries."""
    if is_query is None:
        return retrieval_metrics(embeddings, labels, metrics=METRICS, distance=distance)
    asks = torch.from_numpy(is_query)
    gallery, gallery_labels = embeddings[~asks], labels[~asks]
    return retrieval_metrics(
        embeddings[asks], labels[asks], gallery, gallery_labels, metrics=METRICS, distance=distance
    )


def concatenate(folds: list[Float[Tensor, "samples embedding"]]) -> Float[Tensor, "samples folds*embedding"]:
    """Put the folds' L2-normalised embeddings side by side and normalise again."""
    return normalize(torch.cat([normalize(fold) for fold in folds], dim=1))


def _scores(found: dict[str, Any]) -> dict[str, float]:
    return {metric: float(found[metric]) for metric in METRICS}


def _read_embeddings(path: Path, origin: dict[str, str]) -> EmbeddedSet | None:
    if not path.exists():
        return None
    with safetensors.safe_open(path, framework="pt") as file:
        if file.metadata() != origin:
            return None
        return EmbeddedSet(*(file.get_tensor(name) for name in EmbeddedSet._fields))
