"""The names that readers see."""

from dataclasses import replace

import pytest

from levelfield import losses
from levelfield.analysis.shown_names import LOSSES, shown_names
from levelfield.core.configuration import merge
from levelfield.study.rows import find_study, load_spec
from levelfield.study.spec import StudySpec


def test_untrained_rows_say_what_happens_to_the_features(spec: StudySpec) -> None:
    config = merge(spec.methods["arcface"], {"model": {"embedding_size": 64}})
    references = ["features", "lda", "whitening", "whitening128", "pca512", "one_pca"]
    rows = {"methods": {"arcface": config, "wide": config}, "references": references}
    many = replace(spec, **rows, trunks={"b": config}, modules=["wide"])
    assert {row: name for row, name in shown_names(many).items() if row.startswith("pretrained")} == {
        "pretrained": "features, PCA to 64",
        "pretrained_one_pca": f"features, one PCA to {64 * spec.folds}",
        "pretrained[features]": "features",
        "pretrained[lda]": "LDA",
        "pretrained[whitening]": "features, whitened",
        "pretrained[whitening128]": "features, whitened to 128",
        "pretrained[pca512]": "features, PCA to 512",
        "pretrained[features-b]": "features [b]",
        "pretrained[untrained-wide]": "untrained [wide]",
    }


@pytest.mark.parametrize(
    ("row", "loss", "name"),
    [
        ("ntxent", "NTXentLoss", "NT-Xent"),
        ("ntxent_koleo@2", "levelfield.losses.NTXentLoss", "NT-Xent koleo@2"),
        ("proxy_nca[64]", "ProxyNCALoss", "ProxyNCA[64]"),
        ("triplet_margin", {"class_path": "TripletMarginLoss"}, "Triplet margin"),
        ("marginal", "MarginLoss", "marginal"),
        ("trunk_ntxent_pca", "NTXentLoss", "whole trunk, NT-Xent PCA"),
        ("head_normalized_softmax", "NormalizedSoftmaxLoss", "linear layer, normalized softmax"),
        ("mine", "ArcFaceLoss", "mine"),
        ("arcface", "my_loss.ArcFaceLoss", "arcface"),
        ("ntxent", "TripletMarginLoss", "ntxent"),
        ("plain", None, "plain"),
    ],
)
def test_a_row_named_after_its_shipped_loss_has_the_name_of_papers(spec: StudySpec, row, loss, name) -> None:
    config = {**spec.methods["arcface"], "model": {"loss": loss}}
    assert shown_names(replace(spec, methods={row: config}))[row] == name


def test_a_derived_row_is_named_after_its_source_and_equal_names_stay_apart(spec: StudySpec) -> None:
    config = {**spec.methods["arcface"], "model": {"loss": "ArcFaceLoss"}}
    other = {**config, "model": {"loss": "ContrastiveLoss"}}  # a derived row has the default loss
    rows = dict.fromkeys(("arcface", "arcface_x", "arc_face_x"), config)
    rows |= dict.fromkeys(("arcface_averaged", "arcface_pca"), other)
    derived = {"arcface_averaged": {"of": "arcface", "alpha": 0.5}, "arcface_pca": {"of": "arcface_averaged", "pca": 8}}
    names = shown_names(replace(spec, methods=rows, derived=derived))
    assert [names[row] for row in rows] == ["ArcFace", "arcface_x", "arc_face_x", "ArcFace averaged", "ArcFace PCA"]


def test_every_shipped_loss_of_a_shipped_study_has_a_name_of_its_own() -> None:
    spec = load_spec(find_study("own_images_quick"))
    names = shown_names(spec)
    assert all(names[row] != row for row in spec.methods)
    assert len(set(names.values())) == len(names)
    assert all(hasattr(losses, f"{stem}Loss") for stem in LOSSES)
