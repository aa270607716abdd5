"""Retrieved neighbours of the best, median and worst test samples by three rows, as plain values for the page.

Shapes: Q queries, K neighbours.
"""

import base64
import io
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image, ImageOps

from levelfield.analysis.results import ResultRow, mean_scores
from levelfield.analysis.stored_embeddings import data_here, stored_embeddings
from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import first_search, is_baseline
from levelfield.study.test_scores import EmbeddedTest, retrieval_sets

RUN, FOLD = 0, 0
# If there are more queries, this many are drawn and scored: enough to choose a few.
MOST_QUERIES = 4000
QUERIES = 3  # of the best, of the median and of the worst
NEIGHBOURS = {"image": 8, "text": 4}
SIDE, QUALITY = 96, 72  # of an image
LONGEST = 160  # characters of a text
NOT_HERE = (
    "The data set was not here when this page was written. Set LEVELFIELD_DATA to its folder and run levelfield study "
    "report again."
)
OTHER_SAMPLES = (
    "The data set's files are not the ones that were scored. Restore them and run levelfield study report again."
)


def retrieval_of(study: StudyFolder, rows: Sequence[ResultRow]) -> dict[str, Any] | None:
    """Everything for the template; None without stored embeddings of an evaluation.

    Raises:
        UserError: a file is damaged, or the ledger has no line of its evaluation.
    """
    models = _shown_models(study, rows)
    if not models:
        return None
    best = next(iter(models))
    samples = scored_samples(study, models[best].data)
    contents: dict[str, Any] = {"best": best, "run": RUN, "fold": FOLD, "why_not": None}
    if isinstance(samples, str):
        return contents | {"why_not": samples}
    dataset, index = samples
    names = [index.class_names[label] for label in np.unique(index.labels)]
    retrievals = {row: Retrieval(embedded, study.distance_of(row)) for row, embedded in models.items()}
    labels, examples = retrievals[best].labels, retrievals[best].examples(QUERIES)
    score_of = dict(zip(retrievals[best].queries.tolist(), retrievals[best].scores.tolist(), strict=True))
    flat = [query for queries in examples.values() for query in queries]
    nearby = {row: each.nearest(flat, NEIGHBOURS[dataset.modality]).tolist() for row, each in retrievals.items()}

    @cache
    def shown(position: int) -> str:
        """A text, or an image as a data URL; empty if it cannot be opened."""
        try:
            return _shortened(dataset.load(index.keys[position]))
        except UserError:
            return ""

    def sample(position: int, query: int) -> dict[str, Any]:
        label, key = labels[position], str(index.keys[position])
        return {"shown": shown(position), "key": key, "name": names[label], "hit": bool(label == labels[query])}

    def answers(query: int) -> dict[str, list[dict[str, Any]]]:
        return {row: [sample(each, query) for each in found[flat.index(query)]] for row, found in nearby.items()}

    groups = {
        group: [{**sample(q, q), "score": f"{100 * score_of[q]:.1f}", "answers": answers(q)} for q in queries]
        for group, queries in examples.items()
    }
    return contents | {"kind": dataset.modality, "groups": groups}


def _shown_models(study: StudyFolder, rows: Sequence[ResultRow]) -> dict[str, EmbeddedTest]:
    """The best method, the next one and the best untrained row, as far as they have embeddings of the same samples."""
    means, tests, found = mean_scores(rows), study.tests(), dict[str, EmbeddedTest]()
    for untrained, most in ((False, 2), (True, 1)):
        group = [row for row in means if is_baseline(row) == untrained and row == first_search(row)]
        usable = list[str]()
        for row in sorted(group, key=lambda row: -means[row].mean):
            if len(usable) < most and (row, RUN) in tests:
                job = folds_of(study.spec, row, RUN)[FOLD]
                embedded = stored_embeddings(study, job, tests[row, RUN]["evaluation"])
                if isinstance(embedded, EmbeddedTest) and embedded.data == next(iter(found.values()), embedded).data:
                    found[row] = embedded
                    usable.append(row)
        if not usable and not untrained:
            return {}
    return found


def scored_samples(study: StudyFolder, fingerprint: str) -> tuple[MetricDataset, SampleIndex] | str:
    """The test samples in the order of the stored embeddings, or a sentence why they cannot be shown.

    Args:
        fingerprint: Of the samples that were scored.
    """
    if (data := data_here(study)) is None:
        return NOT_HERE
    try:
        test = data.half("test")
        return (data.dataset, test) if data.dataset.fingerprint(test) == fingerprint else OTHER_SAMPLES
    except UserError:
        return NOT_HERE


def _shortened(sample: Image.Image | str) -> str:
    if isinstance(sample, str):
        text = " ".join(sample.split())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    content = io.BytesIO()
    ImageOps.contain(sample.convert("RGB"), (SIDE, SIDE)).save(content, "WEBP", quality=QUALITY, method=4)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"


class Retrieval:
    """The test samples, ranked by one model; positions among the embeddings identify samples.

    Args:
        embedded: Stored test embeddings.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`.
    """

    def __init__(self, embedded: EmbeddedTest, distance: str = "cosine") -> None:
        self.samples, self.is_query, self.distance = embedded.samples, embedded.is_query, distance
        self.groups, self.labels = embedded.groups, embedded.samples.labels.numpy()
        everything = torch.arange(len(self.labels))
        self.queries = everything if self.is_query is None else everything[self.is_query]
        self.gallery = everything if self.is_query is None else everything[~self.is_query]

    def nearest(self, queries: Sequence[int], count: int) -> Int[np.ndarray, "Q K"]:
        """The `count` nearest gallery items of each query, nearest first; ties as in `nearest`."""
        prepare, similarity = DISTANCES[self.distance]
        held, positions = prepare(self.samples.embeddings), torch.tensor(queries)
        itself = positions if self.is_query is None else None
        _, found = nearest(held[positions], held[self.gallery], count, itself, similarity)
        return self.gallery[found].numpy()

    @cached_property
    def scores(self) -> Float[np.ndarray, " Q"]:
        """MAP@R of each query; NaN without a match and for queries that were not drawn."""
        sets = retrieval_sets(self.samples.embeddings, self.samples.labels, self.is_query, groups=self.groups)
        how: Any = {"distance": self.distance, "per_query": True, "num_queries": MOST_QUERIES}
        return np.asarray(retrieval_metrics(**sets, metrics=(SELECTED_BY,), **how)[SELECTED_BY])

    def examples(self, count: int) -> dict[str, list[int]]:
        """`count` of the best, the median and the worst queries, of different classes within each group."""
        known = np.flatnonzero(np.isfinite(self.scores))
        shuffled = known[np.random.default_rng(seed_of("shown queries")).permutation(len(known))]
        upward = shuffled[np.argsort(self.scores[shuffled], kind="stable")]
        middle = upward[np.argsort(np.abs(np.arange(len(upward)) - (len(upward) - 1) / 2), kind="stable")]
        taken: set[int] = set()
        found = {}
        for group, order in {"best": upward[::-1], "median": middle, "worst": upward}.items():
            of_class: dict[int, int] = {}
            for query in self.queries[torch.from_numpy(order.copy())].tolist():
                if query not in taken and len(of_class) < count:
                    of_class.setdefault(int(self.labels[query]), query)
            found[group] = list(of_class.values())
            taken |= set(found[group])
        return found
