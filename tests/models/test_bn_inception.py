"""BN-Inception: the public checkpoint's names and shapes, its weights from an address or a file, its input."""

import hashlib

import pytest
import torch

from levelfield.core.errors import UserError
from levelfield.models import BNInceptionTrunk, bn_inception
from levelfield.models.bn_inception import BNInception

# SHA-256 of the names and shapes in the public ImageNet checkpoint, in its order.
PUBLISHED = "c068efa6f2e58b25892301b1f4052c639736ef5235715badc60a463dd343138a"


@pytest.fixture(scope="module")
def checkpoint() -> dict[str, torch.Tensor]:
    """A file with the published names and shapes; variances are positive."""
    generator = torch.Generator().manual_seed(0)
    tensors = BNInception(num_classes=1000).state_dict()
    for name, tensor in tensors.items():
        drawn = 0.05 * torch.randn(tensor.shape, generator=generator)
        tensors[name] = torch.tensor(7) if name.endswith("num_batches_tracked") else drawn
        if name.endswith("running_var"):
            tensors[name] = 0.5 + drawn.abs()
    return tensors


def test_names_and_shapes_are_the_published_ones(checkpoint):
    listed = "".join(f"{name} {tuple(tensor.shape)}\n" for name, tensor in BNInception(1000).state_dict().items())
    assert hashlib.sha256(listed.encode()).hexdigest() == PUBLISHED


def test_a_227_px_image_comes_to_7_by_7_maps_and_112_px_are_refused():
    trunk = BNInceptionTrunk(weights=None).train()
    sides = []
    trunk.model.inception_5b_1x1.register_forward_hook(lambda module, inputs, maps: sides.append(maps.shape[2:]))
    with torch.no_grad():
        trunk(torch.rand(1, 3, 227, 227))
        trunk.eval()(torch.rand(1, 3, 224, 224))
    assert sides == [(7, 7), (7, 7)]
    with pytest.raises(UserError, match="112 px evenly: give a crop_size of 227, or any multiple of 32"):
        trunk(torch.rand(1, 3, 112, 112))


def test_images_enter_as_bgr_from_0_to_255_less_the_mean():
    trunk = BNInceptionTrunk(weights=None)
    entered = []
    trunk.model.conv1_7x7_s2.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    trunk.eval()(torch.tensor([0.2, 0.4, 0.8]).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    expected = [0.8 * 255 - 104, 0.4 * 255 - 117, 0.2 * 255 - 128]
    torch.testing.assert_close(entered[0][0, :, 0, 0], torch.tensor(expected))


def test_a_pool_of_a_block_averages_over_nine_and_5b_takes_the_maximum():
    network = BNInception()
    entered = {}
    for block in ("3a", "5b"):
        getattr(network, f"inception_{block}_pool_proj").register_forward_pre_hook(
            lambda module, inputs, block=block: entered.update({block: inputs[0]})
        )
    ramp = torch.arange(9.0).view(1, 1, 3, 3)
    network.eval()._run_block("3a", ramp.expand(1, 192, 3, 3))
    network._run_block("5b", ramp.expand(1, 1024, 3, 3))
    torch.testing.assert_close(9 * entered["3a"][0, 0], torch.tensor([[8.0, 15, 12], [21, 36, 27], [20, 33, 24]]))
    assert entered["5b"][0, 0].tolist() == [[4, 5, 5], [7, 8, 8], [7, 8, 8]]


@pytest.mark.parametrize("age", ["today", "no counters", "leading dimension", "no head"])
def test_weights_of_any_age_load(age, checkpoint, tmp_path):
    state = dict(checkpoint)
    if age in ("no counters", "leading dimension"):
        state = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    if age == "leading dimension":
        state = {name: tensor[None] if "_bn." in name else tensor for name, tensor in state.items()}
    if age == "no head":
        state = {name: tensor for name, tensor in state.items() if not name.startswith("last_linear")}
    torch.save(dict(sorted(state.items())), tmp_path / "weights.pth")  # names match in any order
    trunk = BNInceptionTrunk(weights=str(tmp_path / "weights.pth"))
    assert trunk.weights_origin.startswith("weights.pth (sha256 ")
    loaded = trunk.model.state_dict()
    for name in checkpoint:
        if name.endswith("num_batches_tracked"):
            assert loaded[name] == (0 if age in ("no counters", "leading dimension") else 7)
        elif not name.startswith("last_linear"):
            assert torch.equal(loaded[name], checkpoint[name]), name


def test_pretrained_weights_are_downloaded_once_and_checked(checkpoint, tmp_path, monkeypatch):
    served = tmp_path / "bn_inception-52deb4733.pth"
    torch.save(checkpoint, served)
    digest = hashlib.sha256(served.read_bytes()).hexdigest()
    monkeypatch.setattr(bn_inception, "WEIGHTS_URL", served.as_uri())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    with pytest.raises(UserError, match=r"cannot download file://.*hash.*put the file into"):
        BNInceptionTrunk()
    monkeypatch.setattr(bn_inception, "WEIGHTS_SHA256", digest)
    trunk = BNInceptionTrunk()
    assert torch.equal(trunk.model.conv1_7x7_s2.weight, checkpoint["conv1_7x7_s2.weight"])
    assert (trunk.weights_origin, trunk.licence) == (served.as_uri(), bn_inception.WEIGHTS_LICENCE)
    served.unlink()
    BNInceptionTrunk()  # of the file that is here now
    kept = tmp_path / "torch/hub/checkpoints" / served.name
    torch.save({name: torch.rand_like(tensor.float()) for name, tensor in checkpoint.items()}, kept)
    with pytest.raises(UserError, match=rf"{kept} .*{digest[:16]}.*delete it"):
        BNInceptionTrunk()
    kept.unlink()
    with pytest.raises(UserError, match="cannot download"):
        BNInceptionTrunk()
