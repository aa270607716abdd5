"""The data sets of texts as published, and what is wrong with texts, all of it at once."""

import json
import pickle
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from refused import refused
from tiny_text import own_texts, tiny_text_model

from levelfield.core.errors import UserError
from levelfield.data.datasets import CLINC150, WOS134, Banking77, News20, TextTable
from levelfield.data.datasets.texts import TextDataset
from levelfield.data.splits import split_classes


def test_banking77_as_published(data_root: Path) -> None:
    banking = Banking77(data_root)
    report = banking.verify()
    assert (report.num_classes, report.num_samples, report.problems) == (77, 13_083, [])
    index = banking.read_index()
    parts = [key.partition(" ")[0] for key in index.keys]
    assert (parts.count("train.csv"), parts.count("test.csv")) == (10_003, 3_080)
    assert banking.load("train.csv row 2") == "I am still waiting on my card?"
    assert index.class_names[index.labels[0]] == "card_arrival"


def test_clinc150_as_published(data_root: Path) -> None:
    clinc = CLINC150(data_root)
    report = clinc.verify()
    assert (report.num_classes, report.num_samples, report.problems) == (150, 22_500, [])
    index = clinc.read_index()
    assert set(np.bincount(index.labels)) == {150}
    assert "oos" not in index.class_names
    assert set(np.bincount(index.coarse_labels())) == {15 * 150}, "ten domains of 15 intents"
    assert index.coarse_names[index.class_names.index("translate")] == "travel"
    assert clinc.load("train[0]") == "what expression would i use to say i love you if i were an italian"


def test_news20_as_published_and_split_as_vasilev_and_dyakonov(data_root: Path) -> None:
    news = News20(data_root)
    index = news.read_index()
    assert (len(index.class_names), len(index.keys)) == (20, 18_846)
    parts = [key.partition("/")[0] for key in index.keys]
    assert (parts.count("20news-bydate-train"), parts.count("20news-bydate-test")) == (11_314, 7_532)
    train, test = split_classes(index.labels, "vasilev-dyakonov")
    assert train.tolist() == [0, 3, 5, 7, 9, 11, 12, 14, 15, 16]
    assert (np.isin(index.labels, train).sum(), np.isin(index.labels, test).sum()) == (9_622, 9_224)
    post = news.load("20news-bydate-test/alt.atheism/53068")
    assert post.startswith("From: decay@cbnewsj.cb.att.com (dean.kaflowitz)\nSubject: Re: about the bible quiz answers")
    assert post.endswith("Dean Kaflowitz")


def test_two_steps_and_a_test_on_a_miniature(run: Callable, tmp_path: Path) -> None:
    words = [f"{consonant}{vowel}" for consonant in "bdgklmnp" for vowel in "ao"]  # one a class
    abstracts = "".join(f"On {word} {sample}: we study it.\n" for word in words for sample in range(4)).encode()
    wos(abstracts, "".join(f"{area}\n" * 4 for area in range(16)).encode())(tmp_path)
    root = ("--data.root", tmp_path)
    code, printed, _ = run("data", "verify", "wos134", *root)
    assert (code, printed.splitlines()[0]) == (2, "wos134: 16 classes, 64 samples; 2 problems")  # fewer than published
    trunk = ["--model.trunk", "TransformersTrunk", "--model.trunk.name", tiny_text_model(tmp_path / "tiny")]
    trunk += ["--model.trunk.weights", "null", "--model.trunk.max_length", "64", "--model.embedding_size", "8"]
    files = ["--config", "data/wos134", "--config", "trainer/debug", *trunk, "--model.loss", "ContrastiveLoss"]
    small = [
        "--data.steps_per_epoch",
        "2",
        "--trainer.max_epochs",
        "1",
        "--data.batch_size",
        "8",
        "--data.num_folds",
        "2",
    ]
    quiet = ("--trainer.enable_progress_bar", "false")
    split = ("--data.split", "vasilev-dyakonov")
    code, _, complained = run("fit", *files, *small, *quiet, *root, *split, "--output", tmp_path / "out")
    assert code == 0, complained
    (checkpoint,) = (tmp_path / "out").rglob("best.ckpt")
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")  # the checkpoint holds what it needs
    code, printed, complained = run("test", "--ckpt_path", checkpoint, *root, *quiet)
    assert (code, "map_at_r" in printed) == (0, True), complained


def test_a_trunk_of_images_is_refused_for_texts(run: Callable, tmp_path: Path) -> None:
    words = ("--data.dataset", "TextTable", "--data.dataset.table", own_texts(tmp_path), "--data.num_folds", "2")
    result = run("fit", *words, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "out")
    assert "TextTable holds texts, TimmTrunk takes images" in result[2]
    refused(result, "configs/trunk/minilm.yaml")


def test_a_table_in_csv_and_in_parquet(tmp_path: Path) -> None:
    rows = [("naïve, “quoted”\nand long", 10), ("two", 9), ("three", 10)]
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame(rows, columns=["text", "label"]).to_parquet(tmp_path / "t.parquet")
    for name, keys in (("t.csv", ("row 2", "row 4", "row 5")), ("t.parquet", ("row 1", "row 2", "row 3"))):
        table = TextTable(tmp_path / name)
        index = table.read_index()
        assert index.keys == keys
        assert index.class_names == ("9", "10")
        assert index.labels.tolist() == [1, 0, 1]
        assert [pickle.loads(pickle.dumps(table)).load(key) for key in keys] == [text for text, _ in rows]


def files(folder: Path, contents: dict[str, bytes | None]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def table(content: bytes) -> Callable[[Path], TextDataset]:
    return lambda folder: TextTable(files(folder, {"t.csv": content}) / "t.csv")


def banking(train: bytes, test: bytes | None = b"text,category\nhello,greeting\n") -> Callable[[Path], TextDataset]:
    return lambda folder: Banking77(files(folder / "banking77", {"train.csv": train, "test.csv": test}).parent)


def clinc(content: object) -> Callable[[Path], TextDataset]:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda folder: CLINC150(files(folder / "clinc150", {"data_full.json": raw}).parent)


def wos(x: bytes, y: bytes | None) -> Callable[[Path], TextDataset]:
    return lambda folder: WOS134(files(folder / "wos134" / "WOS46985", {"X.txt": x, "Y.txt": y}).parents[1])


def news(posts: dict[str, bytes], keep: slice = slice(None)) -> Callable[[Path], TextDataset]:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in posts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    name = "20news-bydate.tar.gz"
    return lambda folder: News20(files(folder / "20newsgroups", {name: packed.getvalue()[keep]}).parent)


POSTS = {
    f"20news-bydate-{part}/alt.atheism/{n}": b"Subject: caf\xe9\n\nNo." for n in (1, 2) for part in ("train", "test")
}
PARTS = {"train": [["hello", "greeting"]], "val": [["hi", "greeting"]], "test": [["bye", "farewell"]]}

FAULTS = {
    "a text that is not UTF-8": (table(b"text,label\nok,a\ncaf\xe9,b\n"), r"t\.csv, row 3: text is not UTF-8 .*0xE9"),
    "a table in UTF-16": (table("text,label\nok,a\n".encode("utf-16")), "not a CSV file in UTF-8"),
    "an empty text": (table(b"text,label\nok,a\n  ,b\n"), r"t\.csv, row 3: text is empty; fill it in"),
    "a label column with gaps": (table(b"text,label\nok,a\nfine,\n"), r"t\.csv, row 3: label is empty; fill it in"),
    "a NUL byte": (table(b"text,label\nok,a\nn\0t,b\n"), r"t\.csv, row 3: text has a NUL byte; remove it"),
    "a comma without quotes": (table(b"text,label\nwell, no,a\n"), r"t\.csv, row 2: 3 values for 2 .*double quotes"),
    "a table of no rows": (table(b"text,label\n"), "has no rows"),
    "a part that is missing": (banking(b"text,category\nhi,a\n", None), r"no table .*test\.csv"),
    "no JSON": (clinc(b"{"), r"data_full\.json is not JSON .*download it again"),
    "JSON of another shape": (clinc([1]), r"data_full\.json has no list 'train' of \[text, intent\] pairs"),
    "an entry of another shape": (clinc({**PARTS, "val": [["hi"]]}), r"val\[0\]: it is not a \[text, intent\] pair"),
    "an entry without a text": (clinc({**PARTS, "test": [["", "a"]]}), r"test\[0\]: text is empty"),
    "an entry of bytes": (clinc(json.dumps(PARTS).encode().replace(b"bye", b"\xe9")), r"test\[0\]: text is not UTF-8"),
    "files of other lengths": (wos(b"one\ntwo\n", b"0\n"), r"X\.txt has 2 lines, but Y\.txt has 1"),
    "a missing file": (wos(b"one\n", None), r"no file .*Y\.txt: move .*wos134 away, then download it again"),
    "an empty line": (wos(b"one\n\nthree\n", b"0\n1\n2\n"), r"X\.txt, row 2: the abstract is empty"),
    "no number": (wos(b"one\ntwo\n", b"0\nx\n"), r"Y\.txt, row 2 is 'x' instead of an area's number"),
    "an archive's half": (news(POSTS, slice(0, 100)), r"20news-bydate\.tar\.gz is not a complete archive"),
    "an archive without a part": (news(dict([*POSTS.items()][::2])), "has no posts of 20news-bydate-test"),
    "an empty post": (news({**POSTS, "20news-bydate-test/sci.med/3": b" \n"}), "sci.med/3: the post is empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_clear_line(fault: str, tmp_path: Path) -> None:
    write, message = FAULTS[fault]
    with pytest.raises(UserError, match=message) as raised:
        write(tmp_path).read_index()
    assert "\n" not in str(raised.value)


def test_verify_lists_all_rows_that_cannot_be_used(tmp_path: Path) -> None:
    content = b"text,label\n,a\ngood,a\nn\0t,b\nbad \xe9,b\nmore,\nb,good\none, two,c\n"
    report = table(content)(tmp_path).verify()
    assert (report.num_samples, report.num_classes) == (2, 2)
    assert sorted(problem.partition(", ")[2].partition(":")[0] for problem in report.problems) == [
        "row 2", "row 4", "row 5", "row 6", "row 8",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"row 2: .* \(4 more like this\)"):
        TextTable(tmp_path / "t.csv").read_index()


def test_long_texts_and_texts_of_several_lines(tmp_path: Path) -> None:
    long = "a word and " * 20_000
    content = f'text,label\n{long},a\n"Roses are red, violets are blue,\nand so on",a\n\n"bye, b\nsaid he",b\n'
    assert table(content.encode())(tmp_path).read_index().keys == ("row 2", "row 3", "row 6")
    with pytest.raises(
        UserError, match=r"row 3: .* a value is too long \(field larger than field limit \(10000000\)\)"
    ):
        table(b"text,label\nok,a\n" + b"x" * 10_000_001 + b",a\n")(tmp_path).read_index()


def test_news20_from_its_folders_is_news20_from_its_archive(tmp_path: Path) -> None:
    packed = news(POSTS)(tmp_path)
    (tmp_path / "folders" / "20newsgroups").mkdir(parents=True)
    with tarfile.open(tmp_path / "20newsgroups" / "20news-bydate.tar.gz") as archive:
        archive.extractall(tmp_path / "folders" / "20newsgroups", filter="data")
    extracted = News20(tmp_path / "folders")
    index = packed.read_index()
    assert extracted.fingerprint(extracted.read_index()) == packed.fingerprint(index)
    assert packed.load(index.keys[0]) == "Subject: café\n\nNo."
