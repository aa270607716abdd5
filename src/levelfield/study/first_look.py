"""Build every row once before the first job, to find mistakes before anything is computed."""

import tempfile
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levelfield.core.errors import UserError
from levelfield.data.loaders import ClassSubset
from levelfield.study.jobs import Job, job_config
from levelfield.study.spec import StudySpec, is_baseline
from levelfield.study.state import first_config
from levelfield.study.workers import GivenUp, in_words
from levelfield.training.build import SharedParts, Training, build
from levelfield.training.learner import MetricLearner
from levelfield.training.start import check_parts


@dataclass(frozen=True)
class Seen:
    """The data and weights that the results will depend on.

    Attributes:
        data: Row to its training half, as in `MetricDataModule.identity()`.
        weights: Row to the origin of its trunk's weights.
        overview: Lines with the counts of the data set.
    """

    data: Mapping[str, dict[str, Any]]
    weights: Mapping[str, str | None]
    overview: list[str]


def look_at_rows(spec: StudySpec, own: Collection[str], given_up: GivenUp, rows: Iterable[str] | None = None) -> Seen:
    """Build every row and read the data's index once.

    Args:
        own: Rows with the user's classes. If one raises an error, the study continues without it.
        rows: The rows to build; None builds all.

    Raises:
        UserError: a row cannot be built, a loss returns no loss, or the data cannot be used.
    """
    kept, seen = SharedParts(), dict[str, Training]()
    with tempfile.TemporaryDirectory() as folder:
        for row in spec.rows if rows is None else rows:
            try:
                if spec.whole_half and spec.trials(row):  # runs and trials have different settings
                    build(job_config(spec, Job(row, "run", 0, 0), {}), Path(folder), progress=False, kept=kept)
                seen[row] = build(first_config(spec, row), Path(folder), progress=False, kept=kept)
            except UserError:
                raise
            except (Exception, SystemExit) as error:
                if row not in own:
                    raise
                given_up.add(f"{row}, when building it", in_words(error), row, traceback.format_exc())
        if not seen:
            given_up.refuse()
        halves = {spec.halves[row]: training.datamodule for row, training in seen.items()}
        for data in halves.values():
            data.check_test_half()
        identities = {half: data.identity() for half, data in halves.items()}
        for row, training in seen.items():
            data = halves[spec.halves[row]]
            if is_baseline(row):
                continue
            training.datamodule.training_batches(data.train_subset.labels)
            if row in own and type(training.model).training_step is MetricLearner.training_step:
                _try_loss(row, training, data.train_subset, given_up)
    trunks = {row: getattr(training.model, "trunk", None) for row, training in seen.items()}
    weights = {row: getattr(trunk, "weights_origin", None) for row, trunk in trunks.items()}  # a user's may have none
    found = {row: half for row, half in spec.halves.items() if half in halves}  # a row that was given up has none
    return Seen(
        {row: identities[half] for row, half in found.items()},
        weights,
        data.overview(),
    )


def _try_loss(row: str, training: Training, subset: ClassSubset, given_up: GivenUp) -> None:
    """Call a loss once on random embeddings on the CPU; a failure counts only if the row trains on the CPU."""
    learner, labels = training.model, subset.labels
    drawn = [int(draw) for draw in next(iter(training.datamodule.training_batches(labels)))]
    batch = torch.from_numpy(labels[drawn])
    try:
        with torch.random.fork_rng(devices=[]):
            learner.build_loss(len(np.unique(labels)))
            check_parts(learner)
            noise = torch.nn.functional.normalize(torch.randn(len(batch), learner.embedding_size)).requires_grad_()
            learner.objective(noise, batch)
    except UserError:
        raise
    except (torch.OutOfMemoryError, MemoryError):
        pass  # perhaps temporary: a job without memory is tried again
    except (Exception, SystemExit) as error:
        if training.trainer.strategy.root_device.type == "cpu":
            given_up.add(f"{row}, its loss on random embeddings", in_words(error), row, traceback.format_exc())
