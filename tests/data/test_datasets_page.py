"""The page of the data sets says what the data sets say."""

from pathlib import Path

from levelfield.cli.data import named_datasets

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_the_table_has_each_data_set_as_it_is() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = {
        name.strip("`"): (classes, samples, splits, licence) for name, classes, samples, splits, licence, *_ in rows
    }
    assert table == {
        name: (f"{kind.num_classes_published:,}", f"{kind.num_samples_published:,}", kind.splits, kind.licence)
        for name, kind in named_datasets().items()
    }


def test_what_is_called_unverified_has_no_published_checksum() -> None:
    marked = {line.split("`")[1] for line in PAGE.read_text().splitlines() if "`prepare`, unverified" in line}
    fetched = {name: kind.archives for name, kind in named_datasets().items() if kind.archives and name != "inshop"}
    assert marked == {name for name, archives in fetched.items() if any(a.sha256 is None for a in archives)}
