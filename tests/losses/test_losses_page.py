"""The page on losses: its own loss works as it is printed."""

import re
from pathlib import Path

import torch

from levelfield import miners

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


def block_of(name: str) -> str:
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S) if f"class {name}" in block]
    return source


def test_the_regularizer_of_ones_own_works_as_shown():
    scope: dict = {}
    exec(compile(block_of("MyRegularizer"), "my_regularizer.py", "exec"), scope)
    assert float(scope["MyRegularizer"](weight=0.5)(torch.tensor([[1.0, -2], [3, 0]]))) == 1.5


def test_the_loss_of_ten_lines_trains_as_shown(tmp_path):
    source = block_of("MyLoss")
    assert len([line for line in source.splitlines() if line.strip()]) <= 12
    scope: dict = {}
    exec(compile(source, "my_loss.py", "exec"), scope)
    loss = scope["MyLoss"](margin=0.2)
    torch.manual_seed(0)
    samples, labels = torch.randn(16, 8), torch.arange(16) % 4
    trunk = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(trunk.parameters(), lr=0.05)
    values = []
    for _ in range(30):
        embeddings = trunk(samples)
        value = loss(embeddings, labels, miners.MultiSimilarityMiner()(embeddings, labels))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(float(loss(embeddings.detach(), labels)))
    assert values[-1] < 0.8 * values[0]
    unit = embeddings.detach() / embeddings.detach().norm(dim=1, keepdim=True)
    cosines, same = unit @ unit.T, labels[:, None] == labels[None, :]
    pull = (1 - cosines)[same & ~torch.eye(16, dtype=torch.bool)].mean()
    push = (cosines - 0.2).clamp_min(0)[~same].mean()
    torch.testing.assert_close(loss(embeddings.detach(), labels), pull + push)
