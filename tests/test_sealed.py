"""`fit` and `validate` depend on no test image and on no test label."""

import random
import shutil
from pathlib import Path

import pytest
from own_images import class_folders, image_options, own_images
from refused import succeeded


def give_split_and_roles(table: Path) -> None:
    """The columns of a table whose last eight classes are its test half, the first image of each the query."""
    header, *rows = table.read_text().splitlines()
    ends = ["train," if row[-2:] < "08" else "test,query" if "_0.png" in row else "test,gallery" for row in rows]
    extended = [f"{header},split,role", *(f"{row},{end}" for row, end in zip(rows, ends, strict=True))]
    table.write_text("\n".join(extended) + "\n")


def change_the_test_half(data: Path, table: Path | None) -> None:
    """Delete its images and shuffle its labels."""
    test_images = [path for path in data.rglob("*.png") if int(path.stem.partition("_")[0]) >= 8]
    assert len(test_images) == 32
    for path in test_images:
        path.unlink()
    if table is not None:
        rows = [line.split(",") for line in table.read_text().splitlines()]
        test_rows = [row for row in rows if row[1].startswith("class") and row[1] >= "class 08"]
        labels = random.Random(0).sample([row[1] for row in test_rows], k=len(test_rows))
        for row, label in zip(test_rows, labels, strict=True):
            row[1] = label
        table.write_text("\n".join(",".join(row) for row in rows) + "\n")


SOURCES = ["table with split and roles", "folder", "table, features of it"]  # a plain table has the like of each


@pytest.mark.slow
@pytest.mark.parametrize("source", [pytest.param("table", marks=pytest.mark.full), *SOURCES])
def test_deleting_test_images_and_permuting_test_labels_changes_no_byte(tiny, run, tmp_path, source, monkeypatch):
    data, output, cache = (tmp_path / name for name in ("data", "outputs", "cache"))
    data.mkdir()
    table = own_images(data)
    if source == "table with split and roles":
        give_split_and_roles(table)
    folder = class_folders(data) if source == "folder" else None
    words = [*image_options(tiny, table, folder), "--model.loss", "ArcFaceLoss"]
    if "features" in source:
        words += ["--model.freeze_trunk", "true", "--data.features", "true"]
    monkeypatch.setenv("LEVELFIELD_CACHE", str(cache))

    def fit_and_validate():
        succeeded(run("fit", *words, "--output", output, "--name", "sealed"))
        folder = output / "fit" / "sealed" / "0"
        quiet = ("--trainer.enable_progress_bar", "false")
        scores = succeeded(run("validate", "--ckpt_path", folder / "best.ckpt", *quiet))
        files = {name: (folder / name).read_bytes() for name in ("best.ckpt", "metrics.csv", "config.yaml")}
        shutil.rmtree(output)
        shutil.rmtree(cache, ignore_errors=True)  # the next time all is computed anew
        return files, scores

    whole = fit_and_validate()
    change_the_test_half(data, None if source == "folder" else table)
    assert fit_and_validate() == whole
