"""`fit` and `validate` depend on no test image and on no test label."""

import random
import shutil

import pytest
from own_images import image_options, own_images


def outcome(folder):
    return {name: (folder / name).read_bytes() for name in ("best.ckpt", "metrics.csv", "config.yaml")}


def give_split_and_roles(table):
    """The columns of a table whose last eight classes are its test half, the first image of each the query."""
    header, *rows = table.read_text().splitlines()
    extended = [f"{header},split,role"]
    for row in rows:
        image, _, label = row.partition(",")
        role = "query" if image.endswith("_0.png") else "gallery"
        extended.append(f"{row},test,{role}" if label >= "class 08" else f"{row},train,")
    table.write_text("\n".join(extended) + "\n")


# The others have the like of a plain table.
@pytest.mark.parametrize(
    "source",
    [
        pytest.param("table", marks=pytest.mark.full),
        "table with split and roles",
        "folder",
        "table, features of it",
    ],
)
def test_deleting_test_images_and_permuting_test_labels_changes_no_byte(tiny, run, tmp_path, source, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    table = own_images(data)
    if source != "folder":
        options = image_options(tiny, table)
        if source == "table with split and roles":
            give_split_and_roles(table)
    else:
        for image in sorted(data.glob("*.png")):
            target = data / "classes" / f"class {int(image.name.partition('_')[0]):02d}"
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(image, target)
        options = image_options(tiny, table, folder=data / "classes")
    words = [*options, "--model.loss", "ArcFaceLoss"]
    if "features" in source:
        words += ["--model.freeze_trunk", "true", "--data.features", "true"]

    cache = tmp_path / "cache"
    monkeypatch.setenv("LEVELFIELD_CACHE", str(cache))

    def fit_and_validate():
        output = tmp_path / "outputs"
        assert run("fit", *words, "--output", output, "--name", "sealed")[0] == 0
        folder = output / "fit" / "sealed" / "0"
        code, scores, complaint = run(
            "validate", "--ckpt_path", folder / "best.ckpt", "--trainer.enable_progress_bar", "false"
        )
        assert code == 0, complaint
        files = outcome(folder)
        shutil.rmtree(output)
        shutil.rmtree(cache, ignore_errors=True)  # the next time all is computed anew
        return files, scores

    whole = fit_and_validate()
    test_images = [p for p in data.rglob("*.png") if int(p.stem.partition("_")[0]) >= 8]
    assert len(test_images) == 32
    for path in test_images:
        path.unlink()
    if source != "folder":
        rows = [line.split(",") for line in table.read_text().splitlines()]
        test_rows = [row for row in rows if row[1].startswith("class") and row[1] >= "class 08"]
        labels = [row[1] for row in test_rows]
        random.Random(0).shuffle(labels)
        for row, label in zip(test_rows, labels, strict=True):
            row[1] = label
        table.write_text("\n".join(",".join(row) for row in rows) + "\n")
    sealed = fit_and_validate()
    assert sealed == whole
