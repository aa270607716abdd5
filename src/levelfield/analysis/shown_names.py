"""Names of rows in tables, figures and sentences; commands and files keep the row's own name."""

import re
from typing import Any

from levelfield.study.spec import OF, StudySpec, is_baseline, value_of
from levelfield.study.untrained import FEATURES, LDA, ONE, PCA, UNTRAINED, WHITENING

# Losses whose name is not that of their class in words.
AS_THE_CLASS = "AdaFace ArcFace CosFace FastAP HIST MagFace PNP ProxyNCA ROADMAP SmoothAP SoftTriple SphereFace SupCon"
LOSSES = {name: name for name in AS_THE_CLASS.split()} | {
    **{"MultiSimilarity": "Multi-similarity", "NPairs": "N-pairs", "NTXent": "NT-Xent"},
    **{"SignalToNoiseRatioContrastive": "Signal-to-noise ratio", "SubCenterArcFace": "Sub-center ArcFace"},
}
MAPS = {FEATURES: "features", LDA: "LDA", PCA: "features, PCA", WHITENING: "features, whitened", UNTRAINED: UNTRAINED}
MAPS |= {ONE: "features, one PCA"}
PARTS = {"head": "linear layer", "trunk": "whole trunk"}  # what a row of `levelfield compare` trains


def shown_names(spec: StudySpec) -> dict[str, str]:
    """Row to the name that readers see: `features, whitened to 128` for `pretrained[whitening128]`.

    A row that is not named after its shipped loss keeps its name.
    """
    names = {}
    for row in spec.rows:
        source = row
        while source in spec.derived:
            source = spec.derived[source][OF]
        model = spec.config_of(source)["model"]
        if not is_baseline(row):
            names[row] = _trained(row, model.get("loss"))
            continue
        reference = spec.reference_of(row)
        size = model.get("embedding_size")
        map_of = PCA if reference == ONE else reference
        value = (value_of(row) or "").removeprefix(map_of).removeprefix("-")  # of a sweep, or another trunk
        kind = reference.rstrip("0123456789")
        names[row] = MAPS[kind] + f" to {size}" * (size is not None and kind not in (LDA, UNTRAINED))
        names[row] += f" [{value}]" * bool(value)
    shown = list(names.values())
    return {row: name if shown.count(name) == 1 else row for row, name in names.items()}


def _trained(row: str, loss: Any) -> str:
    """`NT-Xent koleo@2` of `ntxent_koleo@2`: the loss's name in words, then the rest of the row.

    `whole trunk, NT-Xent averaged` of `trunk_ntxent_averaged`.
    """
    name = str(loss["class_path"] if isinstance(loss, dict) else loss).removeprefix("levelfield.losses.")
    stem = name.removesuffix("Loss")
    words = stem.removesuffix("Contrastive") or stem  # of signal_to_noise_ratio
    found = re.match(f"(?:({'|'.join(PARTS)})_)?{'_?'.join(words)}(?![a-z])", row, re.IGNORECASE)
    if found is None:
        return row
    in_words = re.sub("(?<=[a-z])(?=[A-Z])", " ", stem)
    part, usual = (f"{PARTS[found[1].lower()]}, ", in_words.lower()) if found[1] else ("", in_words.capitalize())
    return part + LOSSES.get(stem, usual) + row[found.end() :].replace("_pca", " PCA").replace("_", " ")
