"""The loss is its equation, computed in a loop in float64."""

import pytest
import torch

from my_project.my_loss import MyLoss


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_it_is_its_equation(margin: float) -> None:
    torch.manual_seed(0)
    embeddings, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 4
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    pulls, pushes = [], []
    for i in range(12):
        for j in range(12):
            cosine = float(unit[i] @ unit[j])
            if i != j and labels[i] == labels[j]:
                pulls.append(1 - cosine)
            elif i != j:
                pushes.append(max(cosine - margin, 0))
    expected = sum(pulls) / len(pulls) + sum(pushes) / len(pushes)
    assert float(MyLoss(margin)(embeddings, labels)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["no negatives", "no positives"])
def test_its_gradient_is_finite(labels: list[int]) -> None:
    embeddings = torch.ones(4, 5, requires_grad=True)  # equal embeddings: a collapsed trunk
    MyLoss()(embeddings, torch.tensor(labels)).backward()
    assert embeddings.grad is not None
    assert torch.isfinite(embeddings.grad).all()
