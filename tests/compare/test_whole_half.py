"""A study until done: how each training ended, who reached the cap, and what the folds choose for the whole half."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median_low
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refused import refuses, succeeded
from study_engine import PLAIN, run_study

from levelfield.analysis.all_classes import on_all_classes
from levelfield.analysis.conditions import cap_lines
from levelfield.analysis.status import status_lines
from levelfield.analysis.verify import verify_study
from levelfield.experiment import Study
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job
from levelfield.study.rows import load_spec

UNTIL_DONE = {"class_path": "levelfield.training.callbacks.UntilDone"}
UNTIL_DONE |= {"init_args": {"first": 2, "every": 4, "patience": 2}}


def study_of(folder: Path, epochs: int = 3, runs: int = 2) -> StudyFolder:
    given = {"trainer.max_epochs": epochs, "trainer.callbacks": [UNTIL_DONE], "model.embedder_lr": 0.1, "runs": runs}
    folder.mkdir()
    (folder / "until_done.yaml").write_text(PLAIN)
    return run_study(folder / "until_done", load_spec(folder / "until_done.yaml", given))


@pytest.fixture(scope="module")
def until_done(shared: Callable[[str, Callable[[Path], Any]], Path]) -> StudyFolder:
    return StudyFolder.begun(shared("until_done", study_of) / "until_done")


def test_trainings_say_how_they_ended_and_the_whole_half_takes_what_the_folds_chose(until_done, run, tmp_path) -> None:
    """Steps 2, 4 and 6: patience of 2 can end a training at the last of them only, where the first is the best.

    Or where the start is best, which the patience does not count.
    """
    files = sorted(until_done.folder.glob(f"jobs/contrastive/run*/fold*/{RESULT}"))
    endings = [json.loads(file.read_text())["ending"] for file in files]
    assert len(endings) == 4
    for ending in endings:
        assert ending["steps"] == 6
        if ending["best_step"] > 0:
            assert ending["stopped_by"] == ("patience" if ending["best_step"] == 2 else "cap")
    assert verify_study(until_done) == []
    words, alpha = on_all_classes(until_done, "contrastive", until_done.folder)
    steps = max(1, median_low(end["best_step"] for end in endings))
    assert (words[-2:], alpha) == (["--trainer.max_steps", str(steps)], None)
    refuses("contrastive", on_all_classes, StudyFolder(tmp_path, until_done.spec), "contrastive", tmp_path)
    # The third step is in the middle of an epoch of two.
    succeeded(run(*words[1:-1], "3", "--output", tmp_path, "--name", "whole"))
    best = torch.load(tmp_path / "fit/whole/0/best.ckpt", weights_only=True)
    assert best["global_step"] == 3
    assert len(best["levelfield"]["data"]["train_classes"]) == 16


@pytest.mark.slow
def test_table_page_and_status_say_who_reached_the_cap(tmp_path: Path) -> None:
    """Two validations, and a patience of two: no training can be done."""
    study = study_of(tmp_path / "capped", epochs=2, runs=1)
    (line,) = cap_lines(study)
    assert "2 of 2 trainings" in line
    assert "4 steps" in line
    assert line in "\n".join(status_lines(study))
    read = Study(study.folder)
    assert line in str(read.table())
    assert line in read.report().read_text()


def test_up_to_one_in_twenty_may_reach_the_cap() -> None:
    def lines(*results: dict[str, Any]) -> list[str]:
        of_runs = {Job("row", "run", number, 0): result for number, result in enumerate(results)}
        return cap_lines(SimpleNamespace(state=SimpleNamespace(results=of_runs)))

    capped, done = ({"ending": {"steps": 4000, "stopped_by": by}} for by in ("cap", "patience"))
    others = ({"ending": {"steps": 6}}, {"failure": "nan"}, {})  # of a fixed length, failed, and of a study of before
    assert lines(*others) == lines(*[capped] * 2, *[done] * 38) == []
    (line,) = lines(*[capped] * 3, *[done] * 37, *others)
    assert "3 of 40 trainings" in line
    assert "4,000 steps" in line
