"""One living process a job; `study status` sees what each does."""

import os
from pathlib import Path

from levelfield.storage.lock import Lock, running


def test_a_job_is_held_by_one_process_and_says_what_it_does(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "arcface/run0/fold1", "arcface run 0 fold 1")
    assert lock.acquire()
    (now,) = running(tmp_path)
    assert (now["process"], now["title"]) == (os.getpid(), "arcface run 0 fold 1")
    assert not Lock(tmp_path, "arcface/run0/fold1", "the same").acquire()
    other = Lock(tmp_path, "arcface/run0/fold2", "arcface run 0 fold 2")
    assert other.acquire()
    assert len(running(tmp_path)) == 2
    other.release()
    lock.release()
    assert running(tmp_path) == []
    with Lock(tmp_path, "arcface/run0/fold1", "again") as again:
        assert again.held


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Lock(tmp_path, "test", "test").acquire()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert (tmp_path / "locks" / "test.lock").exists()
    assert running(tmp_path) == []
    with Lock(tmp_path, "test", "test") as lock:
        assert lock.held
