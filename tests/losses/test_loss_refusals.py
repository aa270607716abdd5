"""What a loss does not take is named; a misspelt choice must not train as another one."""

import pytest
import torch
from loss_cases import batch

from levelfield import losses
from levelfield.losses import (
    AdaFaceLoss,
    AngularLoss,
    ArcFaceLoss,
    CentroidTripletLoss,
    ContextualLoss,
    HISTLoss,
    MagFaceLoss,
    MarginLoss,
    NormalizedSoftmaxLoss,
    NPairsLoss,
    PNPLoss,
    PotentialFieldLoss,
    PrototypicalLoss,
    ProxyTripletLoss,
    RankedListLoss,
    RecallAtKLoss,
    ROADMAPLoss,
    SphereFaceLoss,
    StructuredClusteringLoss,
    TripletMarginLoss,
)


@pytest.mark.parametrize(
    ("loss", "arguments", "key"),
    [
        (AdaFaceLoss, {"momentum": 1}, "momentum=1"),
        (AngularLoss, {"alpha": 90}, "alpha=90"),
        (ArcFaceLoss, {"margin": 200}, "margin=200 is an angle in degrees"),
        (ArcFaceLoss, {"scale": 0}, "scale=0"),
        (ArcFaceLoss, {"weight_init": "xavier"}, "weight_init='xavier' must be one of normal, uniform"),
        (CentroidTripletLoss, {"power": 3}, "power=3"),
        (ContextualLoss, {"context_weight": 0.7, "similarity_weight": 0.4}, "together at most 1"),
        (HISTLoss, {"tau": 0.0}, "tau=0.0"),
        (HISTLoss, {"hidden_size": 0}, "hidden_size=0"),
        (HISTLoss, {"classification_weight": -1.0}, "classification_weight=-1.0"),
        (MagFaceLoss, {"lower_norm": 10, "upper_norm": 5}, "lower_norm=10 .* upper_norm=5"),
        (MarginLoss, {"triplets_per_anchor": "some"}, "'all' or a number"),
        (NormalizedSoftmaxLoss, {"num_classes": 0}, "num_classes=0"),
        (NormalizedSoftmaxLoss, {"temperature": 0}, "temperature=0"),
        (NormalizedSoftmaxLoss, {"class_fraction": 0}, "class_fraction=0"),
        (NormalizedSoftmaxLoss, {"label_smoothing": 1}, "label_smoothing=1"),
        (NPairsLoss, {"temperature": 0}, "temperature=0"),
        (PNPLoss, {"variant": "Dx"}, "variant='Dx' must be one of O, Ds, Dq, Iu, Ib"),
        (PotentialFieldLoss, {"delta": 0.0}, "delta=0.0"),
        (PotentialFieldLoss, {"alpha": 10.5}, "alpha=10.5"),
        (PrototypicalLoss, {"num_support": 0}, "num_support=0"),
        (ProxyTripletLoss, {"reduction": "sum"}, "'nonzero' or 'mean'"),
        (RankedListLoss, {"margin": 0.4, "Tn": 10, "imbalance": 2}, "imbalance=2"),
        (RankedListLoss, {"margin": 0.4, "Tn": 10, "reduction": "non-zero"}, "'mean' or 'nonzero'"),
        (RecallAtKLoss, {"recall_at": ()}, "whole numbers from 1"),
        (RecallAtKLoss, {"recall_at": (0, 1)}, "whole numbers from 1"),
        (ROADMAPLoss, {"weight": 1.5}, "weight=1.5"),
        (SphereFaceLoss, {"margin": 1.5}, "margin=1.5"),
        (StructuredClusteringLoss, {"gamma_decay": 0.0}, "gamma_decay=0.0"),
        (StructuredClusteringLoss, {"gamma_decay": 1.1}, "gamma_decay=1.1"),
        (StructuredClusteringLoss, {"decay_steps": 0}, "decay_steps=0"),
        (TripletMarginLoss, {"power": 3}, "power=3"),
        (TripletMarginLoss, {"swap": True, "triplets_per_anchor": "semihard"}, "swap"),
        (TripletMarginLoss, {"triplets_per_anchor": "semi-hard"}, "'all', 'semihard' or a number"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(loss, arguments, key):
    sizes = {"num_classes": 3, "embedding_size": 2} if issubclass(loss, losses.ClassificationLoss) else {}
    with pytest.raises(ValueError, match=key):
        loss(**{**sizes, **arguments})


@pytest.mark.parametrize("loss", [CentroidTripletLoss, ContextualLoss, PrototypicalLoss, StructuredClusteringLoss])
def test_a_miner_or_references_that_it_does_not_take_are_refused(loss):
    taken = loss in (CentroidTripletLoss, PrototypicalLoss)
    for given in [batch("pairs")] + [batch("reference")] * (not taken):
        with pytest.raises(ValueError, match=f"{loss.__name__}.* take.* miner"):
            loss()(*given.arguments())
    assert torch.isfinite(loss()(*batch("reference" if taken else "raw").arguments()))
