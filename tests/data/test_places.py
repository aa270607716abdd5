"""Where one's own data lie stays on the machine: not in a checkpoint, not in what a study keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest
from own_images import image_options, own_images
from PIL import Image

from levelfield.cli.main import main
from levelfield.data import Glyphs, ImageFolder, ImageTable, MetricDataset
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.own import own_dataset
from levelfield.data.places import own_file, without_way
from levelfield.errors import UserError


def test_a_way_is_told_below_the_root_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    table = tmp_path / "birds" / "t.csv"
    assert without_way(table) == "t.csv"
    assert without_way(str(table), tmp_path) == "birds/t.csv"
    assert without_way("birds/t.csv") == "birds/t.csv"
    assert without_way("../birds/t.csv") == "t.csv"
    assert without_way([str(table), {"at": "../t.csv"}], tmp_path) == ["birds/t.csv", {"at": "t.csv"}]
    assert without_way("s3://bucket/birds", tmp_path) == "birds"
    assert without_way(7) == 7
    monkeypatch.chdir(tmp_path / "..")
    assert without_way(f"{tmp_path.name}/../{tmp_path.name}/birds/t.csv", tmp_path) == "birds/t.csv"
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    assert without_way(table) == "birds/t.csv"


def test_a_name_that_is_too_long_is_a_missing_file(tmp_path: Path) -> None:
    long = "x" * 300
    (tmp_path / "t.csv").write_text(f"path,label\n{long}.jpg,0\n")
    assert own_dataset(long) is None
    for read, message in (
        (ImageTable(f"{long}.csv").read_index, "no table"),
        (ImageFolder(long).read_index, "no folder"),
        (lambda: ImageTable(tmp_path / "t.csv").load(f"{long}.jpg"), "row 2: no file"),
    ):
        with pytest.raises(UserError, match=message):
            read()


def test_a_relative_path_is_sought_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    (tmp_path / "birds").mkdir()
    own_images(tmp_path / "birds")
    assert own_file("birds/table.csv", None) == Path("birds/table.csv")
    data = MetricDataModule(ImageTable("birds/table.csv"), root=str(tmp_path))
    assert data.identity()["dataset"]["init_args"] == {"table": "birds/table.csv"}
    assert data.overview()[0] == "image_table: 16 classes, 64 samples"
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    assert len(ImageTable("birds/table.csv")) == 64


def test_a_checkpoint_does_not_tell_where_its_table_lay_and_finds_it(
    run: Callable, tiny: list[str], tmp_path: Path
) -> None:
    secret = tmp_path / "a folder of mine"
    secret.mkdir()
    table = own_images(secret)
    words = [*image_options(tiny, table), "--model.loss", "ArcFaceLoss", "--output", tmp_path, "--name", "birds"]
    assert run("fit", *words)[0] == 0
    checkpoint = tmp_path / "fit" / "birds" / "0" / "best.ckpt"
    assert b"folder of mine" not in checkpoint.read_bytes()
    quiet = ("--trainer.enable_progress_bar", "false")
    code, scores, complaint = run("validate", "--ckpt_path", checkpoint, *quiet)
    assert code == 0, complaint
    checkpoint = checkpoint.rename(tmp_path / "best.ckpt")  # where no config.yaml is beside it
    code, _, complaint = run("validate", "--ckpt_path", checkpoint, *quiet)
    assert (code, "no table table.csv" in complaint) == (2, True)
    code, again, complaint = run("validate", "--ckpt_path", checkpoint, "--data.dataset.table", table, *quiet)
    assert (code, again) == (0, scores), complaint


def test_a_root_that_nothing_is_read_from_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    for table in ("here.csv", "below/there.csv", "below/both.csv", "both.csv"):
        (tmp_path / table).write_text("".join(["path,label\n", *(f"{n}.png,{n // 2:02d}\n" for n in range(32))]))
    for number in range(32):
        for folder in (tmp_path, tmp_path / "below"):
            (folder / f"{number}.png").write_bytes(b"")

    def said(dataset: MetricDataset) -> list[str]:
        return MetricDataModule(dataset, root="below").overview()[1:]

    assert said(ImageTable("there.csv")) == []
    assert said(ImageTable("here.csv")) == ["--data.root below has no effect: here.csv exists without it"]
    assert said(ImageTable("both.csv")) == ["--data.root below has no effect: both.csv exists without it"]
    assert said(Glyphs(num_classes=40)) == ["--data.root below has no effect: Glyphs reads nothing from it"]
    assert MetricDataModule(ImageTable("here.csv")).overview()[1:] == []


def test_verify_finds_a_table_where_fit_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    (tmp_path / "there.csv").write_text("path,label\n1.png,wren\n")
    main(["data", "verify", "there.csv", "--data.root", str(tmp_path)])
    assert "image_table: 1 class, 1 sample; every sample opens" in capsys.readouterr().out
