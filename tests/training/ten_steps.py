"""A shipped protocol, trained by `levelfield fit` for some steps in float64 with a trunk of 8 features, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from lightning.pytorch import Callback
from tiny_fit import REPOSITORY
from torch import Tensor, nn

from levelfield.cli.main import main


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
        return torch.stack(
            [self.letters(torch.tensor([ord(letter) % 128 for letter in text])).mean(0) for text in texts]
        )


@dataclass
class Training:
    """What went into a training and what came out.

    Args:
        before: parameters and buffers by name before the first step.
        batches: samples, labels and positions in the training half of each step.
        after: parameters and buffers after each step.
        class_of: the label of each position that can be drawn.
    """

    before: dict[str, Tensor] = field(default_factory=dict)
    batches: list[tuple] = field(default_factory=list)
    after: list[dict[str, Tensor]] = field(default_factory=list)
    class_of: list[int] = field(default_factory=list)


class Recorder(Callback):
    """Keeps a training as it goes by."""

    kept = Training()

    def on_train_start(self, trainer, pl_module) -> None:
        Recorder.kept = Training(before=_values(pl_module), class_of=trainer.datamodule.train_subset.labels.tolist())

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.kept.batches.append(tuple(batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.kept.after.append(_values(pl_module))


def method(name: str) -> list[str]:
    """The options that lay a shipped method over a protocol."""
    return ["--config", str(REPOSITORY / "configs" / "method" / f"{name}.yaml")]


def trained(folder: Path, protocol: str, *words: str, modality: str = "image") -> Training:
    """The training of `levelfield fit` with a protocol's file; `words` say what is ours in it.

    Args:
        folder: where the fit writes.
        protocol: name of the file in configs/protocol.
        words: options, which come after the protocol.
        modality: `image` takes letters of 32 px cut from 36, and the small trunk.
    """
    small = ["--data.dataset", "Glyphs", "--data.dataset.image_size", "36", "--model.trunk", "ten_steps.SmallTrunk"]
    small += ["--data.transforms.resize", "36", "--data.transforms.crop_size", "32"]
    options = [
        *("--config", str(REPOSITORY / "configs" / "protocol" / f"{protocol}.yaml")),
        *(small if modality == "image" else []),
        *("--model.embedding_size", "6", "--trainer.callbacks+", "ten_steps.Recorder"),
        *("--trainer.precision", "64-true", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
    ]
    Recorder.kept = Training()
    assert main(["fit", *options, *words, "--output", str(folder)]) == 0
    return Recorder.kept


def features(images: Tensor, weights: dict[str, Tensor], frozen: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The small trunk by hand: features, and what batch norm measured in this batch.

    Args:
        images: (N, 3, side, side).
        weights: of the trunk, by the names of a `Training`.
        frozen: whether batch norm goes by its stored statistics.
    """
    maps = nn.functional.conv2d(images, weights["trunk.module.conv.weight"], stride=4)
    mean, var = maps.mean((0, 2, 3)), maps.var((0, 2, 3), unbiased=False)
    used = (weights["trunk.module.bn.running_mean"], weights["trunk.module.bn.running_var"]) if frozen else (mean, var)
    centred, spread = ((it[:, None, None]) for it in used)
    scale, shift = (weights[f"trunk.module.bn.{name}"][:, None, None] for name in ("weight", "bias"))
    normed = (maps - centred) / (spread + 1e-5).sqrt() * scale + shift
    return normed.clamp(min=0).mean((2, 3)), mean.detach(), maps.var((0, 2, 3)).detach()


def leaves(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """What can learn, ready for gradients; batch norm's statistics cannot."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {name: value.clone().requires_grad_() for name, value in values.items() if not name.endswith(statistics)}


def assert_moved_alike(ours: Training, step: int, expected: dict[str, Tensor]) -> None:
    """Each weight lies, after a step, where it was derived to be: its whole way so far agrees to six digits."""
    for name, value in expected.items():
        before, after = ours.before[name], ours.after[step][name]
        way, ours_way = (value.detach() - before), (after - before)
        torch.testing.assert_close(ours_way, way, rtol=1e-6, atol=1e-14, msg=lambda m, n=name: f"step {step}, {n}: {m}")


def classes_and_repeats(labels: Sequence[int], positions: Sequence[int]) -> tuple[dict[int, int], int]:
    """How many samples each class has in a batch, and how many samples are there twice."""
    counts = {label: list(labels).count(label) for label in dict.fromkeys(labels)}
    return counts, len(positions) - len(set(positions))


def _values(learner: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.state_dict().items()}
