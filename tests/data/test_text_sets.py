"""The data sets of texts as published, and what is wrong with texts, all of it at once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refused import refused
from tiny_text import own_texts

from levelfield.core.errors import UserError
from levelfield.data.datasets import CLINC150, Banking77, News20, TextTable
from levelfield.data.splits import split_classes
from levelfield.data.verify import verify


def test_banking77_as_published(data_root: Path) -> None:
    banking = Banking77(data_root)
    report = verify(banking)
    assert (report.num_classes, report.num_samples, report.problems) == (77, 13_083, [])
    index = banking.read_index()
    parts = [key.partition(" ")[0] for key in index.keys]
    assert (parts.count("train.csv"), parts.count("test.csv")) == (10_003, 3_080)
    assert banking.load("train.csv row 2") == "I am still waiting on my card?"
    assert index.class_names[index.labels[0]] == "card_arrival"


def test_clinc150_as_published(data_root: Path) -> None:
    clinc = CLINC150(data_root)
    report = verify(clinc)
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


def test_a_trunk_of_images_is_refused_for_texts(run: Callable, tmp_path: Path) -> None:
    words = ("--data.dataset", "TextTable", "--data.dataset.table", own_texts(tmp_path), "--data.num_folds", "2")
    result = run("fit", *words, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "out")
    assert "TextTable holds texts, TimmTrunk takes images" in result[2]
    refused(result, "--config trunk/minilm")


def table(folder: Path, content: bytes) -> TextTable:
    (folder / "t.csv").write_bytes(content)
    return TextTable(folder / "t.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,label\nok,a\ncaf\xe9,b\n", r"t\.csv, row 3: text is not UTF-8 .*0xE9"),
        ("text,label\nok,a\n".encode("utf-16"), "not a CSV file in UTF-8"),
        (b"text,label\nwell, no,a\n", r"t\.csv, row 2: 3 values for 2 .*double quotes"),
    ],
)
def test_each_fault_is_one_clear_line(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as raised:
        table(tmp_path, content).read_index()
    assert "\n" not in str(raised.value)


def test_verify_lists_all_rows_that_cannot_be_used(tmp_path: Path) -> None:
    content = b"text,label\n,a\ngood,a\nn\0t,b\nbad \xe9,b\nmore,\nb,good\none, two,c\n"
    report = verify(table(tmp_path, content))
    assert (report.num_samples, report.num_classes) == (2, 2)
    assert sorted(problem.partition(", ")[2].partition(":")[0] for problem in report.problems) == [
        "row 2", "row 4", "row 5", "row 6", "row 8",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"row 2: .* \(4 more like this\)"):
        TextTable(tmp_path / "t.csv").read_index()


def test_long_texts_and_texts_of_several_lines(tmp_path: Path) -> None:
    long = "a word and " * 20_000
    content = f'text,label\n{long},a\n"Roses are red, violets are blue,\nand so on",a\n\n"bye, b\nsaid he",b\n'
    assert table(tmp_path, content.encode()).read_index().keys == ("row 2", "row 3", "row 6")
    with pytest.raises(UserError, match=r"row 3: .* a value is too long .*10000000"):
        table(tmp_path, b"text,label\nok,a\n" + b"x" * 10_000_001 + b",a\n").read_index()
