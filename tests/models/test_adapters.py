"""Adapters, from nothing at first to merged into the trunk."""

import sys

import peft
import pytest
import timm
import torch
from tiny_text import tiny_text_model

from levelfield.core.errors import UserError
from levelfield.models import LoRA, TimmTrunk, TransformersTrunk, adapters

TEXTS = ["Where is my new card?", "it has not come.", "Why was I charged twice?"]
NETWORKS = {
    "vit": ("test_vit", {"depth": 2}),
    "convnext": ("convnextv2_tiny", {"depths": [1, 1, 1, 1], "dims": [8, 8, 8, 16]}),
    "resnet": ("test_resnet", {"zero_init_last": False}),  # else its blocks begin as the identity
}


def trunk_of(kind: str, folder) -> TimmTrunk | TransformersTrunk:
    torch.manual_seed(0)
    if kind in NETWORKS:
        name, arguments = NETWORKS[kind]
        return TimmTrunk(name, weights=None, arguments=arguments).eval()
    return TransformersTrunk(str(tiny_text_model(folder)), weights=None, max_length=64).eval()


def samples_of(kind: str) -> object:
    return TEXTS if kind == "text" else torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))


def learnt(trunk) -> None:
    """As after some steps: no weight of an adapter is 0."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in trunk.parameters():
            if weight.requires_grad:
                weight.copy_(0.3 * torch.randn_like(weight))


@pytest.mark.parametrize("kind", [*NETWORKS, "text"])
def test_the_trunk_at_first_then_another_and_one_network_when_merged(kind, tmp_path):
    plain, trunk = trunk_of(kind, tmp_path), trunk_of(kind, tmp_path)
    convolutions = {"target_modules": ["conv1", "conv2"]} if kind == "resnet" else {}
    adapters.add_adapter(trunk, LoRA(rank=3, alpha=6, **convolutions))
    samples = samples_of(kind)
    with torch.no_grad():
        expected = plain(samples)
        assert torch.equal(trunk(samples), expected)
        learnt(trunk)
        moved = trunk(samples)
        assert not torch.allclose(moved, expected, atol=1e-3)
        own, before = adapters.own_state(trunk), plain.state_dict()
        assert list(own) == list(before)
        assert all(torch.equal(own[key], before[key]) for key in before if isinstance(before[key], torch.Tensor))
        state, learns = trunk.state_dict(), {name for name, weight in trunk.named_parameters() if weight.requires_grad}
        assert adapters.beside_adapter(adapters.without_adapter(state), state).keys() == {*state} - learns
        adapters.merge_adapter(trunk)
        torch.testing.assert_close(trunk(samples), moved, rtol=1e-5, atol=1e-5 * max(1, moved.abs().max().item()))
    assert list(trunk.state_dict()) == list(before)
    assert (trunk.adapter, hasattr(trunk.model, "peft_config")) == (None, False)


def test_lora_is_what_its_paper_says():
    """W x + alpha / r B A x, by hand."""
    trunk = trunk_of("vit", None)
    layer = trunk.model.blocks[0].attn.qkv
    adapters.add_adapter(trunk, LoRA(rank=3, alpha=6, target_modules=["qkv"]))
    learnt(trunk)
    named = {name: weight for name, weight in trunk.named_parameters() if weight.requires_grad}
    assert len(named) == 2 * 2  # A and B of each block
    a, b = (named[f"model.blocks.0.attn.qkv.lora_{part}.default.weight"] for part in "AB")
    assert (a.shape, b.shape) == ((3, 64), (192, 3))
    inputs = torch.rand(5, 64)
    by_hand = inputs @ layer.weight.T + layer.bias + 6 / 3 * (inputs @ a.T) @ b.T
    torch.testing.assert_close(trunk.model.blocks[0].attn.qkv(inputs), by_hand)
    assert trunk.summary().endswith("; LoRA with 1,536 weights that learn")  # 2 blocks of 3 x (64 + 192)


def test_peft_reads_what_is_saved(tmp_path):
    trunk = trunk_of("vit", tmp_path)
    name, arguments = NETWORKS["vit"]
    network = timm.create_model(name, num_classes=0, **arguments).eval()
    network.load_state_dict(trunk.model.state_dict())
    adapters.add_adapter(trunk, LoRA(rank=3, alpha=6))
    learnt(trunk)
    adapters.save_adapter(trunk, tmp_path / "adapter")
    written = sorted(path.name for path in (tmp_path / "adapter").iterdir())
    assert written == ["adapter_config.json", "adapter_model.safetensors"]
    theirs = peft.PeftModel.from_pretrained(network, str(tmp_path / "adapter")).eval()
    images = samples_of("vit")
    with torch.no_grad():
        torch.testing.assert_close(theirs(trunk.standardise(images)), trunk(images))
    assert peft.PeftConfig.from_pretrained(str(tmp_path / "adapter")).base_model_name_or_path == "test_vit"


def test_what_cannot_be_is_one_line(monkeypatch, tmp_path):
    vit, resnet = trunk_of("vit", tmp_path), TimmTrunk("test_resnet", weights=None)
    with pytest.raises(UserError, match=r"target_modules \['qvk'\]: .* end in .*attn.qkv, attn.proj, mlp"):
        adapters.add_adapter(vit, LoRA(target_modules=["qvk"]))
    with pytest.raises(UserError, match=r"target_modules all-linear: .* end in .*conv1"):
        adapters.add_adapter(resnet, LoRA())
    with pytest.raises(UserError, match=r"--model.trunk.adapter.rank 0"):
        LoRA(rank=0)
    adapters.add_adapter(vit, LoRA(rank=1))
    with pytest.raises(UserError, match=r"--model.freeze_trunk true"):
        vit.freeze()
    with pytest.raises(UserError, match="has an adapter already"):
        adapters.add_adapter(vit, LoRA(rank=1))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"adapters need peft: pip install 'levelfield\[adapters\]'"):
        adapters.add_adapter(trunk_of("vit", tmp_path), LoRA())
