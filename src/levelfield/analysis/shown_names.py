"""Names of rows in tables, figures and sentences; commands and files keep the row's own name."""

import re
from typing import Any

from levelfield.study.spec import (
    FEATURES,
    LDA,
    OF,
    PCA,
    UNTRAINED,
    WHITENING,
    StudySpec,
    is_baseline,
    one_pca,
    value_of,
)

# Losses whose name is not that of their class in words.
AS_THE_CLASS = "AdaFace ArcFace CosFace FastAP HIST MagFace PNP ProxyNCA ROADMAP SmoothAP SoftTriple SphereFace SupCon"
LOSSES = {name: name for name in AS_THE_CLASS.split()} | {
    **{"MultiSimilarity": "Multi-similarity", "NPairs": "N-pairs", "NTXent": "NT-Xent"},
    **{"SignalToNoiseRatioContrastive": "Signal-to-noise ratio", "SubCenterArcFace": "Sub-center ArcFace"},
}
MAPS = {FEATURES: "features", LDA: "LDA", PCA: "features, PCA", WHITENING: "features, whitened", UNTRAINED: UNTRAINED}


def shown_names(spec: StudySpec) -> dict[str, str]:
    """Row to the name that readers see: `features, whitened to 128` for `pretrained[whitening128]`.

    A row that is not named after its shipped loss keeps its name.
    """
    names = {}
    for row in spec.rows:
        model = spec.config_of(spec.derived.get(row, {}).get(OF, row))["model"]
        if not is_baseline(row):
            names[row] = _trained(row, model.get("loss"))
            continue
        reference = spec.reference_of(row)
        kind = reference.rstrip("0123456789")
        size = reference.removeprefix(kind) or (kind == PCA and model.get("embedding_size"))
        value = (value_of(row) or "").removeprefix(reference).removeprefix("-")  # of a sweep, or another trunk
        names[row] = MAPS[kind] + f" to {size}" * bool(size) + f" [{value}]" * bool(value)
        if reference == PCA:
            joined = f" to {spec.folds * (size or 0)}"
            names[one_pca(row)] = names[row].replace("PCA", "one PCA").replace(f" to {size}", joined)
    shown = list(names.values())
    return {row: name if shown.count(name) == 1 else row for row, name in names.items()}


def _trained(row: str, loss: Any) -> str:
    """`NT-Xent koleo@2` of `ntxent_koleo@2`: the loss's name in words, then the rest of the row."""
    name = str(loss["class_path"] if isinstance(loss, dict) else loss).removeprefix("levelfield.losses.")
    stem = name.removesuffix("Loss")
    words = stem.removesuffix("Contrastive") or stem  # of signal_to_noise_ratio
    found = re.match("_?".join(words) + "(?![a-z])", row, re.IGNORECASE)
    if found is None:
        return row
    in_words = re.sub("(?<=[a-z])(?=[A-Z])", " ", stem).capitalize()
    return LOSSES.get(stem, in_words) + row[found.end() :].replace("_", " ")
