"""A plane map of test embeddings by t-SNE, the same for the same embeddings.

Paper: van der Maaten and Hinton 2008, "Visualizing Data using t-SNE", JMLR 9, 2579-2605.
"""

import hashlib

import numpy as np
import torch
from jaxtyping import Float, Int

from levelfield.metrics.distances import DISTANCES, unpack_signs
from levelfield.seeds import seed_of
from levelfield.study.sealed_test.scores import EmbeddedTest

MOST_POINTS = 1000
FEWEST_OF_A_CLASS = 5
PERPLEXITY = 30
ITERATIONS = 500
SIDE = 1000  # points lie in a square from 0 to this, in whole numbers


def drawn_for_map(labels: Int[np.ndarray, " samples"]) -> Int[np.ndarray, " points"]:
    """Positions of at most 1,000 samples, sorted: as many of each class, at least 5, of as many classes as fit."""
    generator = np.random.default_rng(seed_of("map"))
    classes = generator.permutation(np.unique(labels))
    each = max(FEWEST_OF_A_CLASS, MOST_POINTS // len(classes))
    drawn: list[int] = []
    for label in classes:
        members = np.flatnonzero(labels == label)
        chosen = generator.permutation(members)[:each]
        if len(drawn) + len(chosen) > MOST_POINTS:
            break
        drawn += chosen.tolist()
    return np.array(sorted(drawn), dtype=np.int64)


def map_identity(embedded: EmbeddedTest, drawn: Int[np.ndarray, " points"], distance: str) -> str:
    """SHA-256 of all that a map follows from."""
    settings = f"{distance} {PERPLEXITY} {ITERATIONS} {SIDE} {drawn.tolist()}"
    points = embedded.samples.embeddings[torch.from_numpy(drawn)].contiguous().numpy().tobytes()
    return hashlib.sha256(settings.encode() + points).hexdigest()


def plane_map(
    embedded: EmbeddedTest, drawn: Int[np.ndarray, " points"], distance: str = "cosine"
) -> list[tuple[int, int]]:
    """Where each drawn sample lies in a square, by scikit-learn's t-SNE from a PCA, in one thread.

    Args:
        embedded: Stored test embeddings.
        drawn: Positions of at least 4 samples.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`, by which neighbours are ranked; the last as points of
            the ball.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # of scikit-learn's own requirements

    prepare, _ = DISTANCES[distance]
    points = prepare(embedded.samples.embeddings[torch.from_numpy(drawn)])
    if distance == "hamming":
        points = unpack_signs(points)
    perplexity = min(PERPLEXITY, (len(drawn) - 1) / 3)
    with threadpool_limits(1):  # sums of several threads differ from time to time
        tsne = TSNE(perplexity=perplexity, max_iter=ITERATIONS, init="pca", random_state=0, n_jobs=1)
        plane: Float[np.ndarray, "points 2"] = tsne.fit_transform(points.numpy())
    low, high = plane.min(0), plane.max(0)
    scale = SIDE / max(float((high - low).max()), 1e-12)
    centred = (plane - (low + high) / 2) * scale + SIDE / 2
    return [(int(x), int(y)) for x, y in centred.round()]
