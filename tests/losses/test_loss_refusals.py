"""What a loss does not take is named; a misspelt choice must not train as another one."""

import pytest
import torch
from loss_cases import batch, make

from levelfield import losses


@pytest.mark.parametrize(
    ("loss", "arguments", "key"),
    [
        (losses.AdaFaceLoss, {"momentum": 1}, "momentum=1"),
        (losses.AngularLoss, {"alpha": 90}, "alpha=90"),
        (losses.ArcFaceLoss, {"margin": 200}, "margin=200 is an angle in degrees"),
        (losses.ArcFaceLoss, {"scale": 0}, "scale=0"),
        (losses.ArcFaceLoss, {"weight_init": "xavier"}, "weight_init='xavier' must be one of normal, uniform"),
        (losses.CentroidTripletLoss, {"power": 3}, "power=3"),
        (losses.ContextualLoss, {"context_weight": 0.7, "similarity_weight": 0.4}, "together at most 1"),
        (losses.HISTLoss, {"tau": 0.0}, "tau=0.0"),
        (losses.HISTLoss, {"hidden_size": 0}, "hidden_size=0"),
        (losses.HISTLoss, {"classification_weight": -1.0}, "classification_weight=-1.0"),
        (losses.MagFaceLoss, {"lower_norm": 10, "upper_norm": 5}, "lower_norm=10 .* upper_norm=5"),
        (losses.MarginLoss, {"triplets_per_anchor": "some"}, "'all' or a number"),
        (losses.NormalizedSoftmaxLoss, {"num_classes": 0}, "num_classes=0"),
        (losses.NormalizedSoftmaxLoss, {"temperature": 0}, "temperature=0"),
        (losses.NormalizedSoftmaxLoss, {"class_fraction": 0}, "class_fraction=0"),
        (losses.NormalizedSoftmaxLoss, {"label_smoothing": 1}, "label_smoothing=1"),
        (losses.NPairsLoss, {"temperature": 0}, "temperature=0"),
        (losses.PNPLoss, {"variant": "Dx"}, "variant='Dx' must be one of O, Ds, Dq, Iu, Ib"),
        (losses.PotentialFieldLoss, {"delta": 0.0}, "delta=0.0"),
        (losses.PotentialFieldLoss, {"alpha": 10.5}, "alpha=10.5"),
        (losses.PrototypicalLoss, {"num_support": 0}, "num_support=0"),
        (losses.ProxyTripletLoss, {"reduction": "sum"}, "'nonzero' or 'mean'"),
        (losses.RankedListLoss, {"margin": 0.4, "Tn": 10, "imbalance": 2}, "imbalance=2"),
        (losses.RankedListLoss, {"margin": 0.4, "Tn": 10, "reduction": "non-zero"}, "'mean' or 'nonzero'"),
        (losses.RecallAtKLoss, {"recall_at": ()}, "whole numbers from 1"),
        (losses.RecallAtKLoss, {"recall_at": (0, 1)}, "whole numbers from 1"),
        (losses.ROADMAPLoss, {"weight": 1.5}, "weight=1.5"),
        (losses.SphereFaceLoss, {"margin": 1.5}, "margin=1.5"),
        (losses.StructuredClusteringLoss, {"gamma_decay": 0.0}, "gamma_decay=0.0"),
        (losses.StructuredClusteringLoss, {"gamma_decay": 1.1}, "gamma_decay=1.1"),
        (losses.StructuredClusteringLoss, {"decay_steps": 0}, "decay_steps=0"),
        (losses.TripletMarginLoss, {"power": 3}, "power=3"),
        (losses.TripletMarginLoss, {"swap": True, "triplets_per_anchor": "semihard"}, "swap"),
        (losses.TripletMarginLoss, {"triplets_per_anchor": "semi-hard"}, "'all', 'semihard' or a number"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(loss, arguments, key):
    with pytest.raises(ValueError, match=key):
        make(loss, **arguments)


@pytest.mark.parametrize(
    "loss",
    [losses.CentroidTripletLoss, losses.ContextualLoss, losses.PrototypicalLoss, losses.StructuredClusteringLoss],
)
def test_a_miner_or_references_that_it_does_not_take_are_refused(loss):
    taken = loss in (losses.CentroidTripletLoss, losses.PrototypicalLoss)
    for given in [batch("pairs")] + [batch("reference")] * (not taken):
        with pytest.raises(ValueError, match=f"{loss.__name__}.* take.* miner"):
            loss()(*given.arguments())
    assert torch.isfinite(loss()(*batch("reference" if taken else "raw").arguments()))
