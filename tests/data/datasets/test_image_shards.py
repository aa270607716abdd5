"""Pictures in tar files: by their places, in any order, from a folder, a server and a store; and what is refused."""

import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

from levelfield.data import ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageShards
from levelfield.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 255 - number, 7)).save(file, "PNG")
    return file.getvalue()


def tar(file: Path, members: dict[str, bytes]) -> Path:
    """As WebDataset's TarWriter writes: the members of a sample one after the other."""
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as writing:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            writing.addfile(member, io.BytesIO(content))
    return file


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two files of 20 pictures of 16 classes; labels as WebDataset's encoders write them."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(2):
        members = {}
        for sample in range(number * 20, number * 20 + 20):
            key = f"part/{99 - sample:04d}"
            label = {"label": sample % 16, "by": "me"} if sample % 2 else sample % 16
            members[key + (".json" if sample % 2 else ".cls")] = json.dumps(label).encode()
            members[f"{key}.PNG" if sample == 5 else f"{key}.png"] = picture(sample)
        members[f"part/{number}.txt"] = b"?"
        tar(folder / f"birds-{number:03d}.tar", members)
    return folder


def check(dataset: ImageShards) -> None:
    index = dataset.read_index()
    assert index.class_names == tuple(map(str, range(16)))
    assert index.left_out == ("2 left out: .txt, neither a picture nor a label",)
    assert list(index.keys) == sorted(index.keys)
    assert index.keys[0] == "birds-000.tar/part/0080.png"
    assert index.keys[39] == "birds-001.tar/part/0079.png"
    for key, label in list(zip(index.keys, index.labels, strict=True))[::-7]:
        sample = 99 - int(key[-8:-4])
        assert label == sample % 16
        assert dataset.load(key).getpixel((0, 0)) == (sample, 255 - sample, 7)
        assert dataset.size_of(key) == len(picture(sample))


def test_a_folder_of_tar_files(shards: Path) -> None:
    check(ImageShards(shards))
    check(pickle.loads(pickle.dumps(ImageShards(shards))))
    by_numbers = ImageShards(str(shards / "birds-{000..001}.tar"))
    check(by_numbers)
    half = by_numbers.read_index().select(np.arange(0, 40, 3))
    assert half.keys == tuple(by_numbers.read_index().keys[0:40:3])
    # By the places of the index that both come from, and by a search for each key.
    half = by_numbers.read_index().select(np.arange(0, 40, 3))
    assert by_numbers.fingerprint(half) == ImageShards("birds-{000..001}.tar", root=shards).fingerprint(half)


def test_batches_of_loader_processes(shards: Path) -> None:
    def batches(workers: int, cache: bool) -> list:
        data = MetricDataModule(
            ImageShards(shards), batch_size=4, samples_per_class=2, steps_per_epoch=2, num_workers=workers, cache=cache,
            transforms=ImageTransforms(crop_size=8, resize=8),
        )  # fmt: skip
        data.setup("fit")
        return list(data.train_dataloader())

    expected = batches(0, cache=False)
    for other in (batches(1, cache=False), batches(0, cache=True)):
        for mine, its in zip(expected, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


def test_a_store_by_fsspec(shards: Path) -> None:
    store = fsspec.filesystem("memory")
    for file in shards.iterdir():
        store.pipe_file(f"/birds/{file.name}", file.read_bytes())
    check(ImageShards("memory://birds"))
    check(ImageShards("memory://birds/birds-{000..001}.tar"))
    assert ImageShards("memory://birds").file_of("birds-000.tar/part/0080.png") is None
    with pytest.raises(UserError, match=r"cannot read memory://birds/birds-002\.tar"):
        ImageShards("memory://birds/birds-{000..002}.tar").read_index()
    with pytest.raises(UserError, match="no tar file in memory://nothing"):
        ImageShards("memory://nothing").read_index()


@pytest.fixture
def server(shards: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server that answers ranges, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            content, span = (shards / self.path[1:]).read_bytes(), self.headers.get("Range")
            asked.append(f"{self.path} {span}")
            first, last = 0, len(content) - 1
            if span:
                first, last = (int(end) for end in span.removeprefix("bytes=").split("-"))
                last = min(last, len(content) - 1)
            self.send_response(206 if span else 200)
            if span:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            if with_body:
                self.wfile.write(content[first : last + 1])

        def log_message(self, *words: object) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}/birds-{{000..001}}.tar", asked
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_a_web_server(server: tuple[str, list[str]]) -> None:
    url, asked = server
    dataset = ImageShards(url)
    check(dataset)
    asked.clear()
    dataset.load("birds-001.tar/part/0079.png")
    size = len(picture(20))
    (one,) = asked
    first, last = map(int, one.rpartition("=")[2].split("-"))
    assert one.startswith("/birds-001.tar")
    assert last - first + 1 in (size, size + 1)  # servers differ in whether the last byte counts
    loader = torch.utils.data.DataLoader(
        range(2), num_workers=1, collate_fn=lambda keys: dataset.load("birds-000.tar/part/0080.png").size
    )
    assert next(iter(loader)) == (8, 8)  # a process that was forked asks for itself


def test_the_index_is_kept_until_a_file_changes(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ImageShards(shards).read_index()
    opened: list[str] = []
    whole = tarfile.open
    monkeypatch.setattr(
        tarfile,
        "open",
        lambda *words, **more: (
            opened.extend([more["fileobj"].name] if "fileobj" in more else []),
            whole(*words, **more),
        )[1],
    )
    assert len(ImageShards(shards).read_index().keys) == 40
    assert not opened
    tar(shards / "birds-001.tar", {"a.cls": b"0", "a.png": picture(3)})
    os.utime(shards / "birds-001.tar", (1, 1))
    assert len(ImageShards(shards).read_index().keys) == 21
    assert [Path(file).name for file in opened] == ["birds-001.tar"]


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        (
            {"a/1.png": b"?"},
            r"birds-000\.tar: a/1\.png has no label: put a/1\.cls beside it, or a/1\.json with a label",
        ),
        ({"1.png": b"?", "1.jpg": b"?", "1.cls": b"0"}, "1 has two pictures, 1.png and 1.jpg"),
        ({"1.png": b"?", "1.json": b"{"}, r'1\.json is not JSON with a "label"'),
        ({"1.png": b"?", "1.json": b'{"name": 1}'}, r'1\.json is not JSON with a "label" \(KeyError\)'),
        ({"1.png": b"?", "1.json": b'{"label": [1]}'}, r"1\.json has the label \[1\]: give a text or a whole number"),
        ({"1.png": b"?", "1.cls": b" "}, r"1\.cls: label is empty"),
        ({"1.png": b"?", "1.cls": b"\xff"}, r"1\.cls is not a text in UTF-8"),
        ({"1.txt": b"?"}, "no pictures in"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, members: dict[str, bytes], complaint: str) -> None:
    tar(tmp_path / "birds-000.tar", members)
    with pytest.raises(UserError, match=complaint):
        ImageShards(tmp_path / "birds-000.tar").read_index()


def test_files_that_cannot_be_read(tmp_path: Path, shards: Path) -> None:
    whole = (shards / "birds-000.tar").read_bytes()
    last = whole.rindex(b"IEND")  # within the last picture
    for content in (whole[:last], whole[:700], b"\x1f\x8b" + whole, b"?" * 2000):
        (shards / "birds-000.tar").write_bytes(content)
        with pytest.raises(UserError, match=r"birds-000\.tar is cut short, compressed or no tar file, after"):
            ImageShards(shards).read_index()
    with pytest.raises(UserError, match=r"cannot read .*gone\.tar \(No such file"):
        ImageShards(tmp_path / "gone.tar").read_index()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no tar file in .*empty: give the folder"):
        ImageShards(tmp_path / "empty").read_index()
    tar(shards / "birds-000.tar", {"1.cls": b"0", "1.png": b"no picture"})
    broken = ImageShards(shards / "birds-000.tar")
    with pytest.raises(UserError, match=r"birds-000\.tar: birds-000\.tar/1\.png is not an image"):
        broken.load(broken.read_index().keys[0])
    with pytest.raises(UserError, match=r"holds no birds-000\.tar/2\.png"):
        broken.load("birds-000.tar/2.png")
    os.utime(shards / "birds-000.tar", (1, 1))
    with pytest.raises(UserError, match=r"birds-000\.tar has changed: start again"):
        broken.load("birds-000.tar/1.png")


def test_verify_and_fit_take_them(shards: Path, run: Callable, tiny: list[str], tmp_path: Path) -> None:
    pattern = str(shards / "birds-{000..001}.tar")
    code, printed, _ = run("data", "verify", pattern)
    assert code == 0
    assert printed.startswith("image_shards: 16 classes, 40 samples; every sample opens")
    words = [
        *tiny,
        "--data.dataset",
        "ImageShards",
        "--data.dataset.shards",
        pattern,
        "--output",
        str(tmp_path / "out"),
    ]
    code, _, complaint = run("fit", *words, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1")
    assert code == 0, complaint
    (best,) = (tmp_path / "out").rglob("best.ckpt")
    code, _, complaint = run("validate", "--ckpt_path", best)
    assert code == 0, complaint
