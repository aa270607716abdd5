"""Retrieved neighbours and confused classes of the test samples, as plain values for the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.analysis.conclusion import best_method, best_untrained, mean_scores
from levelfield.analysis.neighbours import Retrieval
from levelfield.analysis.results import ResultRow
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.stored_embeddings import SHOWN_FOLD, SHOWN_RUN, one_model_each
from levelfield.core.errors import UserError
from levelfield.report.scored_samples import ScoredSamples, scored_samples
from levelfield.report.table import rows_in_order
from levelfield.report.thumbnails import thumbnails
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import first_search, is_baseline

QUERIES = 3  # of the best, of the median and of the worst
NEIGHBOURS = {"image": 8, "text": 4}
CONFUSED, EXAMPLES = 6, 4
LONGEST = 160  # characters of a text


def retrieval_of(study: StudyFolder, rows: Sequence[ResultRow]) -> dict[str, Any] | None:
    """Everything for the template and its script; None without stored embeddings of an evaluation.

    Raises:
        UserError: a file is damaged, or the ledger has no line of its evaluation.
    """
    models = one_model_each(study)
    trained = [method for method in models if not is_baseline(method)]
    if not trained:
        return None
    shown = _order(study, rows, list(models))
    found = scored_samples(study, models[shown[0]].data)
    retrievals = {method: Retrieval(embedded, study.distance_of(method)) for method, embedded in models.items()}
    contents: dict[str, Any] = {
        "run": SHOWN_RUN,
        "fold": SHOWN_FOLD,
        "shown": shown,
        "methods": list(models),
        "why_not": found if isinstance(found, str) else None,
        "modality": "image",
        "style": "",
        "left_out": 0,
    }
    names: Mapping[int, str] | tuple[str, ...]
    if isinstance(found, ScoredSamples):
        names, contents["modality"] = found.class_names, found.dataset.modality
    else:
        names = {int(label): f"class {label}" for label in set(retrievals[shown[0]].labels.tolist())}
    gallery = _gallery(retrievals, shown[0], NEIGHBOURS[contents["modality"]])
    confusions = _confusions(retrievals, shown)
    looked_at = {query["sample"] for query in gallery}
    looked_at |= {each for query in gallery for nearest in query["neighbours"].values() for each in nearest}
    looked_at |= {each for pair in confusions for example in pair["examples"] for each in example}
    if isinstance(found, ScoredSamples) and contents["modality"] == "image":
        rules, left_out = thumbnails(found, sorted(looked_at))
        contents |= {"style": "\n".join(rules), "left_out": left_out}
    labels = retrievals[shown[0]].labels
    listed = sorted(looked_at) if isinstance(found, ScoredSamples) else []
    contents["program"] = {
        "kind": contents["modality"],
        "methods": contents["methods"],
        "shown": shown,
        "names": shown_names(study.spec),
        "classes": {str(label): names[label] for label in sorted({int(labels[each]) for each in listed})},
        "labels": {str(each): int(labels[each]) for each in listed},
        "texts": _texts(found, listed) if contents["modality"] == "text" else {},
        "gallery": gallery if isinstance(found, ScoredSamples) else [],
        "confusions": confusions if isinstance(found, ScoredSamples) else [],
    }
    return contents


def _order(study: StudyFolder, rows: Sequence[ResultRow], there: Sequence[str]) -> list[str]:
    """The best method, the next one and the best untrained row, as far as they have embeddings."""
    means, best = mean_scores(rows), best_method(rows, study.spec)
    ordered = [row for row in rows_in_order(rows, study.spec) if row in there]
    ranked = sorted((row for row in ordered if not is_baseline(row)), key=lambda row: row != best)
    others = [row for row in ranked if first_search(row) != first_search(ranked[0])]
    untrained = best_untrained({row: means[row] for row in ordered if row in means}, study.spec, ranked[0])
    return [ranked[0], *others[:1], *filter(None, [untrained])]


def _gallery(retrievals: Mapping[str, Retrieval], best: str, count: int) -> list[dict[str, Any]]:
    """Queries chosen by the best method's MAP@R, with the neighbours that every row retrieves."""
    scores = dict(zip(retrievals[best].queries.tolist(), retrievals[best].scores.tolist(), strict=True))
    chosen = retrievals[best].examples(QUERIES)
    flat = [(group, query) for group, queries in chosen.items() for query in queries]
    nearest = {
        method: each.nearest([query for _, query in flat], count).tolist() for method, each in retrievals.items()
    }
    return [
        {
            "group": group,
            "sample": query,
            "score": round(100 * scores[query], 1),
            "neighbours": {method: found[place] for method, found in nearest.items()},
        }
        for place, (group, query) in enumerate(flat)
    ]


def _confusions(retrievals: Mapping[str, Retrieval], shown: Sequence[str]) -> list[dict[str, Any]]:
    """The pairs of classes that the best method confuses most, with the counts of the other rows shown."""
    return [
        {
            "classes": list(pair.classes),
            "queries": pair.queries,
            "counts": {method: retrievals[method].confused(pair.classes) for method in shown},
            "examples": [list(example) for example in pair.examples],
        }
        for pair in retrievals[shown[0]].confusions(CONFUSED, EXAMPLES)
    ]


def _texts(samples: ScoredSamples | str, positions: Sequence[int]) -> dict[str, str]:
    if isinstance(samples, str):
        return {}
    found = {}
    for position in positions:
        try:
            text = " ".join(str(samples.load(position)).split())
        except UserError:
            text = "(cannot be read)"
        found[str(position)] = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return found
