"""The files of `configs/trunk/`: what they give is what the weights were trained with; official weights load."""

import math
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import save, save_file

from levelfield.core.errors import UserError
from levelfield.data.transforms import ImageTransforms
from levelfield.models import TimmTrunk
from levelfield.training.build import Training

FOLDER = Path(__file__).parents[2] / "configs" / "trunk"
FILES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))}
# How the weights pool, from their papers: DINOv2 (Oquab 2023) and CLIP (Radford 2021) by the class token, SigLIP (Zhai
# 2023) by attention. EVA-02 is tuned on means, EVA-02-CLIP on the class token.
POOLED_BY = {
    **dict.fromkeys(("dinov2_small", "dinov2_base", "clip_base", "clip_base32", "eva02_base"), "token"),
    **dict.fromkeys(("siglip_base", "siglip2_base", "siglip2_base32"), "map"),
    "eva02_small": "avg",
}
# Features and millions of parameters without heads: the papers' tables of sizes.
SIZES = {
    **dict.fromkeys(("dinov2_small", "dinov3_small", "eva02_small"), (384, 22)),
    **dict.fromkeys(("dinov3_base", "clip_base", "eva02_base"), (768, 86)),
    **dict.fromkeys(("dinov2_base", "clip_base32"), (768, 87)),
    **dict.fromkeys(("siglip_base", "siglip2_base"), (768, 93)),
    **{"siglip2_base32": (768, 95), "convnextv2_tiny": (768, 28), "convnextv2_base": (1024, 88)},
}


@pytest.mark.parametrize("name", SIZES)
def test_a_file_gives_what_the_weights_were_trained_with(name):
    with torch.device("meta"):
        trunk = TimmTrunk(**{**FILES[name]["model"]["trunk"]["init_args"], "weights": None})
    known = timm.models.get_pretrained_cfg(FILES[name]["model"]["trunk"]["init_args"]["name"])
    assert known.hf_hub_id  # there are weights of that name
    assert (trunk.mean, trunk.std) == (known.mean, known.std)
    transforms = FILES[name]["data"]["transforms"]
    assert (3, transforms["crop_size"], transforms["crop_size"]) == known.input_size
    assert transforms["resize"] == math.floor(transforms["crop_size"] / known.crop_pct)  # as timm evaluates
    assert (transforms["interpolation"], known.crop_mode) == (known.interpolation, "center")
    ImageTransforms(**transforms)
    assert (trunk.num_features, round(sum(p.numel() for p in trunk.parameters()) / 1e6)) == SIZES[name]
    if name in POOLED_BY:
        assert trunk.model.global_pool == POOLED_BY[name]
    size = transforms["crop_size"]
    assert trunk(torch.rand(2, 3, size, size, device="meta")).shape == (2, trunk.num_features)
    smaller = size - size % 32 - 32 if "dinov2" not in name and name != "eva02_small" else 224
    assert trunk(torch.rand(1, 3, smaller, smaller, device="meta")).shape == (1, trunk.num_features)


def test_a_file_after_the_data_s_sets_the_data_s_sizes(tmp_path):
    config = {"model": FILES["tiny"]["model"] | {"loss": "ContrastiveLoss"}, "data": {"dataset": "Glyphs"}}
    config["data"] |= FILES["dinov2_small"]["data"]
    transforms = Training(config, tmp_path).build().datamodule.transforms
    assert (transforms.crop_size, transforms.resize, transforms.interpolation) == (518, 518, "bicubic")


SMALL = {"img_size": 56, "embed_dim": 24, "depth": 2, "num_heads": 2}


def small(name: str, **given) -> TimmTrunk:
    given = {"weights": None, "arguments": SMALL} | given
    return TimmTrunk(FILES[name]["model"]["trunk"]["init_args"]["name"], **given)


@pytest.mark.parametrize("name", ["dinov2_small", "dinov3_small", "siglip2_base32", "clip_base32", "eva02_small"])
def test_timm_s_file_of_weights(name, tmp_path):
    """Random weights in the layout of the hub's file, head and all."""
    arguments = SMALL | ({"patch_size": 14} if name != "eva02_small" else {})
    torch.manual_seed(0)
    source = timm.create_model(FILES[name]["model"]["trunk"]["init_args"]["name"], **arguments).eval()
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    trunk = small(name, weights=str(tmp_path / "model.safetensors"), arguments=arguments).eval()
    images = torch.rand(2, 3, 56, 56)
    mean, std = (torch.tensor(source.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = source.forward_head(source.forward_features((images - mean) / std), pre_logits=True)
        torch.testing.assert_close(trunk(images), expected)
        again = TimmTrunk(**trunk.init_args).eval()
        assert torch.equal(again(images), trunk(images))


def test_dinov2_s_own_file(tmp_path):
    """Oquab et al. give the class token a position of its own, timm adds it to the token."""
    ours = small("dinov2_small").model.state_dict()
    theirs = {key: value for key, value in ours.items() if key not in ("cls_token", "reg_token", "pos_embed")}
    positions, classes = torch.randn(1, 17, 24), torch.randn(1, 1, 24)
    theirs |= {"register_tokens": ours["reg_token"], "mask_token": torch.zeros(1, 24)}
    torch.save({**theirs, "cls_token": classes, "pos_embed": positions}, tmp_path / "dinov2_vits14_reg4_pretrain.pth")
    found = small("dinov2_small", weights=str(tmp_path / "dinov2_vits14_reg4_pretrain.pth")).model.state_dict()
    assert torch.equal(found.pop("cls_token"), classes + positions[:, :1])
    assert torch.equal(found.pop("pos_embed"), positions[:, 1:])
    assert all(torch.equal(value, ours[key]) for key, value in found.items())


@pytest.mark.parametrize(
    ("name", "arguments", "side", "line"),
    [
        ("dinov2_small", {}, 64, r"images of 64 x 64 px: .*64.*56.*; give trunk 'vit_small.*crop_size"),
        ("dinov2_small", {"dynamic_img_size": True}, 64, r"64.*divisible by patch size \(14\); give .*crop_size"),
        ("dinov3_small", {"img_size": 48}, 56, r"56.*divisible by patch size \(16\); give .*crop_size"),
    ],
)
def test_images_that_the_patches_do_not_tile_are_refused(name, arguments, side, line):
    trunk = small(name, arguments=SMALL | arguments)
    with pytest.raises(UserError, match=line):
        trunk(torch.rand(1, 3, side, side))
    with pytest.raises(UserError, match=r"--model.trunk.arguments.*divisible by patch size"):
        small("dinov3_small", arguments=SMALL)


def test_with_no_hub_in_reach_one_line_says_what_to_give(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"no hub in reach, give --model.trunk.weights a file") as raised:
        TimmTrunk("test_vit", weights="pretrained")
    assert "\n" not in str(raised.value)


DAMAGED = {
    **{"noise.safetensors": bytes(range(256)) * 9, "empty.safetensors": b"", "short.pt": b"PK\3\4" + bytes(99)},
    "short.safetensors": save({"a": torch.zeros(9)})[:-9],
    **{"numbers.pt": {1: torch.zeros(9)}, "values.pt": {"a": 3, "b": [1]}, "list.pt": [torch.zeros(9)]},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_weights_is_one_line(name, tmp_path):
    content = DAMAGED[name]
    (tmp_path / name).write_bytes(content) if isinstance(content, bytes) else torch.save(content, tmp_path / name)
    with pytest.raises(UserError, match=name):
        TimmTrunk("test_resnet", weights=str(tmp_path / name))
