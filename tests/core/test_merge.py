"""What is laid over what: a study's files and options as `levelfield fit` reads `--config` files and options."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from levelfield.core.configuration import merge, parse_value, set_dotted
from levelfield.training.build import TrainingCLI

ARCFACE = {"model": {"loss": {"class_path": "ArcFaceLoss", "init_args": {"margin": 20, "scale": 10}}}}
MEMORY = {  # whole names: the peers have classes of the same
    "class_path": "levelfield.losses.CrossBatchMemory",
    "init_args": {"loss": {"class_path": "levelfield.losses.MultiSimilarityLoss"}, "memory_size": 64},
}
TEXT = {"class_path": "TransformersTrunk", "init_args": {"name": "x", "config": {"dim": 8, "n_heads": 2}}}
STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/map_at_r"}}


class ParsedOnly(TrainingCLI):
    """The settings of a training that is not built."""

    def instantiate_classes(self) -> None:
        self.settings = self.plain_config()

    def _run_subcommand(self, subcommand: str) -> None:
        pass


@pytest.mark.parametrize(
    ("layers", "options", "key", "value"),
    [
        ([ARCFACE, {"model": {"loss": "CosFaceLoss"}}], {}, "model.loss.init_args.margin", 0.35),
        ([ARCFACE], {"model.loss": "CosFaceLoss"}, "model.loss.init_args.margin", 0.35),
        ([ARCFACE], {"model.loss.class_path": "CosFaceLoss"}, "model.loss.init_args.margin", 0.35),
        ([ARCFACE, {"model": {"loss": "ArcFaceLoss"}}], {}, "model.loss.init_args.margin", 20),
        ([ARCFACE, {"model": {"loss": {"scale": 11}}}], {}, "model.loss.init_args.margin", 20),
        ([ARCFACE], {"model.loss.scale": "11"}, "model.loss.init_args.margin", 20),
        (
            [{"model": {"loss": {**ARCFACE["model"]["loss"], "class_path": "levelfield.losses.ArcFaceLoss"}}}],
            {"model.loss": "levelfield.losses.arcface.ArcFaceLoss"},
            "model.loss.init_args.margin",
            20,
        ),
        (
            [{"model": {"loss": MEMORY}}, {"model": {"loss": {"loss": "levelfield.losses.ContrastiveLoss"}}}],
            {},
            "model.loss.init_args.memory_size",
            64,
        ),
        ([ARCFACE], {"model.trunk": "BNInceptionTrunk"}, "model.trunk.init_args.weights", "pretrained"),
        (
            [ARCFACE, {"model": {"trunk": TEXT}}, {"model": {"trunk": {"config": {"dim": 4}}}}],
            {},
            "model.trunk.init_args.config",
            {"dim": 4},
        ),
        (
            [ARCFACE, {"model": {"trunk": TEXT}}],
            {"model.trunk.config.dim": "4"},
            "model.trunk.init_args.config",
            {"dim": 4, "n_heads": 2},
        ),
        ([ARCFACE, {"model": {"miner": "MultiSimilarityMiner"}}], {"model.miner": "null"}, "model.miner", None),
        (
            [ARCFACE, {"trainer": {"callbacks": [STOPPING]}}, {"trainer": {"callbacks": ["LearningRateMonitor"]}}],
            {},
            "trainer.callbacks.0.class_path",
            "lightning.pytorch.callbacks.LearningRateMonitor",
        ),
        (
            [ARCFACE, {"trainer": {"callbacks+": [STOPPING]}}, {"trainer": {"callbacks+": ["LearningRateMonitor"]}}],
            {},
            "trainer.callbacks.0.init_args.monitor",
            "val/map_at_r",
        ),
    ],
)
def test_a_study_lays_settings_over_each_other_as_a_fit_does(
    layers: list[dict[str, Any]], options: dict[str, str], key: str, value: Any, tmp_path: Path
) -> None:
    words, merged = ["fit", "--data.dataset", "Glyphs"], {"data": {"dataset": "Glyphs"}}
    for number, layer in enumerate(layers):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(layer))
        words += ["--config", str(tmp_path / f"{number}.yaml")]
        merged = merge(merged, layer)
    for option, text in options.items():
        words += [f"--{option}", text]
        merged = set_dotted(merged, option, parse_value(text))
    fit, study = ParsedOnly(words).settings, ParsedOnly(merged, run=False, folder=tmp_path).settings
    assert {part: fit[part] for part in merged} == {part: study[part] for part in merged}
    for part in key.split("."):
        fit = fit[int(part) if part.isdigit() else part]
    assert fit == value
