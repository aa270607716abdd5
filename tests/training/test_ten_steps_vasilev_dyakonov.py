"""Ten steps of Vasilev and D'yakonov's trainings, derived from sections 3.2.1 and 4.2 of their paper.

Adam, one rate for all weights, batches of 32 to 128; for texts the first 100 iterations warm up. The paper does not say
how: the protocol's step k has k/100 of the rate (their code's has (k - 1)/100, so that its first step moves nothing). A
linear layer on the trunk. Their ArcFace has no fallback where the angle passes 180 degrees; it does not here.
"""

from pathlib import Path

import pytest
import torch
from ten_steps import assert_moved_alike, classes_and_repeats, features, leaves, trained
from torch import Tensor

RATE, SCALE, ANGLE = 1e-4, 64.0, 0.5  # radians
RATES = [f"--model.{part}_lr={RATE}" for part in ("trunk", "embedder", "loss")]
ARCFACE = [
    "--model.loss",
    "ArcFaceLoss",
    "--model.loss.scale",
    str(SCALE),
    "--model.loss.margin",
    str(ANGLE * 57.29577951308232),
]
TEN = ["--data.steps_per_epoch", "10", "--trainer.max_epochs", "1"]


def arcface(embeddings: Tensor, labels: Tensor, own: Tensor) -> Tensor:
    """Equation 12: cross entropy of s cos, with the angle to the own class widened by m."""
    cosines = embeddings @ (own / own.norm(dim=1, keepdim=True)).T
    rows = torch.arange(len(labels))
    angles = cosines[rows, labels].arccos()
    assert (angles + ANGLE).max() < torch.pi
    logits = SCALE * cosines.index_put((rows, labels), (angles + ANGLE).cos())
    return (logits.logsumexp(1) - logits[rows, labels]).mean()


def adam(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], step: int, rate: float) -> Tensor:
    """Adam's moments of 0.9 and 0.999, corrected for where they began; `step` counts from 1."""
    state["first"] = 0.9 * state.get("first", 0 * gradient) + 0.1 * gradient
    state["second"] = 0.999 * state.get("second", 0 * gradient) + 0.001 * gradient**2
    first, second = state["first"] / (1 - 0.9**step), state["second"] / (1 - 0.999**step)
    return weight - rate * first / (second.sqrt() + 1e-8)


def letters(texts: list[str], vectors: Tensor) -> Tensor:
    """The small text trunk by hand."""
    return torch.stack([sum(vectors[ord(letter) % 128] for letter in text) / len(text) for text in texts])


@pytest.mark.parametrize("modality", ["image", "text"])
def test_ten_steps_by_hand(modality: str, tmp_path: Path) -> None:
    if modality == "image":
        protocol, batch, each = "vasilev_dyakonov", 64, 4
        words = ["--data.dataset.num_classes", "56"]
    else:
        protocol, batch, each = "vasilev_dyakonov_text", 32, 8
        rows = [f"the {n}th text of the {chr(97 + c) * 3} thing,thing {c:02d}" for c in range(20) for n in range(9)]
        (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        words = ["--data.dataset", "TextTable", "--data.dataset.table", str(tmp_path / "texts.csv")]
        words += ["--model.trunk", "ten_steps.SmallTextTrunk", "--model.embedder", "LinearEmbedder"]
    training = trained(tmp_path, protocol, *words, *ARCFACE, *RATES, *TEN, modality=modality)
    assert len(training.batches) == 10
    weights, states = training.before, {key: {} for key in training.before}
    for step, (samples, labels, positions) in enumerate(training.batches):
        counts, repeats = classes_and_repeats(labels.tolist(), positions.tolist())
        assert list(counts.values()) == [each] * (batch // each)
        assert repeats == 0
        learning = leaves(weights)
        if modality == "image":
            pooled, _, _ = features(samples, {**weights, **learning}, frozen=True)
        else:
            pooled = letters(samples, learning["trunk.module.letters.weight"])
        embeddings = pooled @ learning["embedder.linear.weight"].T + learning["embedder.linear.bias"]
        embeddings = embeddings / embeddings.norm(dim=1, keepdim=True)
        arcface(embeddings, labels, learning["loss.class_weights"]).backward()
        rate = RATE if modality == "image" else RATE * (step + 1) / 100
        moved = {
            key: adam(weight.detach(), weight.grad, states[key], step + 1, rate) for key, weight in learning.items()
        }
        weights = {**weights, **moved}
        assert_moved_alike(training, step, weights)
