"""Draw the nearest images of unseen classes, before and after a training that changed the trunk.

    python scripts/neighbours_picture.py outputs/quickstart/jobs/ntxent/run0/fold0/best.ckpt neighbours.png

The rows are fixed before any training: the first image of six test classes, evenly spaced in the order of the data set.
Nothing is chosen by its result. The counts are over all images of all test classes.
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from PIL import ImageOps
from torch import nn

from levelfield import models
from levelfield.training.checkpoint import data_arguments, load_data, read_checkpoint
from levelfield.training.embed import EmbeddedSet, embed
from levelfield.training.learner import MetricLearner

ROWS, NEIGHBOURS = 6, 8
SIDE = 128  # pixels of an image
INK, FAINT, WRONG, RIGHT = "#1f2328", "#59636e", "#d1242f", "#d1d9e0"


def draw(data: Any, sets: dict[str, EmbeddedSet]) -> Figure:
    """One row per class: an image, its neighbours before training, its neighbours after it."""
    keys, labels = data.test_subset.index.keys, next(iter(sets.values())).labels
    classes = labels.unique()
    queries = [int((labels == label).nonzero()[0]) for label in classes[:: len(classes) // ROWS][:ROWS]]

    gap = [0.4, *[1] * NEIGHBOURS]  # relative widths: each block of neighbours begins with an empty column
    how = {"left": 0.01, "right": 0.99, "top": 0.93, "bottom": 0.07, "wspace": 0.08, "hspace": 0.08}
    how["width_ratios"] = [1, *gap * len(sets)]
    figure, places = plt.subplots(ROWS, 1 + len(sets) * len(gap), figsize=(13, 0.77 * ROWS + 0.7), gridspec_kw=how)
    for axes in places.flat:
        axes.axis("off")

    def show(axes: Any, position: int, edge: str, line: float) -> None:
        axes.imshow(ImageOps.fit(data.dataset.load(keys[position]).convert("RGB"), (SIDE, SIDE)))
        axes.set(xticks=[], yticks=[])
        axes.axis("on")
        plt.setp(axes.spines.values(), color=edge, linewidth=line)

    places[0, 0].set_title("query", loc="left", size=11, weight="bold", color=INK)
    for axes, query in zip(places[:, 0], queries, strict=True):
        show(axes, query, INK, 1.5)
    for block, (title, embedded) in enumerate(sets.items()):
        normalised = nn.functional.normalize(embedded.embeddings)
        found = (normalised @ normalised.T).fill_diagonal_(-2).topk(NEIGHBOURS).indices
        hits = labels[found] == labels[:, None]
        first = 2 + block * len(gap)
        counted = f"{title}: {int(hits.sum()):,} of {hits.numel():,} neighbours have the right class"
        places[0, first].set_title(counted, loc="left", size=11, weight="bold", color=INK)
        for row, query in enumerate(queries):
            for column, position in enumerate(found[query].tolist()):
                show(places[row, first + column], position, *((RIGHT, 1.0) if hits[query, column] else (WRONG, 3.0)))
    words = f"The {NEIGHBOURS} nearest of {len(labels):,} images of {len(classes)} classes that no training saw."
    figure.supxlabel(
        f"{words} Red: another class. Counts are over all images, {ROWS} rows are shown.", size=10, color=FAINT
    )
    return figure


def main(checkpoint: Path, output: Path) -> None:
    """Draw the neighbours by best.ckpt of a fit or study without an embedder, on images."""
    read = read_checkpoint(checkpoint)
    data = load_data(data_arguments(read, checkpoint, ()), checkpoint)
    data.setup("test")
    learner: Any = MetricLearner.load_from_checkpoint(checkpoint)
    trunk = read["hyper_parameters"]["trunk"]  # with the weights from which the training started
    untouched = getattr(models, trunk["class_path"].rpartition(".")[2])(**trunk["init_args"])
    with torch.inference_mode():
        parts = {"before training": untouched, "after": learner}
        sets = {title: embed(part, data.test_dataloader()) for title, part in parts.items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    draw(data, sets).savefig(output, facecolor="white")
    print(f"neighbours of unseen classes, before and after: {output}")


if __name__ == "__main__":
    auto_cli(main)
