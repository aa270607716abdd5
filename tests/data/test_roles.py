"""Tables with a split and with roles: the halves they name, and test queries scored against the gallery alone."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_images import image_options, own_images
from PIL import Image

from levelfield.data import ImageTable, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.training.checkpoint import read_checkpoint
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

SMALL = ImageTransforms(crop_size=32, resize=32)


def with_columns(table: Path, split: bool = True, role: bool = True) -> Path:
    """Classes 0, 2, 4... are trained on, the others tested; of a test class the first sample asks."""
    frame = pd.read_csv(table)
    numbers = frame["path"].str.extract(r"(\d+)_(\d+)").astype(int)
    if split:
        frame["split"] = np.where(numbers[0] % 2, "test", "train")
    if role:
        asks = np.where(numbers[1] == 0, "query", "gallery")
        frame["role"] = np.where(numbers[0] % 2, asks, "") if split else asks
    frame.to_csv(table, index=False)
    return table


def map_at_r(queries: np.ndarray, query_labels: np.ndarray, gallery: np.ndarray, labels: np.ndarray) -> float:
    """Section 3.2 of "A Metric Learning Reality Check", query by query in float64."""
    scores = []
    for query, label in zip(queries.astype(np.float64), query_labels, strict=True):
        found = labels[np.argsort(-(gallery.astype(np.float64) @ query), kind="stable")] == label
        hits = found[: found.sum()]
        scores.append(np.mean(hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)))
    return float(np.mean(scores))


def test_the_split_column_names_the_halves_unless_another_split_is_requested(tmp_path: Path) -> None:
    data = MetricDataModule(ImageTable(with_columns(own_images(tmp_path))), transforms=SMALL)
    for split, classes in {"official": range(0, 16, 2), "half": range(8)}.items():
        identity = data.identity()
        assert identity["split"] == split
        assert {*identity["train_classes"], *identity["val_classes"]} == {f"class {number:02d}" for number in classes}
        if split == "official":
            data.setup("test")
            assert data.test_subset.class_names == tuple(f"class {number:02d}" for number in range(1, 16, 2))
        data.split = "half"


def test_levelfield_test_scores_queries_against_the_gallery(tiny, run, tmp_path: Path) -> None:
    table = with_columns(own_images(tmp_path))
    for number in range(1, 16, 2):  # noise, so that nothing is retrieved perfectly
        for sample in range(4):
            shade = np.random.default_rng((number, sample)).integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(shade).save(tmp_path / f"{number}_{sample}.png")
    output = tmp_path / "outputs"
    words = [*image_options(tiny, table), "--model.loss", "ArcFaceLoss", "--output", output, "--name", "roles"]
    code, printed, complaint = run("fit", *words)
    assert code == 0, complaint
    assert "split official, fold 0 of 4: 6 classes trained on, 2 validated" in printed
    checkpoint = output / "fit" / "roles" / "0" / "best.ckpt"
    assert read_checkpoint(checkpoint)["levelfield"]["data"]["split"] == "official"
    code, printed, complaint = run("test", "--ckpt_path", checkpoint, "--trainer.enable_progress_bar", "false")
    assert code == 0, complaint

    data = MetricDataModule(ImageTable(table), transforms=SMALL)
    data.setup("test")
    assert data.test_subset is not None
    learner = MetricLearner.load_from_checkpoint(checkpoint)
    embeddings, labels, _ = (part.numpy() for part in embed(learner, data.test_dataloader()))
    asks = np.array([key.endswith("_0.png") for key in data.test_subset.index.keys])
    expected = map_at_r(embeddings[asks], labels[asks], embeddings[~asks], labels[~asks])
    among_all = map_at_r(embeddings, labels, embeddings, labels)
    assert abs(expected - among_all) > 0.01
    (line,) = (line for line in printed.splitlines() if "test/map_at_r" in line)
    assert float(line.split()[-2]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("split", "train test val test", r"images\.csv, row 4: split is 'val': give train or test"),
        ("split", "train test _ test", r"row 4: split is empty: give train or test"),
        ("split", "train train train test", r"row 5: class b is in test here and in train in row 4; put"),
        ("role", "query galery _ _", r"row 3: role is 'galery': give query or gallery or nothing"),
    ],
)
def test_mistakes_in_the_columns(column: str, values: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "images.csv"
    rows = zip(["1.png", "2.png", "3.png", "4.png"], "acbb", values.replace("_", "").split(" "), strict=True)
    file.write_text("\n".join([f"path,label,{column}", *(",".join(row) for row in rows)]))
    with pytest.raises(UserError, match=message):
        ImageTable(file).read_index()


@pytest.mark.parametrize(
    ("chosen", "column", "value", "message"),
    [
        (r"1_2\.png", "role", "", r"test sample 1_2\.png has no role: give each test sample"),
        (r"\d*[13579]_0\.png", "role", "gallery", "no test sample has the role query"),
        (r"\d*[13579]_.*", "role", "query", "no test class has both|no test sample has the role gallery"),
        (r"[1357]_.*", "role", "query", ""),
        (r".*", "split", "train", "set the column split to test"),
    ],
)
def test_roles_or_halves_that_cannot_be_tested_are_refused_before_training(
    chosen: str, column: str, value: str, message: str, tmp_path: Path
) -> None:
    table = with_columns(own_images(tmp_path), role=column == "role")
    frame = pd.read_csv(table)
    frame.loc[frame["path"].str.fullmatch(chosen), column] = value
    frame.to_csv(table, index=False)
    data = MetricDataModule(ImageTable(table), transforms=SMALL)
    if not message:
        assert "4 test classes with queries only, which are not scored: class 01, class 03, class 05" in str(
            data.overview()
        )
        return
    with pytest.raises(UserError, match=message):
        data.setup("fit")
    if column == "role":
        assert re.search(message, ImageTable(table).verify().problems[0])


def test_a_final_model_may_train_on_all_classes_and_has_nothing_to_test(tmp_path: Path) -> None:
    module = MetricDataModule(ImageTable(own_images(tmp_path)), fold="none", split="all", transforms=SMALL)
    module.setup("fit")
    assert len(module.dataset.read_index().class_names) == module.num_train_classes
    with pytest.raises(UserError, match="no test classes"):
        module.setup("test")
