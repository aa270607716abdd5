"""Ten steps of the Reality Check's training, derived from its text: sections 1.2, 1.3 and 3.1, and its program's rates.

The paper says: batches of 32, 8 classes x 4 or 32 x 1; batch norm frozen; all parameters by RMSprop with 1e-6, a loss'
own by RMSprop with a rate that is searched; embeddings L2-normalised. Its program adds momentum 0.9 and weight decay
1e-4, of which the margin loss's beta has none.
"""

from pathlib import Path

import pytest
import torch
from ten_steps import Training, assert_moved_alike, classes_and_repeats, features, leaves, method, trained
from torch import Tensor

WORDS = ("--data.dataset.num_classes", "96", "--data.steps_per_epoch", "10", "--trainer.max_epochs", "1")
MARGIN, TEMPERATURE, BETA, LOSS_LR = 0.1, 0.1, 1.1, 0.003
# A method's file, what is set in it, and the images of each class in a batch.
CASES = {
    "triplet_margin": (["--model.loss.margin", str(MARGIN)], 4),
    "normalized_softmax": (["--model.loss.temperature", str(TEMPERATURE), "--model.loss_lr", str(LOSS_LR)], 1),
    "margin": (
        ["--model.loss.margin", str(MARGIN), "--model.loss.beta", str(BETA), "--model.loss_lr", str(LOSS_LR)],
        4,
    ),
}


def loss_of(name: str, embeddings: Tensor, labels: list[int], own: Tensor | None) -> Tensor:
    """The paper's loss over the batch; a mean over what is active, as in its program."""
    if name == "normalized_softmax":  # cross entropy with the columns of the weight matrix L2-normalised
        directions = own / own.norm(dim=1, keepdim=True)
        logits = embeddings @ directions.T / TEMPERATURE
        own_logits = logits[torch.arange(len(labels)), torch.tensor(labels)]
        return (logits.logsumexp(1) - own_logits).mean()
    same = torch.tensor([[one == other for other in labels] for one in labels])
    positives = same & ~torch.eye(len(labels), dtype=torch.bool)
    a, p, n = (positives[:, :, None] & ~same[:, None, :]).nonzero(as_tuple=True)  # every triplet of the batch
    d_ap, d_an = ((embeddings[a] - embeddings[other]).square().sum(1).sqrt() for other in (p, n))
    terms = d_ap - d_an + MARGIN  # equation 2
    if name == "margin":  # equation 1 with m_pos = beta - alpha and m_neg = beta + alpha
        terms = torch.cat([d_ap - (own - MARGIN), (own + MARGIN) - d_an])
    return terms[terms > 0].mean()


def rmsprop(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, decay: float) -> Tensor:
    """RMSprop with momentum 0.9; a smoothing of 0.99 is torch's."""
    gradient = gradient + decay * weight
    state["square"] = 0.99 * state.get("square", 0 * gradient) + 0.01 * gradient**2
    state["speed"] = 0.9 * state.get("speed", 0 * gradient) + gradient / (state["square"].sqrt() + 1e-8)
    return weight - lr * state["speed"]


def check_steps(name: str, training: Training) -> None:
    weights, states = training.before, {key: {} for key in training.before}
    own_names = [key for key in weights if key.startswith("loss.")]
    for step, (images, labels, _) in enumerate(training.batches):
        learning = leaves(weights)
        pooled, _, _ = features(images, {**weights, **learning}, frozen=True)
        embeddings = pooled @ learning["embedder.linear.weight"].T + learning["embedder.linear.bias"]
        embeddings = embeddings / embeddings.norm(dim=1, keepdim=True)
        own = learning[own_names[0]] if own_names else None
        loss_of(name, embeddings, labels.tolist(), own).backward()
        moved = {}
        for key, weight in learning.items():
            is_own = key.startswith("loss.")
            decay = 0.0 if name == "margin" and is_own else 1e-4
            moved[key] = rmsprop(weight.detach(), weight.grad, states[key], LOSS_LR if is_own else 1e-6, decay)
        weights = {**weights, **moved}  # the statistics of batch norm stay as they were
        assert_moved_alike(training, step, weights)


@pytest.mark.parametrize("name", list(CASES))
def test_ten_steps_by_hand(name: str, tmp_path: Path) -> None:
    words, each = CASES[name]
    training = trained(tmp_path, "reality_check", *WORDS, *method(name), *words)
    assert len(training.batches) == 10
    for images, labels, positions in training.batches:
        counts, repeats = classes_and_repeats(labels.tolist(), positions.tolist())
        assert images.dtype == torch.float64
        assert len(labels) == 32
        assert list(counts.values()) == [each] * (32 // each)
        assert repeats == 0
        assert [training.class_of[position] for position in positions] == labels.tolist()
    check_steps(name, training)
