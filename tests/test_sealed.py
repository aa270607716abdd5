"""`fit` and `validate` depend on no test image and on no test label."""

import random
import shutil

import pytest
from own_images import image_options, own_images


def outcome(folder):
    return {name: (folder / name).read_bytes() for name in ("best.ckpt", "metrics.csv", "config.yaml")}


@pytest.mark.parametrize("source", ["table", "folder"])
def test_deleting_test_images_and_permuting_test_labels_changes_no_byte(tiny, run, tmp_path, source):
    data = tmp_path / "data"
    data.mkdir()
    table = own_images(data)
    if source == "table":
        options = image_options(tiny, table)
    else:
        for image in sorted(data.glob("*.png")):
            target = data / "classes" / f"class {int(image.name.partition('_')[0]):02d}"
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(image, target)
        options = image_options(tiny, table, folder=data / "classes")
    words = [*options, "--model.loss", "ArcFaceLoss"]

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
        return files, scores

    whole = fit_and_validate()
    test_images = [p for p in data.rglob("*.png") if int(p.stem.partition("_")[0]) >= 8]
    assert len(test_images) == 32
    for path in test_images:
        path.unlink()
    if source == "table":
        lines = table.read_text().splitlines()
        test_rows = [number for number, line in enumerate(lines) if line.partition(",")[2] >= "class 08" and number]
        labels = [lines[number].partition(",")[2] for number in test_rows]
        random.Random(0).shuffle(labels)
        for number, label in zip(test_rows, labels, strict=True):
            lines[number] = lines[number].partition(",")[0] + "," + label
        table.write_text("\n".join(lines) + "\n")
    sealed = fit_and_validate()
    assert sealed == whole
