"""torchvision's GoogLeNet as a trunk of studies."""

import torch
import torchvision

from papers.zhai_wu.googlenet import GoogLeNetTrunk


def test_it_sees_what_torchvision_s_sees(tmp_path):
    torch.manual_seed(0)
    source = torchvision.models.GoogLeNet(aux_logits=True, init_weights=False, transform_input=True).eval()
    torch.save(source.state_dict(), tmp_path / "googlenet.pth")  # the published file has the auxiliary heads too
    trunk = GoogLeNetTrunk(weights=str(tmp_path / "googlenet.pth")).eval()
    images = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(s).view(3, 1, 1) for s in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    with torch.no_grad():
        expected = source((images - mean) / std)
        torch.testing.assert_close(source.fc(trunk(images)), expected, rtol=1e-4, atol=1e-5)
    assert sum(weight.numel() for weight in trunk.parameters()) == 6_624_904 - 1_025_000  # published, less the head
    trunk.train()(images).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in trunk.parameters())
