"""Model cards of a study's runs, after the test classes are evaluated: one in the folder of each run."""

from collections.abc import Mapping
from pathlib import Path

import levelfield.models
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import is_baseline
from levelfield.training.checkpoint import read_checkpoint
from levelfield.use.card import CARD, write_card


def write_study_cards(study: StudyFolder) -> list[Path]:
    """Write `jobs/METHOD/runN/README.md` of each tested run whose checkpoints are here.

    It keeps cards that are newer than the scores of the run. No result depends on a card.

    Returns:
        The cards that were written.

    Raises:
        UserError: a test result or a checkpoint is damaged.
    """
    written = []
    for method, run in study.tests():
        paths = [study.checkpoint(job) for job in folds_of(study.spec, method, run)]
        folder = study.test_file(method, run).parent.parent
        if is_baseline(method) or not all(path.is_file() and folder in path.parents for path in paths):
            continue
        scored = study.test_file(method, run).stat().st_mtime_ns
        if (folder / CARD).is_file() and (folder / CARD).stat().st_mtime_ns >= scored:
            continue
        checkpoints = [read_checkpoint(path) for path in paths]
        trunk = checkpoints[0]["hyper_parameters"].get("trunk")
        named = str(trunk.get("class_path")) if isinstance(trunk, Mapping) else ""
        kind = getattr(levelfield.models, named.rpartition(".")[2], None)
        written.append(write_card(folder, paths, checkpoints, getattr(kind, "modality", None)))
    return written
