"""The first steps of four papers' trainings, derived from their texts, and those of the shipped protocols.

- Musgrave et al., Reality Check (sections 1.2, 1.3, 3.1): batches of 32, 8 classes x 4 or 32 x 1; batch norm frozen;
  RMSprop, 1e-6 for all parameters, a searched rate for a loss' own; embeddings L2-normalised. Its program adds momentum
  0.9 and weight decay 1e-4, of which the margin loss's beta has none, and takes means over what is active.
- Fehervari et al. (sections 2, 4.1): batches of 120 and Adam; the last layer normalised for proxies, raw for N-pairs
  (Table 1). The paper gives no rates and no weight decay: the rates are the protocol's own, and weights do not decay.
- Vasilev and D'yakonov (sections 3.2.1, 4.2): Adam, one rate for all weights, batches of 32 to 128; for texts the first
  100 iterations warm up. The paper does not say how: the protocol's step k has k/100 of the rate (their code's has
  (k - 1)/100, so that its first step moves nothing). Their ArcFace has no fallback beyond 180 degrees.
- Zhai and Wu (sections 3, 4.1): one epoch updates the new parameters alone; then a training of all begins, at a tenth
  of the rate from its epoch 15 on. SGD with momentum 0.9 and weight decay 1e-4, rate 0.001. Batches of 75, 25 of each
  class, drawn with replacement. Layer norm without scale and shift, a linear layer without bias, temperature 0.05.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from tiny_fit import REPOSITORY
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from levelfield.cli.main import main

Weights = dict[str, Tensor]
MARGIN, BETA, LOSS_LR = 0.1, 1.1, 0.003
ARC_RATE, SCALE, ANGLE = 1e-4, 64.0, 0.5  # radians
FEHERVARI = {"trunk": 1e-5, "embedder": 1e-4, "loss": 0.01}


class SmallTrunk(nn.Module):
    """A convolution, batch norm, ReLU and the mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8
        self.conv = nn.Conv2d(3, self.num_features, 5, stride=4, bias=False)
        self.bn = nn.BatchNorm2d(self.num_features)
        self.bn.running_mean.uniform_(-0.3, 0.3)  # a pretrained trunk's statistics are those of other images
        self.bn.running_var.uniform_(0.1, 0.3)

    def forward(self, images: Tensor) -> Tensor:
        return self.bn(self.conv(images)).relu().mean(dim=(2, 3))


class SmallTextTrunk(nn.Module):
    """The mean of one vector a letter."""

    modality = "text"

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8
        self.letters = nn.Embedding(128, self.num_features)

    def forward(self, texts: list[str]) -> Tensor:
        return torch.stack([self.letters(torch.tensor([ord(each) % 128 for each in text])).mean(0) for text in texts])


class Training(Callback):
    """Keeps a training as it goes by: its batches, and parameters and buffers by name before and after each step."""

    kept: "Training"

    def on_train_start(self, trainer, pl_module) -> None:
        Training.kept, self.batches, self.after = self, [], []
        self.before, self.class_of = values(pl_module), trainer.datamodule.train_subset.labels.tolist()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.batches.append(tuple(batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.after.append(values(pl_module))


def values(learner: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in learner.state_dict().items()}


def features(images: Tensor, weights: Weights, frozen: bool) -> Tensor:
    """The small trunk by hand. Batch norm, unless it is frozen, notes what it measured in this batch."""
    maps = nn.functional.conv2d(images, weights["trunk.module.conv.weight"], stride=4)
    norm = [weights[f"trunk.module.bn.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    return nn.functional.batch_norm(maps, *norm, training=not frozen).relu().mean((2, 3))


def linear(pooled: Tensor, weights: Weights) -> Tensor:
    return pooled @ weights["embedder.linear.weight"].T + weights["embedder.linear.bias"]


def unit(points: Tensor) -> Tensor:
    return points / points.norm(dim=1, keepdim=True)


def softmax(pooled: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Cross entropy with the columns of the weight matrix L2-normalised, temperature 0.1."""
    logits = unit(linear(pooled, weights)) @ unit(weights["loss.class_weights"]).T / 0.1
    return (logits.logsumexp(1) - logits[torch.arange(len(labels)), labels]).mean()


def triplets(pooled: Tensor, labels: Tensor, weights: Weights, boundary: bool = False) -> Tensor:
    """Equation 2; with a boundary equation 1 with m_pos = beta - alpha and m_neg = beta + alpha."""
    embeddings = unit(linear(pooled, weights))
    same = torch.tensor([[one == other for other in labels.tolist()] for one in labels.tolist()])
    positives = same & ~torch.eye(len(labels), dtype=torch.bool)
    a, p, n = (positives[:, :, None] & ~same[:, None, :]).nonzero(as_tuple=True)  # every triplet of the batch
    d_ap, d_an = ((embeddings[a] - embeddings[other]).square().sum(1).sqrt() for other in (p, n))
    terms = d_ap - d_an + MARGIN
    if boundary:
        beta = next(value for name, value in weights.items() if name.startswith("loss."))
        terms = torch.cat([d_ap - (beta - MARGIN), (beta + MARGIN) - d_an])
    return terms[terms > 0].mean()


def n_pairs(pooled: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Equation 3, by products: the logarithm of 1 + sum over the other pairs' positives of exp(a.n - a.p)."""
    embeddings, given = linear(pooled, weights), labels.tolist()
    pairs = {label: [i for i, other in enumerate(given) if other == label] for label in given}
    terms = []
    for label, (a, p) in pairs.items():
        others = [q for other, (_, q) in pairs.items() if other != label]
        differences = embeddings[others] @ embeddings[a] - embeddings[p] @ embeddings[a]
        terms.append((1 + differences.exp().sum()).log())
    return torch.stack(terms).mean()


def proxy_nca(pooled: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Equation 14 with squared distances of embeddings and proxies that are normalised and three times as long."""
    embeddings, proxies = 3 * unit(linear(pooled, weights)), 3 * unit(weights["loss.class_weights"])
    distances = (embeddings[:, None] - proxies).square().sum(2)
    terms = []
    for row, label in zip(distances, labels.tolist(), strict=True):
        negatives = torch.cat([row[:label], row[label + 1 :]])
        terms.append(row[label] + (-negatives).exp().sum().log())
    return torch.stack(terms).mean()


def arcface(pooled: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Equation 12: cross entropy of s cos, with the angle to the own class widened by m."""
    cosines = unit(linear(pooled, weights)) @ unit(weights["loss.class_weights"]).T
    rows = torch.arange(len(labels))
    angles = cosines[rows, labels].arccos()
    assert (angles + ANGLE).max() < torch.pi
    logits = SCALE * cosines.index_put((rows, labels), (angles + ANGLE).cos())
    return (logits.logsumexp(1) - logits[rows, labels]).mean()


def zhai_wu(pooled: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Equation 1, behind a layer norm."""
    centred = pooled - pooled.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    embeddings = unit(normed @ weights["embedder.linear.weight"].T)
    exponents = embeddings @ unit(weights["loss.class_weights"]).T / 0.05
    return (-(exponents[torch.arange(75), labels].exp() / exponents.exp().sum(1)).log()).mean()


@dataclass
class Case:
    """A training; `rate` is of a weight's name at a step, which counts from 1, and 0 where it does not learn yet.

    RMSprop has momentum 0.9 and a smoothing of 0.99; Adam's moments are of 0.9 and 0.999, which are torch's defaults.
    """

    protocol: str
    words: str
    num_classes: int
    batch: int
    each: int
    loss: Callable[[Tensor, Tensor, Weights], Tensor]
    optimizer: Callable[..., Optimizer]
    rate: Callable[[str, int], float]
    decay: Callable[[str], float] = lambda name: 0.0
    frozen: bool = False
    steps: int = 10
    restarts: int = 0  # the step at which the optimizer begins again


RMSPROP = partial(RMSprop, momentum=0.9, alpha=0.99)


def reality(words: str, each: int, loss: Callable[..., Tensor], loss_decay: float = 1e-4) -> Case:
    def rate(key: str, step: int) -> float:
        return LOSS_LR if key.startswith("loss.") else 1e-6

    def decay(key: str) -> float:
        return loss_decay if key.startswith("loss.") else 1e-4

    return Case("reality_check", words, 96, 32, each, loss, RMSPROP, rate, decay, True)


def fehervari(words: str, each: int, loss: Callable[..., Tensor]) -> Case:
    return Case("fehervari", words, 172, 120, each, loss, Adam, lambda key, step: FEHERVARI[key.partition(".")[0]])


OWN = f"--model.loss_lr {LOSS_LR}"
SOFTMAX = "--model.loss NormalizedSoftmaxLoss --data.samples_per_class 1"
BOUNDARY = f"--config method/margin --model.loss.margin {MARGIN}"
ONE_RATE = " ".join(f"--model.{part}_lr={ARC_RATE}" for part in ("trunk", "embedder", "loss"))
ARC = f"--model.loss ArcFaceLoss --model.loss.scale {SCALE} --model.loss.margin {ANGLE * 57.29577951308232} {ONE_RATE}"
PROXIES = "--model.loss ProxyNCALoss --model.loss.softmax_scale 9 --model.loss.exclude_positive true"
PAIRS = "--model.loss NPairsLoss --model.loss.normalize false --model.normalize false --model.distance euclidean "
CASES = {
    "triplet margin": reality(f"--model.loss TripletMarginLoss --model.loss.margin {MARGIN}", 4, triplets),
    "normalized softmax": reality(f"{SOFTMAX} --model.loss.temperature 0.1 {OWN}", 1, softmax),
    "margin": reality(f"{BOUNDARY} --model.loss.beta {BETA} {OWN}", 4, partial(triplets, boundary=True), 0.0),
    "N-pairs, of 60 classes (section 2.4)": fehervari(f"{PAIRS} --data.samples_per_class 2", 2, n_pairs),
    "proxies, by the protocol's own choice of 5 a class": fehervari(PROXIES, 5, proxy_nca),
    "images": Case("vasilev_dyakonov", ARC, 56, 64, 4, arcface, Adam, lambda key, step: ARC_RATE, frozen=True),
    "texts": Case("vasilev_dyakonov_text", ARC, 20, 32, 8, arcface, Adam, lambda key, step: ARC_RATE * step / 100),
    "zhai_wu": Case(
        *("zhai_wu", "--trainer.limit_val_batches 0 --trainer.enable_checkpointing false", 48, 75, 25, zhai_wu),
        partial(SGD, momentum=0.9),
        lambda key, step: 0.0 if step == 1 and key.startswith("trunk.") else 0.001 if step < 17 else 0.0001,
        lambda key: 1e-4,
        **{"steps": 18, "restarts": 2},
    ),
}


def trained(folder: Path, case: Case, epochs: int) -> Training:
    """The training of `levelfield fit` with a protocol's file, in float64 with a trunk of 8 features."""
    data = f"Glyphs --data.dataset.num_classes {case.num_classes} --data.dataset.image_size 36 "
    data += "--data.transforms.resize 36 --data.transforms.crop_size 32 --model.trunk test_ten_steps.SmallTrunk"
    if case.protocol.endswith("_text"):
        rows = [f"the {n}th text of the {chr(97 + c) * 3} thing,thing {c:02d}" for c in range(20) for n in range(9)]
        (folder / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        data = f"TextTable --data.dataset.table {folder}/texts.csv --model.trunk test_ten_steps.SmallTextTrunk"
        data += " --model.embedder LinearEmbedder"
    options = f"--config {REPOSITORY}/configs/protocol/{case.protocol}.yaml --data.dataset {data} --output {folder}"
    options += " --model.embedding_size 6 --trainer.callbacks+ test_ten_steps.Training --trainer.precision 64-true"
    options += f" --trainer.accelerator cpu --trainer.enable_progress_bar false --trainer.max_epochs {epochs}"
    options += f" --data.steps_per_epoch {case.steps // epochs} {case.words}"
    assert main(["fit", *options.split()]) == 0
    return Training.kept


@pytest.mark.parametrize("name", CASES)
def test_steps_by_hand(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    training = trained(tmp_path, case, epochs=case.steps if name == "zhai_wu" else 1)
    assert len(training.batches) == case.steps
    weights = {key: value.clone() for key, value in training.before.items() if not key.endswith("num_batches_tracked")}
    learning = {key: value.requires_grad_() for key, value in weights.items() if ".running_" not in key}
    repeated = 0
    for step, (samples, labels, positions) in enumerate(training.batches, 1):
        assert list(Counter(labels.tolist()).values()) == [case.each] * (case.batch // case.each)
        if case.protocol == "reality_check":
            assert [training.class_of[position] for position in positions] == labels.tolist()
        repeated += len(positions) - len(set(positions.tolist()))
        if step in (1, case.restarts):
            optimizers = {
                key: case.optimizer([weight], lr=0.0, weight_decay=case.decay(key)) for key, weight in learning.items()
            }
        if case.protocol.endswith("_text"):
            vectors = weights["trunk.module.letters.weight"]
            pooled = torch.stack([sum(vectors[ord(letter) % 128] for letter in text) / len(text) for text in samples])
        else:
            assert samples.dtype == torch.float64
            pooled = features(samples, weights, case.frozen)
        case.loss(pooled, labels, weights).backward()
        for key, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = rate = case.rate(key, step)
            if rate:
                optimizer.step()
            optimizer.zero_grad()
        for key, value in weights.items():  # the whole way so far agrees to six digits
            before, after = training.before[key], training.after[step - 1][key]
            way, ours = value.detach() - before, after - before
            torch.testing.assert_close(ours, way, rtol=1e-6, atol=1e-14, msg=lambda m, at=(step, key): f"{at}: {m}")
    assert (repeated > 0) == (name == "zhai_wu"), "drawn with replacement"
    if name == "zhai_wu":
        assert training.before["loss.class_weights"].abs().max() <= 6**-0.5  # uniform in +-1/sqrt(D), as in their code
        assert [key for key in training.before if "embedder" in key] == ["embedder.linear.weight"]
