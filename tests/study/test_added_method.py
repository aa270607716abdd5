"""`--add-method`: its names, its settings and what is searched."""

import inspect
import sys
from pathlib import Path

import pytest

import levelfield.losses
from levelfield.cli.study import main
from levelfield.core.configuration import read_yaml
from levelfield.errors import UserError
from levelfield.study.added_method import added_methods, method_of_loss

REPOSITORY = Path(__file__).parents[2]
BASES = {"MetricLoss", "PairLoss", "ClassificationLoss"}
SHIPPED = sorted(
    set(levelfield.losses.__all__) - BASES - {"CrossBatchMemory", "WeightedSum"}
)  # which take other losses

MODULE = """
from torch import nn


class TwinLoss(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.sum()


class WeightedLoss(nn.Module):
    search_space = {"scale": {"low": 1.0, "high": 9.0}}

    def __init__(self, scale, embedding_size, num_classes):
        super().__init__()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules with the same classes, and two that cannot be imported."""
    for name in ("twins_here", "twins_there"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "torn_loss.py").write_text("def (:\n")
    (tmp_path / "angry_loss.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_loss_finds_its_settings_and_its_space(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    loss = getattr(levelfield.losses, name)
    for path in (name, f"levelfield.losses.{name}", f"{loss.__module__}.{name}"):
        settings = method_of_loss(path)[1]
        assert settings["model"]["loss"]["class_path"] == f"levelfield.losses.{name}"
        space = settings["search"]
        if name != "PrototypicalLoss":  # has nothing to search
            assert space
        for key in space:
            if key != "model.loss_lr":
                assert key.removeprefix("model.loss.init_args.") in inspect.signature(loss).parameters


def test_a_method_has_the_name_of_its_class(modules: None) -> None:
    paths = ["twins_here.TwinLoss", "twins_here.WeightedLoss"]
    methods = added_methods(paths)
    assert {name: config["model"]["loss"]["class_path"] for name, config in methods.items()} == {
        "twin_loss": "twins_here.TwinLoss",
        "weighted_loss": "twins_here.WeightedLoss",
    }
    assert methods["weighted_loss"]["data"] == {"samples_per_class": 1}
    assert "search" not in methods["twin_loss"]
    assert methods["weighted_loss"]["search"] == {"model.loss.init_args.scale": {"low": 1.0, "high": 9.0}}


def test_a_shipped_method_and_a_file_are_called_as_their_files_are(tmp_path: Path) -> None:
    (tmp_path / "sharp_arcface.yaml").write_text("model: {loss: {class_path: levelfield.losses.ArcFaceLoss}}\n")
    methods = added_methods(["ntxent_koleo", str(tmp_path / "sharp_arcface.yaml"), "ArcFaceLoss"])
    assert list(methods) == ["ntxent_koleo", "sharp_arcface", "arc_face_loss"]
    assert methods["ntxent_koleo"] == read_yaml(REPOSITORY / "configs" / "method" / "ntxent_koleo.yaml")
    assert "model.regularizer.init_args.weight" in methods["ntxent_koleo"]["search"]
    assert "search" not in methods["sharp_arcface"]


@pytest.mark.parametrize(
    ("paths", "key"),
    [
        (["twins_here.TwinLoss", "twins_there.TwinLoss"], r"--add-method twins_there\.TwinLoss: .*'twin_loss'"),
        (["ArcFaceLoss", "levelfield.losses.ArcFaceLoss"], r"levelfield\.losses\.ArcFaceLoss: .*'arc_face_loss'"),
        (["twins_here.TwinLos"], "'twins_here' .*'TwinLoss'"),
        (["torn_loss.MyLoss"], r"--add-method torn_loss\.MyLoss: .*'torn_loss' .*line 1"),
        (["angry_loss.MyLoss"], "'angry_loss' .*RuntimeError"),
        (["no_such_module.MyLoss"], r"--add-method no_such_module\.MyLoss: .*'no_such_module'"),
        (["smoth_ap"], "--add-method smoth_ap: .*'smooth_ap'"),
        (["ArcFaseLoss"], "--add-method ArcFaseLoss: .*'ArcFaceLoss'"),
        (["no_such_method.yaml"], r"--add-method no_such_method\.yaml"),
        (["smooth_ap", "configs/method/smooth_ap.yaml"], r"smooth_ap\.yaml: .*'smooth_ap'"),
    ],
)
def test_a_mistake_is_one_line(modules: None, toy_file: Path, tmp_path: Path, paths: list[str], key: str) -> None:
    words = [word for path in paths for word in ("--add-method", path)]
    with pytest.raises(UserError, match=key) as caught:
        main(["run", str(toy_file), "--output", str(tmp_path / "study"), *words])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "study").exists()
