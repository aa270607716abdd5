"""Ten steps of Fehervari et al.'s training, derived from sections 2 and 4.1 of their paper.

Batches of 120 and Adam; the last layer normalised for proxies, raw for N-pairs (Table 1). The paper gives no rates and
no weight decay: the rates are the protocol's own, 1e-5, 1e-4 and 0.01, and weights do not decay. Nothing is said of
freezing batch norm.
"""

from pathlib import Path

import pytest
import torch
from ten_steps import assert_moved_alike, classes_and_repeats, features, leaves, trained
from torch import Tensor

RATES = {"trunk": 1e-5, "embedder": 1e-4, "loss": 0.01}
# N-pairs: pairs of images of 60 classes (section 2.4); proxies: what the protocol's own choice of 5 a class gives.
CASES = {
    "n_pairs": (
        "--model.loss NPairsLoss --model.loss.normalize false --model.normalize false --model.distance euclidean "
        "--data.samples_per_class 2",
        2,
    ),
    "proxy_nca": (
        "--model.loss ProxyNCALoss --model.loss.softmax_scale 9 --model.loss.exclude_positive true",
        5,
    ),
}


def n_pairs(embeddings: Tensor, labels: list[int]) -> Tensor:
    """Equation 3, by products: the logarithm of 1 + sum over the other pairs' positives of exp(a.n - a.p)."""
    pairs = {label: [i for i, other in enumerate(labels) if other == label] for label in labels}
    terms = []
    for label, (a, p) in pairs.items():
        others = [q for other, (_, q) in pairs.items() if other != label]
        differences = embeddings[others] @ embeddings[a] - embeddings[p] @ embeddings[a]
        terms.append((1 + differences.exp().sum()).log())
    return torch.stack(terms).mean()


def proxy_nca(embeddings: Tensor, labels: list[int], proxies: Tensor) -> Tensor:
    """Equation 14 with squared distances of embeddings and proxies that are normalised and three times as long."""
    proxies = 3 * proxies / proxies.norm(dim=1, keepdim=True)
    distances = (3 * embeddings[:, None] - proxies).square().sum(2)
    terms = []
    for row, label in zip(distances, labels, strict=True):
        negatives = torch.cat([row[:label], row[label + 1 :]])
        terms.append(row[label] + (-negatives).exp().sum().log())
    return torch.stack(terms).mean()


def adam(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], step: int, rate: float) -> Tensor:
    """Adam's moments of 0.9 and 0.999, corrected for where they began; `step` counts from 1."""
    state["first"] = 0.9 * state.get("first", 0 * gradient) + 0.1 * gradient
    state["second"] = 0.999 * state.get("second", 0 * gradient) + 0.001 * gradient**2
    first, second = state["first"] / (1 - 0.9**step), state["second"] / (1 - 0.999**step)
    return weight - rate * first / (second.sqrt() + 1e-8)


@pytest.mark.parametrize("name", list(CASES))
def test_ten_steps_by_hand(name: str, tmp_path: Path) -> None:
    words, each = CASES[name]
    size = ["--data.dataset.num_classes", "172", "--data.steps_per_epoch", "10", "--trainer.max_epochs", "1"]
    training = trained(tmp_path, "fehervari", *words.split(), *size)
    assert len(training.batches) == 10
    weights, states = training.before, {key: {} for key in training.before}
    for step, (images, labels, positions) in enumerate(training.batches):
        counts, repeats = classes_and_repeats(labels.tolist(), positions.tolist())
        assert list(counts.values()) == [each] * (120 // each)
        assert repeats == 0
        learning = leaves(weights)
        pooled, mean, var = features(images, {**weights, **learning}, frozen=False)
        embeddings = pooled @ learning["embedder.linear.weight"].T + learning["embedder.linear.bias"]
        if name == "n_pairs":
            n_pairs(embeddings, labels.tolist()).backward()
        else:
            unit = embeddings / embeddings.norm(dim=1, keepdim=True)
            proxy_nca(unit, labels.tolist(), learning["loss.class_weights"]).backward()
        moved = {
            key: adam(weight.detach(), weight.grad, states[key], step + 1, RATES[key.partition(".")[0]])
            for key, weight in learning.items()
        }
        measured = {
            "trunk.module.bn.running_mean": 0.9 * weights["trunk.module.bn.running_mean"] + 0.1 * mean,
            "trunk.module.bn.running_var": 0.9 * weights["trunk.module.bn.running_var"] + 0.1 * var,
        }
        weights = {**weights, **moved, **measured}
        assert_moved_alike(training, step, {key: weights[key] for key in {**learning, **measured}})
