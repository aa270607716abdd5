"""Draw docs/neighbours.png: the nearest images of unseen letters, before and after a short training.

    python scripts/readme_picture.py [--checkpoint best.ckpt] [--output docs/neighbours.png]

Without a checkpoint it trains one, in about a minute on 2 CPU cores. The letters are the test half of
`Glyphs(num_classes=240)`, which training and validation do not see. The figure is an illustration, not a comparison.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import lightning
import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from levelfield.data import Glyphs, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models import TimmTrunk
from levelfield.training.embed import EmbeddedSet, embed
from levelfield.training.learner import MetricLearner
from levelfield.training.settings import DEFAULT_TRUNK

LETTERS = "ěķőşūź"
FACE = "DejaVuSerif"
NEIGHBOURS = 8

# Pixels: the README shows the figure at half its width on high-resolution screens.
WIDTH, MARGIN, TILE, SPACE, GUTTER, HEADER, FOOTER = 1200, 16, 61, 3, 34, 74, 42
QUERY = WIDTH - 2 * MARGIN - 2 * GUTTER - 2 * (NEIGHBOURS * (TILE + SPACE) - SPACE)
ZOOM = (-0.04, 1.04, -0.01, 1.07)  # letters leave much of their image empty, least at the bottom
INK, FAINT, WRONG, WRONG_TINT, RIGHT = "#1f2328", "#59636e", "#d1242f", "#ffebe9", "#d1d9e0"


def unseen_letters() -> MetricDataModule:
    """Glyphs with its test half and a training fold."""
    transforms = ImageTransforms(crop_size=64, resize=64, scale=(0.6, 1.0), horizontal_flip=False)
    data = MetricDataModule(Glyphs(num_classes=240), steps_per_epoch=200, transforms=transforms)
    data.setup("fit")
    data.setup("test")
    return data


def short_training(data: MetricDataModule) -> MetricLearner:
    """A learner after 200 steps of 32 images."""
    lightning.seed_everything(0, verbose=False)
    learner = MetricLearner(TimmTrunk(**DEFAULT_TRUNK["init_args"]), ContrastiveLoss(pos_margin=0.2, neg_margin=0.8))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(learner, datamodule=data)
    return learner


def nearest(embedded: EmbeddedSet, query: int) -> Int[Tensor, " neighbours"]:
    """Positions of the nearest other images by cosine."""
    normalised = nn.functional.normalize(embedded.embeddings)
    cosines = normalised @ normalised[query]
    cosines[query] = -2
    return cosines.topk(NEIGHBOURS).indices


def draw(data: MetricDataModule, before: EmbeddedSet, after: EmbeddedSet) -> Figure:
    """One row per letter: the letter, its neighbours before training, its neighbours after it."""
    subset = data.test_subset
    assert subset is not None
    large = Glyphs(num_classes=240, image_size=128)
    height = HEADER + len(LETTERS) * (TILE + SPACE + 6) + FOOTER
    figure = plt.figure(figsize=(WIDTH / 100, height / 100), dpi=100, facecolor="white")

    def tile(left: float, top: float, position: int, edge: str, face: str, line: float) -> None:
        axes = figure.add_axes((left / WIDTH, 1 - (top + TILE) / height, TILE / WIDTH, TILE / height))
        axes.set_axis_off()
        frame = FancyBboxPatch(
            (0.04, 0.04),
            0.92,
            0.92,
            boxstyle="round,pad=0,rounding_size=0.08",
            transform=axes.transAxes,
            facecolor=face,
            edgecolor=edge,
            linewidth=line,
            clip_on=False,
        )
        axes.add_patch(frame)
        ink = 1 - np.asarray(large.load(subset.index.keys[position]).convert("L")) / 255
        coloured = np.dstack([np.broadcast_to(to_rgb(INK), (*ink.shape, 3)), ink])
        axes.imshow(coloured, extent=ZOOM, interpolation="antialiased", zorder=2)
        axes.set(xlim=(0, 1), ylim=(0, 1))

    def text(left: float, top: float, words: str, size: float, colour: str = INK, weight: str = "normal") -> None:
        figure.text(left / WIDTH, 1 - top / height, words, fontsize=size, color=colour, va="baseline", weight=weight)

    blocks = [QUERY + MARGIN + GUTTER, WIDTH - MARGIN - NEIGHBOURS * (TILE + SPACE) + SPACE]
    for left, embedded, title in zip(blocks, (before, after), ("pretrained trunk", "after training"), strict=True):
        score = retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]
        text(left + 3, 34, title, 15, weight="bold")
        text(left + 3, 56, f"MAP@R {100 * score:.0f}% on all {len(subset.classes)} unseen letters", 11, FAINT)
        for row, letter in enumerate(LETTERS):
            query = subset.index.keys.index(f"{ord(letter):04X}/{FACE}")
            top = HEADER + row * (TILE + SPACE + 6)
            tile(MARGIN + (QUERY - TILE) / 2, top, query, INK, "white", 2)
            for column, position in enumerate(nearest(embedded, query).tolist()):
                right = bool(embedded.labels[position] == embedded.labels[query])
                style = (RIGHT, "white", 1.2) if right else (WRONG, WRONG_TINT, 2)
                tile(left + column * (TILE + SPACE), top, position, *style)
    text(MARGIN + (QUERY - TILE) / 2 + 2, 34, "query", 15, weight="bold")
    text(
        blocks[0] + 3,
        height - 16,
        f"The {NEIGHBOURS} nearest of {len(subset):,} pictures of letters that were never trained on, nearest first. "
        "Red: another letter.",
        11,
        FAINT,
    )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="best.ckpt of a fit or study on Glyphs(num_classes=240)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "neighbours.png")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    data = unseen_letters()
    trunk = TimmTrunk(**DEFAULT_TRUNK["init_args"])
    before = embed(trunk, data.test_dataloader())
    checkpoint = arguments.checkpoint
    learner = MetricLearner.load_from_checkpoint(checkpoint) if checkpoint else short_training(data)
    if learner.freeze_trunk:  # the features are from its trunk
        with torch.inference_mode():
            after = before._replace(embeddings=learner.eval().embed_features(before.embeddings))
    else:
        after = embed(learner, data.test_dataloader())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    draw(data, before, after).savefig(arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
