"""`levelfield data prepare` from a server on this machine, end to end, for data sets in miniature."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest
from file_server import FileServer, serving
from PIL import Image

from levelfield.cli.data import named_datasets
from levelfield.cli.main import main as levelfield
from levelfield.data import extract
from levelfield.data.datasets import CUB200, InShopClothes, Omniglot
from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.lock import Lock


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as files:
        yield files


@pytest.fixture
def prepare(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs the command below `tmp_path`: (exit code, what it printed and complained)."""

    def prepare(name: str, *words: str) -> tuple[int, str]:
        code = levelfield(["data", "prepare", name, "--root", str(tmp_path / "data"), *words])
        return code, "".join(capsys.readouterr())

    return prepare


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(ZipInfo(name), content)  # the same bytes whenever it is made
    return buffer.getvalue()


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return buffer.getvalue()


def birds() -> bytes:
    """The archive of CUB-200-2011 with two species of two images each."""
    paths = [f"{species}/{species[4:]}_000{number}.jpg" for species in ("001.Jay", "002.Wren") for number in (1, 2)]
    return zip_of(
        {
            "CUB_200_2011/images.txt": "".join(f"{i} {path}\n" for i, path in enumerate(paths, 1)).encode(),
            "CUB_200_2011/image_class_labels.txt": b"1 1\n2 1\n3 2\n4 2\n",
            "CUB_200_2011/classes.txt": b"1 001.Jay\n2 002.Wren\n",
            "attributes.txt": b"1 has_bill\n",
            **{f"CUB_200_2011/images/{path}": picture() for path in paths},
        }
    )


@pytest.fixture
def small_cub(server: FileServer, monkeypatch: pytest.MonkeyPatch):
    """Makes `cub200` come from the server: give the content, what its checksum is believed to be, and faults."""

    def small_cub(content: bytes, believed: bytes | None, **faults: object) -> None:
        (official,) = CUB200.archives
        digest = hashlib.sha256(believed).hexdigest() if believed is not None else None
        url = server.url("CUB_200_2011.tgz", content, **faults)
        monkeypatch.setattr(CUB200, "archives", (replace(official, url=url, size=None, sha256=digest),))
        monkeypatch.setattr(CUB200, "num_classes_published", 2)
        monkeypatch.setattr(CUB200, "num_samples_published", 4)

    return small_cub


def test_a_data_set_is_fetched_checked_unpacked_and_counted(prepare, small_cub, server, tmp_path: Path) -> None:
    small_cub(birds(), birds())
    code, printed = prepare("cub200")
    assert code == 0, printed
    assert "licence: non-commercial research and education" in printed
    assert "CUB_200_2011.tgz: SHA-256 as published" in printed
    assert f"cub200: 2 classes, 4 samples in {tmp_path}/data/cub200, as published" in printed
    assert sorted(path.name for path in (tmp_path / "data" / "cub200").iterdir()) == ["CUB_200_2011", "attributes.txt"]
    assert levelfield(["data", "verify", "cub200", "--root", str(tmp_path / "data")]) == 0
    asked = len(server.requests)
    assert prepare("cub200")[0] == 0
    assert len(server.requests) == asked  # nothing to do


def test_a_damaged_folder_is_prepared_again_after_moving_it_away(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(birds(), birds())
    assert prepare("cub200")[0] == 0
    folder = tmp_path / "data" / "cub200"
    (folder / "CUB_200_2011" / "images.txt").unlink()
    mine = tmp_path / "CUB_200_2011.tgz"
    mine.write_bytes(birds())
    for words in ((), ("--archive", str(mine))):
        code, printed = prepare("cub200", *words)
        assert code == 2
        assert f"move {folder} away, then download it again: levelfield data prepare cub200" in printed
    folder.rename(tmp_path / "away")
    assert prepare("cub200")[0] == 0


def test_one_process_prepares_a_data_set(prepare, small_cub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_cub(birds(), birds())
    free = []

    def unpack(*given, **options) -> None:
        free.append(Lock(cache_root(), "prepare-cub200", "").acquire())
        extract.unpack(*given, **options)

    monkeypatch.setattr("levelfield.data.prepare.unpack", unpack)
    assert prepare("cub200")[0] == 0
    assert free == [False]
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["cub200"], "the root has data sets only"


def test_a_wrong_checksum_leaves_nothing(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(birds(), b"other birds")
    code, printed = prepare("cub200")
    assert code == 2
    assert "CUB_200_2011.tgz has the SHA-256" in printed
    assert "(it has been deleted)" in printed
    assert [path for path in (tmp_path / "data/cub200").rglob("*") if path.is_file()] == []


def test_without_a_published_checksum_it_says_unverified(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(birds(), None)
    code, printed = prepare("cub200")
    assert code == 0
    assert "unverified: there is no published checksum; CUB_200_2011.tgz.sha256 records this one" in printed
    digest = hashlib.sha256(birds()).hexdigest()
    assert (tmp_path / "data/cub200/CUB_200_2011.tgz.sha256").read_text().split()[0] == digest


def test_what_is_gone_can_be_given_by_hand(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(birds(), birds(), statuses=[404])
    code, printed = prepare("cub200")
    assert code == 2
    assert "(HTTP 404 Not Found): download CUB_200_2011.tgz from https://www.vision.caltech.edu" in printed
    mine = tmp_path / "from a friend.tgz"
    mine.write_bytes(birds())
    code, printed = prepare("cub200", "--archive", str(mine))
    assert code == 0, printed
    assert mine.exists()  # what was given is left alone


def test_a_file_given_by_hand_is_checked_too(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(birds(), birds())
    mine = tmp_path / "CUB_200_2011.tgz"
    mine.write_bytes(birds()[:-1])
    code, printed = prepare("cub200", "--archive", str(mine))
    assert code == 2
    assert f"{mine} has the SHA-256" in printed
    assert mine.exists()


def test_an_archive_of_something_else(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(zip_of({"cats/1.jpg": picture()}), None)
    code, printed = prepare("cub200")
    assert code == 2
    assert "CUB_200_2011.tgz has no CUB_200_2011: download the archive from its publishers" in printed
    assert "records this one" not in printed
    assert sorted(path.name for path in (tmp_path / "data/cub200").rglob("*")) == [".download"]


def test_a_web_page_is_not_kept_and_not_recorded(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(b"<html>Too many users have viewed or downloaded this file recently</html>", None)
    code, printed = prepare("cub200")
    assert code == 2
    assert "CUB_200_2011.tgz is a web page instead of an archive" in printed
    assert [path for path in (tmp_path / "data/cub200").rglob("*") if path.is_file()] == []
    small_cub(birds(), None)
    assert prepare("cub200")[0] == 0


def test_an_archive_with_a_path_to_the_outside(prepare, small_cub, tmp_path: Path) -> None:
    small_cub(zip_of({"CUB_200_2011/images.txt": b"", "../../stolen": b"x"}), None)
    code, printed = prepare("cub200")
    assert code == 2
    assert "writes outside its folder, to ../../stolen: rejected" in printed
    assert not list(tmp_path.rglob("stolen"))


def test_counts_that_are_not_the_published_ones(prepare, small_cub, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cub(birds(), birds())
    monkeypatch.setattr(CUB200, "num_samples_published", 5)
    code, printed = prepare("cub200")
    assert code == 2
    assert "levelfield data verify cub200 shows what is wrong" in printed


def test_the_command_works_again_after_ctrl_c(
    prepare, small_cub, server, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    small_cub(birds(), birds(), stops=[500])

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("levelfield.data.download._stopped", interrupt)
        code, printed = prepare("cub200")
    assert code == 130
    assert "stopped; the same command starts the download again" in printed
    assert prepare("cub200")[0] == 0
    assert len(server.requests) == 2


def test_a_root_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert levelfield(["data", "prepare", "cub200", "--root", str(tmp_path / "data")]) == 2
    complained = capsys.readouterr().err
    assert f"{tmp_path}/data" in complained
    assert len(complained.splitlines()) == 1


def test_too_large_for_the_disk(prepare, small_cub, server, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cub(birds(), birds())
    monkeypatch.setattr(CUB200, "archives", (replace(CUB200.archives[0], size=1 << 50),))
    code, printed = prepare("cub200")
    assert code == 2
    assert "2,097,152.00 GiB are needed: free space or give another --root" in printed
    assert server.requests == []


def test_terms_that_a_person_has_to_agree_to(prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, printed = prepare("inshop")
    assert code == 2
    assert "download img.zip and list_eval_partition.txt yourself" in printed
    assert "levelfield data prepare inshop --archive img.zip --archive list_eval_partition.txt" in printed
    rows = [f"img/MEN/id_{item}/{side}.jpg  id_{item}" for item in (1, 2) for side in ("front", "back")]
    statuses = ("train", "train", "query", "gallery")
    listed = "".join(f"{row}  {status}\n" for row, status in zip(rows, statuses, strict=True))
    partition = tmp_path / "list_eval_partition.txt"
    partition.write_text(f"4\nimage_name item_id evaluation_status\n{listed}")
    images = tmp_path / "img.zip"
    images.write_bytes(zip_of({row.split()[0]: picture() for row in rows}))
    monkeypatch.setattr(InShopClothes, "num_classes_published", 2)
    monkeypatch.setattr(InShopClothes, "num_samples_published", 4)
    code, printed = prepare("inshop", "--archive", str(images), "--archive", str(partition))
    assert code == 0, printed
    assert "img.zip: unverified" in printed
    assert levelfield(["data", "verify", "inshop", "--root", str(tmp_path / "data")]) == 0


def test_a_file_that_is_used_as_it_is(prepare, server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archives = []
    for official in Omniglot.archives:
        content = zip_of({f"{official.file[:-4]}/Greek/character01/0001_01.png": picture()})
        digest = hashlib.sha256(content).hexdigest()
        archives.append(replace(official, url=server.url(official.file, content), size=None, sha256=digest))
    monkeypatch.setattr(Omniglot, "archives", tuple(archives))
    monkeypatch.setattr(Omniglot, "num_classes_published", 2)
    monkeypatch.setattr(Omniglot, "num_samples_published", 2)
    code, printed = prepare("omniglot")
    assert code == 0, printed
    folder = tmp_path / "data" / "omniglot"
    assert sorted(path.name for path in folder.iterdir()) == ["images_background.zip", "images_evaluation.zip"]
    whole = (folder / "images_background.zip").read_bytes()
    (folder / "images_background.zip").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"not a complete zip file .* levelfield data prepare omniglot"):
        Omniglot(tmp_path / "data").read_index()
    assert prepare("omniglot")[0] == 0
    assert (folder / "images_background.zip").read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "NAME"),
        (["cub200", "--archive", "nowhere.tgz", "--root", "."], "--archive nowhere.tgz: no such file"),
        (["cub200", "--archive", __file__, "--archive", __file__, "--root", "."], "cub200 needs CUB_200_2011.tgz"),
        (["cub200", "omniglot", "--archive", __file__], "--archive needs exactly one NAME"),
        (["cub200"], "cub200 needs a folder: give --root DIR, or set LEVELFIELD_DATA"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    assert levelfield(["data", "prepare", *words]) == 2
    complained = capsys.readouterr().err
    assert message in complained
    assert len(complained.splitlines()) == 1


def test_each_archive_has_a_checksum_or_says_that_none_is_known() -> None:
    for kind in named_datasets().values():
        for archive in kind.archives:
            assert archive.sha256 is None or len(bytes.fromhex(archive.sha256)) == 32
            assert archive.url is None or archive.url.startswith(("https://", "http://"))
            # Nothing is fetched without encryption that is not checked.
            assert archive.sha256 or not (archive.url or "").startswith("http://")
