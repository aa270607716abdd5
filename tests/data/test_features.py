"""The file of features: made once, whole or absent."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from levelfield.data.datasets import Glyphs
from levelfield.data.features import prepare_features
from levelfield.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


DATASET = Glyphs(num_classes=4)
INDEX = DATASET.read_index()
SAMPLES = len(INDEX.keys)


class Counted:
    """Batches of 7 with numbers of their own, and how often they were asked for."""

    def __init__(self, breaks_at: int | None = None, wait: threading.Event | None = None) -> None:
        self.asked: list[int] = []
        self.breaks_at, self.wait = breaks_at, wait

    def __call__(self, view: int) -> Iterator[np.ndarray]:
        self.asked.append(view)
        if self.wait is not None:
            self.wait.wait(10)
        whole = np.arange(SAMPLES * 5, dtype=np.float32).reshape(SAMPLES, 5) + 1000 * view
        for start in range(0, SAMPLES, 7):
            if self.breaks_at is not None and start >= self.breaks_at:
                raise RuntimeError("killed")
            torch.rand(3)
            yield whole[start : start + 7]


def prepare(batches: Counted, views: int = 2, **purpose: int) -> torch.Tensor:
    return prepare_features(DATASET, INDEX, purpose, views, batches)


def test_all_views_of_all_samples_are_there_in_order_and_made_once():
    made = Counted()
    found = prepare(made)
    assert found.shape == (2, SAMPLES, 5)
    assert found[1, 8].tolist() == [1040, 1041, 1042, 1043, 1044]
    assert torch.equal(prepare(Counted(breaks_at=0)), found)
    assert made.asked == [0, 1]
    assert prepare(Counted(), other=1).equal(found)


def test_whether_there_is_a_file_changes_no_later_draw():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        prepare(Counted())
        states.append(torch.rand(4))
    assert torch.equal(*states)


def test_what_is_broken_off_leaves_no_file(cache: Path):
    with pytest.raises(RuntimeError, match="killed"):
        prepare(Counted(breaks_at=14))
    assert not [path for path in cache.rglob("*") if path.suffix in (".npy", ".tmp")]
    assert prepare(Counted()).shape == (2, SAMPLES, 5)


@pytest.mark.parametrize("damage", ["short", "empty", "foreign"])
def test_a_damaged_file_is_made_anew(damage: str, cache: Path):
    expected = prepare(Counted()).clone()
    (file,) = cache.rglob("*.npy")
    content = file.read_bytes()
    file.unlink()  # what is mapped stays
    file.write_bytes({"short": content[:-4], "empty": b"", "foreign": b"no array" * 100}[damage])
    again = Counted()
    assert torch.equal(prepare(again), expected)
    assert again.asked == [0, 1]


def test_two_that_come_at_once_make_it_once(cache: Path):
    begins = threading.Event()
    makers = [Counted(wait=begins), Counted(wait=begins)]
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda maker=maker: found.append(prepare(maker))) for maker in makers]
    for thread in threads:
        thread.start()
    begins.set()
    for thread in threads:
        thread.join(30)
    assert sorted(len(maker.asked) for maker in makers) == [0, 2]
    assert torch.equal(*found)


def test_no_room_is_one_line_and_leaves_nothing_behind(cache: Path):
    """A limit on the size of files stands for a full disk: the same system call fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write the features .* \(File too large\): make room") as caught:
            prepare(Counted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.suffix in (".npy", ".tmp")]
