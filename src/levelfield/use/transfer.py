"""How well a checkpoint serves another labelled set: scores with intervals, and a line in the ledger."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError
from levelfield.storage.ledger import Ledger
from levelfield.use.encoder import Encoder
from levelfield.use.further import Further, Section
from levelfield.use.samples import of_dataset
from levelfield.use.scores import Score, scores_of


class Transfer(NamedTuple):
    """What a checkpoint scores on another set.

    Attributes:
        scores: by metric.
        num_classes: of the samples that were embedded.
        num_samples: likewise.
        num_skipped: queries that have no other sample of their class to be found.
        seen: classes that are called like one that the checkpoint was trained or validated on.
        left_out: why each sample that is missing could not be opened.
        times: how often the checkpoint has scored this set by now.
        ledger: where each time is recorded.
        further: what was asked for beside.
    """

    scores: dict[str, Score]
    num_classes: int
    num_samples: int
    num_skipped: int
    seen: tuple[str, ...]
    left_out: tuple[str, ...]
    times: int
    ledger: Path
    further: tuple[Section, ...] = ()


def transfer(
    encoder: Encoder,
    dataset: MetricDataset,
    folder: Path,
    skip_broken: bool = False,
    progress: Callable[[int, int], Any] | None = None,
    further: Further | None = None,
) -> Transfer:
    """Score a checkpoint on all classes of another data set.

    Args:
        folder: of the checkpoint; `ledger.jsonl` in it gets a line before a label is used.
        skip_broken: leave out the pictures that cannot be opened.
        progress: called with (batches done, batches in all).
        further: what to measure beside the usual scores.

    Raises:
        UserError: the set is the checkpoint's own, whose unseen classes only `test` opens; it has too few classes or
            samples; or a picture cannot be opened.
    """
    index = dataset.read_index()
    _refuse_its_own(encoder, dataset, index)
    _refuse_too_few(dataset, index)
    embedded = encoder.embed(of_dataset(dataset), skip_broken=skip_broken, progress=progress)
    kept = index.select(list(embedded.positions))
    _refuse_too_few(dataset, kept)
    listed = [list(kept.keys), [kept.class_names[label] for label in kept.labels], kept.roles]
    ledger = Ledger(folder)
    named = {path.name if len(encoder.paths) == 1 else f"{path.parent.name}/{path.name}" for path in encoder.paths}
    times = ledger.transfer(
        dataset.name,
        hashlib.sha256(json.dumps(listed).encode()).hexdigest(),
        dict(zip(sorted(named), encoder.hash, strict=True)),
    )
    asks = _asks(kept)
    is_query = None if asks is None else torch.from_numpy(asks)
    of_set = embedded.embeddings, torch.from_numpy(kept.labels), is_query, encoder.distance
    scores, skipped = scores_of(*of_set)
    sections = tuple(further.sections(*of_set, kept.coarse_labels())) if further else ()
    used = [kept.class_names[label] for label in np.unique(kept.labels)]
    learnt = _learnt(encoder)
    seen = tuple(name for name in used if name in learnt)
    return Transfer(scores, len(used), len(kept.keys), skipped, seen, embedded.left_out, times, ledger.path, sections)


def _learnt(encoder: Encoder) -> set[str]:
    """Names of the classes that the checkpoint was trained or validated on."""
    data = [content["levelfield"].get("data") or {} for content in encoder.checkpoints]
    return {name for each in data for part in ("train_classes", "val_classes") for name in each.get(part, ())}


def _refuse_its_own(encoder: Encoder, dataset: MetricDataset, index: SampleIndex) -> None:
    learnt = _learnt(encoder)
    fingerprints = {(content["levelfield"].get("data") or {}).get("fingerprint") for content in encoder.checkpoints}
    if learnt and learnt <= set(index.class_names):
        names = np.array(index.class_names, dtype=object)
        trained = index.select(np.isin(names[index.labels], list(learnt)))
        if dataset.fingerprint(trained) in fingerprints:
            raise UserError(
                f"'{encoder.origin}' was trained on this data set: levelfield test scores its unseen classes, and "
                "records that they were opened; score takes another set"
            )


def _asks(index: SampleIndex) -> Bool[np.ndarray, " samples"] | None:
    """Which samples are searched for among the others; None where each is, among all others."""
    return np.array([role == "query" for role in index.roles]) if index.roles and all(index.roles) else None


def _refuse_too_few(dataset: MetricDataset, index: SampleIndex) -> None:
    found = int((np.unique(index.labels, return_counts=True)[1] >= 2).sum())
    if found < 2:
        raise UserError(f"{dataset.name}: {found} classes have 2 samples or more and 2 must: add samples or classes")
    asks = _asks(index)
    if asks is not None:
        there = np.unique(index.labels[~asks])
        if len(there) < 2 or not np.isin(index.labels[asks], there).any():
            raise UserError(
                f"{dataset.name}: the gallery has {len(there)} classes, and needs 2 with one of a query among them: "
                "mend the column role, or leave it out"
            )
