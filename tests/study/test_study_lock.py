"""One living process a study; `study status` sees what it does."""

import os
from pathlib import Path

import pytest

from levelfield.errors import UserError
from levelfield.study.lock import StudyLock, running


def test_a_study_is_held_by_one_process_and_says_what_it_does(tmp_path: Path) -> None:
    with StudyLock(tmp_path) as lock:
        lock.describe("arcface run 0 fold 1")
        now = running(tmp_path)
        assert now is not None
        assert (now["process"], now["job"]) == (os.getpid(), "arcface run 0 fold 1")
        message = rf"another process \(process {os.getpid()}\) runs this study"
        with pytest.raises(UserError, match=message), StudyLock(tmp_path):
            pass
    assert running(tmp_path) is None
    with StudyLock(tmp_path):
        pass
