"""Going on from a checkpoint, what is asked is what is used: rates, decay, optimizer, schedule, loss, seed."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_fit import TINY

from levelfield.cli.main import main


def margin_loss(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "MarginLoss", "init_args": {"learn_beta": True, **arguments}}


BASE: dict[str, Any] = {
    "model": {
        "loss": margin_loss(),
        "embedding_size": 16,
        "trunk_lr": 4e-4,
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
        "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1, "gamma": 0.5}},
    },
    "trainer": {"max_epochs": 1},
    "data": {"steps_per_epoch": 2},
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    whole = dict(base)
    for key, value in changes.items():
        whole[key] = merged(whole[key], value) if isinstance(value, dict) and "class_path" not in value else value
    return whole


def fit(folder: Path, config: dict[str, Any], *words: str) -> int:
    """The exit code of a fit into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(config))
    return main(["fit", *TINY, "--config", str(file), "--output", str(folder), "--name", "one", *map(str, words)])


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    assert fit(folder, BASE) == 0
    return folder / "fit" / "one" / "0" / "best.ckpt"


def went_on(begun: Path, folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The last checkpoint of the best epochs after `begun`, with one more epoch."""
    assert fit(folder, merged(merged(BASE, {"trainer": {"max_epochs": 2}}), changes), "--ckpt_path", str(begun)) == 0
    return torch.load(folder / "fit" / "one" / "0" / "best.ckpt", weights_only=True)


def groups(checkpoint: dict[str, Any], key: str) -> dict[str, float]:
    return {group["name"]: group.get(key) for group in checkpoint["optimizer_states"][0]["param_groups"]}


def test_the_same_settings_go_on_where_they_were(begun: Path, tmp_path: Path) -> None:
    # One epoch before, one after it: the rate is halved twice. 4e-4 / 4 is exact.
    assert groups(went_on(begun, tmp_path, {}), "lr")["trunk"] == 1e-4


@pytest.mark.parametrize(
    ("changes", "key", "group", "value"),
    [
        ({"model": {"trunk_lr": 8e-3}}, "lr", "trunk", 4e-3),  # halved once: the schedule began again
        ({"model": {"embedder_lr": 8e-3}}, "lr", "embedder", 4e-3),
        ({"model": {"loss_lr": 8e-3}}, "lr", "loss", 4e-3),
        ({"model": {"weight_decay": 0.25}}, "weight_decay", "embedder", 0.25),
        ({"model": {"loss_weight_decay": 0.25}}, "weight_decay", "loss", 0.25),
        ({"model": {"lr_scheduler": None}}, "lr", "trunk", 4e-4),
        (
            {
                "model": {
                    "lr_scheduler": {**BASE["model"]["lr_scheduler"], "init_args": {"step_size": 1, "gamma": 0.25}}
                }
            },
            "lr",
            "trunk",
            1e-4,
        ),
        (
            {"model": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.5}}}},
            "momentum",
            "trunk",
            0.5,
        ),
        (
            {"model": {"optimizer": {"class_path": "torch.optim.RMSprop", "init_args": {"lr": 0.1}}}},
            "alpha",
            "loss",
            0.99,
        ),
    ],
)
def test_what_is_asked_is_used(
    changes: dict[str, Any], key: str, group: str, value: float, begun: Path, tmp_path: Path
) -> None:
    assert groups(went_on(begun, tmp_path, changes), key)[group] == value


def test_moments_are_kept_where_the_optimizer_is_the_same(begun: Path, tmp_path: Path) -> None:
    nothing = {"trunk_lr": 0.0, "embedder_lr": 0.0, "loss_lr": 0.0, "weight_decay": 0.0, "lr_scheduler": None}
    before = torch.load(begun, weights_only=True)
    after = went_on(begun, tmp_path / "kept", {"model": nothing, "data": {"steps_per_epoch": 1}})
    for name, weight in before["state_dict"].items():
        assert torch.equal(weight, after["state_dict"][name]), name
    # At a rate of 0 only the momentum moves: with fresh moments it would be the gradient of one more batch alone.
    fresh = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.2, "momentum": 0.9}}
    anew = went_on(begun, tmp_path / "anew", {"model": {**nothing, "optimizer": fresh}, "data": {"steps_per_epoch": 1}})
    old, kept, gradient = (
        [state["momentum_buffer"] for state in checkpoint["optimizer_states"][0]["state"].values()]
        for checkpoint in (before, after, anew)
    )
    for number, buffer in enumerate(kept):
        torch.testing.assert_close(buffer, 0.9 * old[number] + gradient[number])


def test_the_loss_and_the_seed_that_are_asked_for_train(begun: Path, tmp_path: Path) -> None:
    losses, wide = {}, {"model": {"loss": margin_loss(margin=0.9)}}
    for name, changes in {"same": {}, "margin": wide, "seed": {"seed_everything": 5}}.items():
        went_on(begun, tmp_path / name, {**changes, "trainer": {"log_every_n_steps": 1}})
        with open(tmp_path / name / "fit" / "one" / "0" / "metrics.csv") as file:
            losses[name] = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    # All hinges are active here, so each is wider by 0.9 - 0.2.
    assert losses["margin"][0] - losses["same"][0] == pytest.approx(0.7, abs=1e-6)
    assert losses["seed"][0] != losses["same"][0]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"trainer": {"max_epochs": 1}}, "--trainer.max_epochs 2"),
        ({"trainer": {"max_steps": 2}}, "--trainer.max_steps 3"),
        ({"model": {"loss": margin_loss(beta=0.5)}}, "--model.loss.beta"),
        ({"model": {"loss": margin_loss(beta_per_class=True)}}, "best.ckpt' "),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    changes: dict[str, Any], key: str, begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = merged(merged(BASE, {"trainer": {"max_epochs": 2}}), changes)
    assert fit(tmp_path, config, "--ckpt_path", str(begun)) == 2
    complaint = capsys.readouterr().err
    assert key in complaint
    assert complaint.count("\n") == 1, complaint


def test_a_state_of_another_kind_is_refused(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = torch.load(begun, weights_only=True)
    for change, key in (
        ({"job": {}}, "--resume"),
        ({"optimizer_states": None}, "best.ckpt"),
        ({"datamodule_hyper_parameters": None}, "trainer.fit"),
    ):
        other = {key: value for key, value in {**checkpoint, **change}.items() if value is not None}
        torch.save(other, tmp_path / "other.ckpt")
        assert fit(tmp_path, BASE, "--ckpt_path", str(tmp_path / "other.ckpt")) == 2
        assert re.search(rf"other\.ckpt' .*{re.escape(key)}", capsys.readouterr().err)
