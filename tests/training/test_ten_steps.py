"""The first steps of four papers' trainings, derived from their texts, and those of the shipped protocols.

- Musgrave et al., Reality Check (sections 1.2, 1.3, 3.1): batches of 32, 8 classes x 4 or 32 x 1; batch norm frozen;
  RMSprop, 1e-6 for all parameters, a searched rate for a loss' own; embeddings L2-normalised. Its program adds momentum
  0.9 and weight decay 1e-4, of which the margin loss's beta has none, and takes means over what is active.
- Fehervari et al. (sections 2, 4.1): batches of 120 and Adam; the last layer normalised for proxies, raw for N-pairs
  (Table 1). The paper gives no rates and no weight decay: the rates are the protocol's own, and weights do not decay.
- Vasilev and D'yakonov (sections 3.2.1, 4.2): Adam, one rate for all weights, batches of 32 to 128; for texts the first
  100 iterations warm up. The paper does not say how: the protocol's step k has k/100 of the rate (their code's has
  (k - 1)/100, so that its first step moves nothing).
- Zhai and Wu (sections 3, 4.1): one epoch updates the new parameters alone; then a training of all begins, at a tenth
  of the rate from its epoch 15 on. SGD with momentum 0.9 and weight decay 1e-4, rate 0.001. Batches of 75, 25 of each
  class, drawn with replacement. Layer norm without scale and shift, a linear layer without bias, temperature 0.05.
"""

import copy
import math
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
from torch.func import functional_call
from torch.optim import SGD, Adam, Optimizer, RMSprop

from levelfield import losses
from levelfield.cli.main import main

MARGIN, BETA, LOSS_LR = 0.1, 1.1, 0.003
ARC_RATE, ANGLE = 1e-4, math.degrees(0.5)
FEHERVARI = {"trunk": 1e-5, "embedder": 1e-4, "loss": 0.01}
RMSPROP = partial(RMSprop, momentum=0.9, alpha=0.99)


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
        self.before = copy.deepcopy(pl_module.state_dict())
        self.class_of = trainer.datamodule.train_subset.labels.tolist()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.batches.append(tuple(batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.after.append(copy.deepcopy(pl_module.state_dict()))


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
    loss: Callable[..., nn.Module]  # tests/losses/test_equations.py compares it with its equation
    optimizer: Callable[..., Optimizer]
    rate: Callable[[str, int], float]
    decay: Callable[[str], float] = lambda name: 0.0
    frozen: bool = False
    steps: int = 10
    restarts: int = 0  # the step at which the optimizer begins again


def reality(words: str, each: int, loss: Callable[..., nn.Module], loss_decay: float = 1e-4) -> Case:
    def rate(key: str, step: int) -> float:
        return LOSS_LR if key.startswith("loss.") else 1e-6

    def decay(key: str) -> float:
        return loss_decay if key.startswith("loss.") else 1e-4

    return Case("reality_check", words, 96, 32, each, loss, RMSPROP, rate, decay, True)


def fehervari(words: str, each: int, loss: Callable[..., nn.Module]) -> Case:
    return Case("fehervari", words, 172, 120, each, loss, Adam, lambda key, step: FEHERVARI[key.partition(".")[0]])


OWN = f"--model.loss_lr {LOSS_LR}"
SOFTMAX = "--model.loss NormalizedSoftmaxLoss --data.samples_per_class 1"
BOUNDARY = f"--config method/margin --model.loss.margin {MARGIN}"
ONE_RATE = " ".join(f"--model.{part}_lr={ARC_RATE}" for part in ("trunk", "embedder", "loss"))
ARC = f"--model.loss ArcFaceLoss --model.loss.scale 64 --model.loss.margin {ANGLE} {ONE_RATE}"
PROXIES = "--model.loss ProxyNCALoss --model.loss.softmax_scale 9 --model.loss.exclude_positive true"
PAIRS = "--model.loss NPairsLoss --model.loss.normalize false --model.normalize false --model.distance euclidean "
TRIPLETS = partial(losses.TripletMarginLoss, margin=MARGIN)
SOFTMAX_LOSS = partial(losses.NormalizedSoftmaxLoss, temperature=0.1)
LEARNT_BOUNDARY = partial(losses.MarginLoss, margin=MARGIN, beta=BETA, learn_beta=True)
N_PAIRS = partial(losses.NPairsLoss, normalize=False)
OF_PROXIES = partial(losses.ProxyNCALoss, softmax_scale=9, exclude_positive=True)
ARCFACE = partial(losses.ArcFaceLoss, scale=64, margin=ANGLE)
CASES = {
    "triplet margin": reality(f"--model.loss TripletMarginLoss --model.loss.margin {MARGIN}", 4, TRIPLETS),
    "normalized softmax": reality(f"{SOFTMAX} --model.loss.temperature 0.1 {OWN}", 1, SOFTMAX_LOSS),
    "margin": reality(f"{BOUNDARY} --model.loss.beta {BETA} {OWN}", 4, LEARNT_BOUNDARY, 0.0),
    "N-pairs, of 60 classes (section 2.4)": fehervari(f"{PAIRS} --data.samples_per_class 2", 2, N_PAIRS),
    "proxies, by the protocol's own choice of 5 a class": fehervari(PROXIES, 5, OF_PROXIES),
    "images": Case("vasilev_dyakonov", ARC, 56, 64, 4, ARCFACE, Adam, lambda key, step: ARC_RATE, frozen=True),
    "texts": Case("vasilev_dyakonov_text", ARC, 20, 32, 8, ARCFACE, Adam, lambda key, step: ARC_RATE * step / 100),
    "zhai_wu": Case(
        *("zhai_wu", "--trainer.limit_val_batches 0 --trainer.enable_checkpointing false", 48, 75, 25),
        *(partial(losses.NormalizedSoftmaxLoss, temperature=0.05), partial(SGD, momentum=0.9)),
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
    before = {key: value for key, value in training.before.items() if not key.endswith("num_batches_tracked")}
    weights = {key: nn.Parameter(value.clone(), ".running_" not in key) for key, value in before.items()}
    learning = {key: value for key, value in weights.items() if value.requires_grad}
    trunk = (SmallTextTrunk if case.protocol.endswith("_text") else SmallTrunk)().double().train(not case.frozen)
    of_trunk, own = (
        {key.removeprefix(part): value for key, value in weights.items() if key.startswith(part)}
        for part in ("trunk.module.", "loss.")
    )
    sizes = {"num_classes": len(own["class_weights"]), "embedding_size": 6} if "class_weights" in own else {}
    loss, repeated = case.loss(**sizes), 0
    for step, (samples, labels, positions) in enumerate(training.batches, 1):
        assert list(Counter(labels.tolist()).values()) == [case.each] * (case.batch // case.each)
        if case.protocol == "reality_check":
            assert [training.class_of[position] for position in positions] == labels.tolist()
        repeated += len(positions) - len(set(positions.tolist()))
        if step in (1, case.restarts):
            optimizers = {
                key: case.optimizer([weight], lr=0.0, weight_decay=case.decay(key)) for key, weight in learning.items()
            }
        pooled = functional_call(trunk, of_trunk, (samples,))  # batch norm notes what it measures, unless it is frozen
        if name == "zhai_wu":
            pooled = nn.functional.layer_norm(pooled, (8,))
        points = nn.functional.linear(pooled, weights["embedder.linear.weight"], weights.get("embedder.linear.bias"))
        embeddings = points if case.loss is N_PAIRS else points / points.norm(dim=1, keepdim=True)
        functional_call(loss, own, (embeddings, labels)).backward()
        for key, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = rate = case.rate(key, step)
            if rate:
                optimizer.step()
            optimizer.zero_grad()
        for key, value in weights.items():  # the whole way so far agrees to six digits
            way, ours = value.detach() - before[key], training.after[step - 1][key] - before[key]
            torch.testing.assert_close(ours, way, rtol=1e-6, atol=1e-14, msg=lambda m, at=(step, key): f"{at}: {m}")
    assert (repeated > 0) == (name == "zhai_wu"), "drawn with replacement"
    if name == "zhai_wu":
        assert training.before["loss.class_weights"].abs().max() <= 6**-0.5  # uniform in +-1/sqrt(D), as in their code
        assert [key for key in training.before if "embedder" in key] == ["embedder.linear.weight"]
