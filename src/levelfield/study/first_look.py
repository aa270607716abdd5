"""Build every row once before the first job, to find mistakes before anything is computed."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levelfield.core.errors import UserError
from levelfield.data.verify import check_test_split
from levelfield.study.jobs import Job, job_config
from levelfield.study.same_study import Seen
from levelfield.study.spec import StudySpec
from levelfield.study.state import first_config
from levelfield.study.workers import in_words
from levelfield.training.build import SharedParts, Training
from levelfield.training.learner import MetricLearner
from levelfield.training.start import check_parts


def look_at_rows(spec: StudySpec) -> Seen:
    """Build every row, call its loss once, and read the data's index once.

    Raises:
        UserError: a row cannot be built, a loss fails or returns no loss, or the data cannot be used.
    """
    kept, seen, halves, identities = SharedParts(), dict[str, Training](), dict[str, Any](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for row in spec.rows:
            try:
                if spec.whole_half and spec.trials(row):  # runs and trials have different settings
                    Training(job_config(spec, Job(row, "run", 0, 0), {}), Path(folder), kept=kept).build()
                seen[row] = Training(first_config(spec, row), Path(folder), kept=kept).build()
                data = halves.setdefault(spec.halves[row], seen[row].datamodule)
                identities[row] = data.identity()
                if spec.trains(row) and type(seen[row].model).training_step is MetricLearner.training_step:
                    _try_loss(seen[row], data.train_subset.labels)
            except UserError:
                raise
            except (Exception, SystemExit) as error:  # of a class, which may be the user's
                raise UserError(f"{row}, when building it or calling its loss: {in_words(error)}") from error
        for data in halves.values():
            check_test_split(data.half("test"))
    trunks = {row: getattr(training.model, "trunk", None) for row, training in seen.items()}
    weights = {row: getattr(trunk, "weights_origin", None) for row, trunk in trunks.items()}  # a user's may have none
    return Seen(identities, weights, data.overview())


def _try_loss(training: Training, labels: np.ndarray) -> None:
    """Call a loss once on random embeddings on the CPU; a failure counts only if the row trains on the CPU."""
    learner, drawn = training.model, next(iter(training.datamodule.training_batches(labels)))
    try:
        with torch.random.fork_rng(devices=[]):
            learner.build_loss(len(np.unique(labels)))
            check_parts(learner)
            noise = torch.nn.functional.normalize(torch.randn(len(drawn), learner.embedding_size)).requires_grad_()
            learner.objective(noise, torch.from_numpy(labels[[int(draw) for draw in drawn]]))
    except (torch.OutOfMemoryError, MemoryError):
        pass  # perhaps temporary: a job without memory is tried again
    except Exception as error:
        if isinstance(error, UserError) or training.trainer.strategy.root_device.type == "cpu":
            raise
