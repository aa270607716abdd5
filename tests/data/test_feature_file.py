"""The file of features: computed once, by all that want it, whole or absent."""

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from levelfield.data import feature_file
from levelfield.data.datasets import Glyphs
from levelfield.data.feature_file import prepare_features
from levelfield.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


DATASET = Glyphs(num_classes=4)
INDEX = DATASET.read_index()
SAMPLES = len(INDEX.keys)
BATCH = 7


class Counted:
    """Batches of 7 with numbers of their own, and the first samples of the parts that were asked for."""

    def __init__(self, breaks_at: int | None = None, meet: threading.Barrier | None = None) -> None:
        self.asked: list[int] = []
        self.breaks_at, self.meet = breaks_at, meet

    def __call__(self, start: int, stop: int) -> Iterator[np.ndarray]:
        self.asked.append(start)
        if self.meet is not None and len(self.asked) == 1:
            self.meet.wait(10)
        whole = np.arange(SAMPLES * 5, dtype=np.float32).reshape(SAMPLES, 5)
        for first in range(start, stop, BATCH):
            if self.breaks_at is not None and first >= self.breaks_at:
                raise RuntimeError("killed")
            torch.rand(3)
            yield whole[first : min(first + BATCH, stop)]


def prepare(batches: Counted, **purpose: int) -> torch.Tensor:
    return prepare_features(DATASET, INDEX, purpose, BATCH, batches)


EXPECTED = torch.arange(SAMPLES * 5.0).reshape(SAMPLES, 5)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts of two batches."""
    monkeypatch.setattr(feature_file, "PART_SAMPLES", 10)
    return list(range(0, SAMPLES, 14))


def test_all_samples_are_there_in_order_and_made_once():
    made = Counted()
    assert torch.equal(prepare(made), EXPECTED)
    assert torch.equal(prepare(Counted(breaks_at=0)), EXPECTED)
    assert made.asked == [0]
    with pytest.raises(RuntimeError, match="killed"):
        prepare(Counted(breaks_at=0), other=1)


def test_parts_give_the_file_that_one_part_gives(cache: Path, small_parts: list[int], monkeypatch: pytest.MonkeyPatch):
    made = Counted()
    found = prepare(made)
    assert made.asked == small_parts
    assert len(small_parts) > 4
    (file,) = (path for path in cache.rglob("*.npy"))
    assert torch.equal(found, EXPECTED)
    content = file.read_bytes()
    file.unlink()
    monkeypatch.setattr(feature_file, "PART_SAMPLES", 2048)
    prepare(Counted())
    assert file.read_bytes() == content


def test_whether_there_is_a_file_changes_no_later_draw():
    torch.manual_seed(3)
    later = torch.rand(4)
    for _ in range(2):
        torch.manual_seed(3)
        prepare(Counted())
        assert torch.equal(torch.rand(4), later)


def test_whole_parts_of_a_killed_process_are_taken_up(cache, small_parts: list[int], capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match="killed"):
        prepare(Counted(breaks_at=28))
    capfd.readouterr()
    again = Counted()
    found = prepare(again)
    assert again.asked == small_parts[2:], "two parts were whole"
    assert f"computing the features of {SAMPLES - 28:,} samples once" in capfd.readouterr().err
    assert torch.equal(found, EXPECTED)
    assert [path.suffix for path in cache.rglob("*") if path.suffix in (".npy", ".tmp")] == [".npy"], "no part is left"


@pytest.mark.parametrize("damage", ["short", "zeros"])
def test_a_damaged_part_is_computed_again(damage: str, cache: Path, small_parts: list[int]):
    with pytest.raises(RuntimeError, match="killed"):
        prepare(Counted(breaks_at=28))
    first, _ = sorted(cache.rglob("*.npy"), key=lambda path: int(path.stem.rpartition("-")[2]))
    content = first.read_bytes()
    first.write_bytes({"short": content[:-4], "zeros": content[:128] + bytes(len(content) - 128)}[damage])
    again = Counted()
    assert torch.equal(prepare(again), EXPECTED)
    assert again.asked == [small_parts[0], *small_parts[2:]]


@pytest.mark.parametrize("damage", ["short", "foreign", "zeros", "one byte"])
def test_a_damaged_file_is_made_again(damage: str, cache: Path):
    prepare(Counted())
    (file,) = cache.rglob("*.npy")
    content = file.read_bytes()
    file.unlink()  # what is mapped stays
    damaged = {
        "short": content[:-4],
        "foreign": b"no array" * 100,
        "zeros": content[:128] + bytes(len(content) - 128),  # with the header of the array
        "one byte": content[:200] + bytes([content[200] ^ 1]) + content[201:],
    }
    file.write_bytes(damaged[damage])
    again = Counted()
    assert torch.equal(prepare(again), EXPECTED)
    assert again.asked == [0]


def test_two_that_come_at_once_share_the_parts(small_parts: list[int]):
    both_have_one = threading.Barrier(2)
    makers = [Counted(meet=both_have_one), Counted(meet=both_have_one)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(prepare, makers))
    assert sorted(makers[0].asked + makers[1].asked) == small_parts, "each part once"
    assert torch.equal(*found)


def test_no_room_is_one_line_and_leaves_nothing_behind(cache: Path):
    """A limit on the size of files stands for a full disk: the same system call fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write the features .* \(File too large\): ") as caught:
            prepare(Counted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.suffix in (".npy", ".tmp")]
