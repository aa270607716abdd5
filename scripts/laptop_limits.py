"""The limits of the laptop studies, which each page about them says first."""

from __future__ import annotations

import json
from collections.abc import Sequence

from laptop_gallery import TITLES
from laptop_order import FEATURES
from laptop_sets import DEFAULTS, PCA, TRANSFER, LaptopSet
from laptop_words import means

from levelfield.study.spec import BASELINE, is_baseline

SAME_TEST_CLASSES = (DEFAULTS, PCA, TRANSFER, "finetuned")
RECALL_AT_1 = "precision_at_1"


def evaluations(each: LaptopSet) -> int:
    """How often the test classes were evaluated: the openings in the ledgers of the set's studies."""
    folders = [each.folder, *(each.folder.with_name(f"{each.name}_{kind}") for kind in SAME_TEST_CLASSES)]
    ledgers = [folder / "ledger.jsonl" for folder in folders]
    lines = [line for ledger in ledgers if ledger.is_file() for line in ledger.read_text("utf-8").splitlines()]
    return sum(json.loads(line)["event"] == "opened" for line in lines)


def below_features(sets: Sequence[LaptopSet]) -> list[str]:
    """The sets on which the features as they are have a higher MAP@R than each of the 14 losses."""
    found = []
    for each in sets:
        scores = means(each.table(), [FEATURES, *each.methods])
        if scores.pop(FEATURES) > max(scores.values()):
            found.append(TITLES[each.name])
    return found


def below_pca_in_recall(sets: Sequence[LaptopSet]) -> list[str]:
    """The sets on which the features' PCA has a higher Recall@1 than every method, the later ones too."""
    found = []
    for each in sets:
        scores = each.table(metric=RECALL_AT_1)
        trained = [method for method in scores if not is_baseline(method)]
        if scores[BASELINE].mean() > max(scores[method].mean() for method in trained):
            found.append(TITLES[each.name])
    return found


def limits(sets: Sequence[LaptopSet], results: str) -> str:
    """The paragraph.

    Args:
        results: the way from the page to docs/results, with a slash at its end.
    """
    searched = len({method.partition("@")[0] for each in sets for method in each.table() if not is_baseline(method)})
    counts = {TITLES[each.name]: evaluations(each) for each in sets}
    of_each = ", ".join(f"{name} {count}" for name, count in counts.items())
    ahead, ahead_in_recall = below_features(sets), below_pca_in_recall(sets)
    return (
        "**Limits.** Each loss trained a linear layer of 128 on a frozen trunk, from random weights, for at most 200 "
        "steps of 32. Another start or a longer training may change the order of the losses. On "
        f"{len(ahead)} of {len(sets)} sets ({', '.join(ahead) or 'none'}) the trunk's features as they are, without "
        "any training, have a higher MAP@R than the best of the 14 losses; they are longer, 1,280 or 384 numbers. On "
        f"{len(ahead_in_recall)} sets ({', '.join(ahead_in_recall) or 'none'}) none of {searched} methods is above the "
        f"PCA of these features to 128 in Recall@1 (`{RECALL_AT_1}`). The test classes of a set were evaluated "
        f"{min(counts.values())} to {max(counts.values())} times ({of_each}), by the ledgers kept here; "
        f"[short studies]({results}trained_trunks.md) evaluated those of four sets again, and their ledgers are not "
        "kept. The best loss was picked on these classes, so its score is optimistic."
    )
