"""Draw the nearest images of unseen classes, before and after a training that changed the trunk.

    python scripts/neighbours_picture.py outputs/quickstart/jobs/ntxent/run0/fold0/best.ckpt neighbours.png

The rows are fixed before any training: the first image of six test classes, evenly spaced in the order of the data set.
Nothing is chosen by its result. The counts are over all images of all test classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from torch import Tensor, nn

from levelfield import models
from levelfield.training.checkpoint import data_arguments, load_data, read_checkpoint
from levelfield.training.embed import EmbeddedSet, embed
from levelfield.training.learner import MetricLearner

ROWS, NEIGHBOURS = 6, 8
# Pixels: a page shows the figure at half its width on high-resolution screens.
TILE, SPACE, GUTTER, MARGIN, HEADER, FOOTER = 64, 4, 30, 16, 72, 40
BLOCK = NEIGHBOURS * (TILE + SPACE) - SPACE
LEFTS = (MARGIN, MARGIN + TILE + GUTTER, MARGIN + TILE + 2 * GUTTER + BLOCK)  # of the query, and of both blocks
WIDTH = LEFTS[2] + BLOCK + MARGIN
INK, FAINT, WRONG, RIGHT = "#1f2328", "#59636e", "#d1242f", "#d1d9e0"


def nearest(embedded: EmbeddedSet) -> Int[Tensor, "images neighbours"]:
    """Positions of the nearest other images of each image, by cosine."""
    normalised = nn.functional.normalize(embedded.embeddings)
    return (normalised @ normalised.T).fill_diagonal_(-2).topk(NEIGHBOURS).indices


def draw(data: Any, sets: dict[str, EmbeddedSet]) -> Figure:
    """One row per class: an image, its neighbours before training, its neighbours after it."""
    subset, labels = data.test_subset, next(iter(sets.values())).labels
    classes = labels.unique()[:: len(labels.unique()) // ROWS][:ROWS]
    queries = [int((labels == label).nonzero()[0]) for label in classes]
    height = HEADER + ROWS * (TILE + SPACE + 6) + FOOTER
    figure = plt.figure(figsize=(WIDTH / 100, height / 100), dpi=100, facecolor="white")

    def tile(left: float, top: float, position: int, edge: str, line: float) -> None:
        axes = figure.add_axes((left / WIDTH, 1 - (top + TILE) / height, TILE / WIDTH, TILE / height))
        image = data.dataset.load(subset.index.keys[position]).convert("RGB")
        side = min(image.size)
        left_edge, upper = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left_edge, upper, left_edge + side, upper + side)).resize((2 * TILE, 2 * TILE))
        axes.imshow(np.asarray(square), interpolation="antialiased")
        axes.set(xticks=[], yticks=[])
        plt.setp(axes.spines.values(), color=edge, linewidth=line)

    def text(left: float, top: float, words: str, size: float, colour: str = INK, weight: str = "normal") -> None:
        figure.text(left / WIDTH, 1 - top / height, words, fontsize=size, color=colour, va="baseline", weight=weight)

    text(LEFTS[0], 34, "query", 15, weight="bold")
    for left, (title, embedded) in zip(LEFTS[1:], sets.items(), strict=True):
        found = nearest(embedded)
        hits = labels[found] == labels[:, None]
        text(left, 34, title, 15, weight="bold")
        text(left, 57, f"{int(hits.sum()):,} of {hits.numel():,} neighbours have the right class", 11, FAINT)
        for row, query in enumerate(queries):
            top = HEADER + row * (TILE + SPACE + 6)
            tile(LEFTS[0], top, query, INK, 1.5)
            for column, position in enumerate(found[query].tolist()):
                edge = (RIGHT, 1.0) if hits[query, column] else (WRONG, 3.0)
                tile(left + column * (TILE + SPACE), top, position, *edge)
    words = (
        f"The {NEIGHBOURS} nearest of {len(labels):,} images of {len(labels.unique())} classes that no training saw."
    )
    text(
        LEFTS[0],
        height - 14,
        f"{words} Red: another class. Counts are over all images, {ROWS} rows are shown.",
        11,
        FAINT,
    )
    return figure


def untouched_trunk(checkpoint: Mapping[str, Any]) -> nn.Module:
    """The trunk with the weights from which the training started."""
    trunk = checkpoint["hyper_parameters"]["trunk"]
    return getattr(models, trunk["class_path"].rpartition(".")[2])(**trunk["init_args"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="best.ckpt of a fit or study without an embedder, on images")
    parser.add_argument("output", type=Path)
    parser.add_argument("--root", help="folder of the data set, if it has one")
    given = parser.parse_args()
    checkpoint = read_checkpoint(given.checkpoint)
    arguments = data_arguments(checkpoint, given.checkpoint, ())
    data = load_data({**arguments, **({"root": given.root} if given.root else {})}, given.checkpoint)
    data.setup("test")
    learner: Any = MetricLearner.load_from_checkpoint(given.checkpoint)
    untouched = untouched_trunk(checkpoint)
    with torch.inference_mode():
        sets = {
            "before training": embed(untouched, data.test_dataloader()),
            "after": embed(learner, data.test_dataloader()),
        }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    draw(data, sets).savefig(given.output)
    print(f"neighbours of unseen classes, before and after: {given.output}")


if __name__ == "__main__":
    main()
