"""Each loss and its gradients are those of a loop over its equation, and those of pytorch-metric-learning."""

import equations
import pytest
import torch
from loss_cases import CLASS_SITUATIONS, SITUATIONS, assert_equals_loop, assert_same, batch, class_batch, needs_classes
from pytorch_metric_learning import losses as peers
from torch import nn

from levelfield import losses

APART = [situation for situation in SITUATIONS if situation != "duplicates"]
UNMINED = ["unit", "raw", "reference"]
# fmt: off
# Loss, loop, the arguments of both, and in which situations if not in all. Of each loss the defaults or the paper's
# setting, and one far from it that makes every case of the equation occur.
# Norms are 1, below both ranges, or some 2 to 12, below, in and above the second.
MAGFACE = [(10.0, 110.0, 25.8, 45.8, 64.0, 35.0), (3.0, 8.0, 0.0, 120.0, 5.0, 2.0)]
BETAS = {"margin": 0.3, "nu": 0.1, "beta": 1.1, "learn_beta": True}
SHARP = {"margin": 0.4, "Tn": 3.0, "Tp": 2.0, "imbalance": 0.3, "alpha": 1.2, "reduction": "nonzero"}
EQUATIONS = [
    ("AngularLoss", equations.angular, [{}, {"alpha": 70.0}, {"alpha": 45.0, "normalize": False}]),
    ("CentroidTripletLoss", equations.centroid_triplet,
     [{}, {"margin": 0.5, "power": 2, "normalize_centroids": False}, {"margin": 1.0, "power": 2}], UNMINED),
    ("CircleLoss", equations.circle, [(0.4, 80.0), (0.25, 5.0)]),
    ("ContrastiveLoss", equations.contrastive, [(0.0, 1.0, 1), (0.9, 1.2, 2), (0.9, 1.2, 1), (-0.2, 0.5, 2)]),
    ("DecoupledContrastiveLoss", equations.decoupled_contrastive, [(0.1,), (1.0,)]),
    ("FastAPLoss", equations.fast_ap, [(1,), (10,), (25,)], [*UNMINED, "triplets"]),
    ("HyperbolicCrossEntropyLoss", equations.hyperbolic_cross_entropy, [(0.2,), (1.0,)]),
    ("LiftedStructureLoss", equations.lifted_structure,
     [{}, {"neg_margin": -1.5, "pos_margin": 0.4}, {"normalize": False, "neg_margin": 8.0}]),
    ("MarginLoss", equations.margin, [BETAS, {**BETAS, "num_classes": 12}]),
    ("MarginLoss", equations.margin, [{"pairs": True}], ["unit", "pairs", "reference"]),
    ("MultiSimilarityLoss", equations.multi_similarity, [(2.0, 50.0, 0.5), (0.01, 40.0, 0.8), (20.0, 3.0, 0.0)]),
    ("NPairsLoss", equations.n_pairs,
     [{}, {"normalize": False, "l2_reg": 5e-4}, {"symmetric": True}, {"temperature": 0.1}], [*UNMINED, "triplets"]),
    ("NTXentLoss", equations.ntxent, [(0.07,), (1.0,), (1e-4,)]),
    ("PNPLoss", equations.pnp, [(3, 4, 0.05, variant) for variant in equations.PENALTIES]),
    ("PrototypicalLoss", equations.prototypical,
     [{}, {"num_support": 3}, {"squared": False}, {"normalize": True}], UNMINED),
    ("RankedListLoss", equations.ranked_list, [{"margin": 0.4, "Tn": 10.0}, SHARP]),
    ("RecallAtKLoss", equations.recall_at_k, [((1, 2, 4, 8, 16), 1.0, 0.01), ((1, 3), 0.5, 0.1)]),
    ("ROADMAPLoss", equations.roadmap, [(0.02, 70.0, 0.08, weight) for weight in (0.0, 0.3, 1.0)], APART),
    ("SigmoidPairLoss", equations.sigmoid_pair, [(), (3.0, 0.5)]),
    ("SignalToNoiseRatioContrastiveLoss", equations.signal_to_noise_ratio, [(0.0, 1.0, 0.0), (0.5, 2.5, 0.3)]),
    ("SmoothAPLoss", equations.smooth_ap, [(0.01,), (0.2,)]),
    ("SoftNearestNeighborLoss", equations.soft_nearest_neighbor, [(0.1,), (1.0,), (0.001,)]),
    ("SupConLoss", equations.supcon, [(0.1,), (1.0,)]),
    ("TripletMarginLoss", equations.triplet_margin, [
        {}, {"margin": -0.2}, {"margin": 2.5}, {"power": 2, "margin": 0.3}, {"normalize": False, "margin": 1.0},
        {"swap": True, "margin": 0.2}, {"smooth_loss": True},
    ]),
    ("TripletMarginLoss", equations.semihard, [{"margin": 0.1, "triplets_per_anchor": "semihard"}], UNMINED),
    ("TupletMarginLoss", equations.tuplet_margin, [(5.73, 64.0), (20.0, 4.0)], APART),  # no gradient of an arc cosine
    ("AdaFaceLoss", equations.adaface, [(0.4, 64.0, 0.333), (0.9, 10.0, 2.0)]),
    ("ArcFaceLoss", equations.arcface, [(28.6, 64.0), (100.0, 10.0), (0.0, 30.0)]),
    ("CosFaceLoss", equations.cosface, [(0.35, 64.0), (0.1, 5.0)]),
    ("HISTLoss", equations.hist, [
        {"hidden_size": 4, "network_rate": 1.0},  # fewer than classes, or more: the cheaper order of products
        {"hidden_size": 9, "tau": 3.0, "alpha": 2.0, "classification_weight": 0.4, "network_rate": 0.2},
        {"classification_weight": 0.0},
        {"num_classes": 40, "hidden_size": 9},  # more than samples, whose edges are then made another way
    ]),
    ("MagFaceLoss", equations.magface, [(*numbers, easy) for numbers in MAGFACE for easy in (True, False)]),
    ("NormalizedSoftmaxLoss", equations.normalized_softmax, [(0.05,), (0.7,), (0.3, 0.2)]),
    ("PotentialFieldLoss", equations.potential_field, [(2, 0.2, 4.0), (1, 0.9, 1.0), (3, 1.3, 2.5)]),
    ("ProxyAnchorLoss", equations.proxy_anchor, [(0.1, 32.0), (0.3, 2.0)]),
    ("ProxyNCALoss", equations.proxy_nca, [(1.0,), (10.0,)]),
    ("ProxyNCALoss", equations.proxy_nca, [(9.0, True)], ["raw"]),
    ("ProxyTripletLoss", equations.proxy_triplet, [(0.1, "nonzero"), (1.0, "nonzero"), (1.0, "mean")]),
    ("SoftTripleLoss", equations.soft_triple, [(3, 20.0, 0.1, 0.01, 0.0), (4, 40.0, 30.0, 0.3, 0.5)]),
    ("SphereFaceLoss", equations.sphereface, [(4, 1.0), (3, 30.0), (1, 5.0)]),
    ("SubCenterArcFaceLoss", equations.subcenter_arcface, [(1, 60.0, 20.0), (3, 60.0, 20.0)]),
]
# Whose equation looks at all of the batch, or goes by its order.
CONTEXTS = [(4, 0.05, 0.75, 0.6, 0.4, 0.1, 0.25), (2, 0.3, 0.9, 0.1, 0.8, 0.2, 0.0), (9, 0.0, 0.5, 0.5, 1.0, 0.0, 0.0)]
OWN_LABELS = [
    *(("ContextualLoss", equations.contextual, given, [7, 7, 7, 7, 2, 2, 2, 5, 5]) for given in CONTEXTS),
    ("PrototypicalLoss", equations.prototypical, {"num_support": 3}, [3, 0, 3, 1, 0, 1, 3, 3, 9]),
]


# Losses that the peer has too, at the defaults of both, which the page on losses calls the same.
SAME_IN_ALL = (
    "ArcFaceLoss", "CircleLoss", "ContrastiveLoss", "CosFaceLoss", "MarginLoss", "MultiSimilarityLoss", "NTXentLoss",
    "NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "SignalToNoiseRatioContrastiveLoss", "SoftTripleLoss",
    "SphereFaceLoss", "SubCenterArcFaceLoss", "SupConLoss", "TripletMarginLoss",
)
MINED = ["unit", "raw", "pairs", "triplets"]
SAME_IN = {"LiftedStructureLoss": MINED, "NPairsLoss": MINED, "TupletMarginLoss": APART}
PEERS = [(name, getattr(peers, name), [{}]) for name in SAME_IN_ALL]
PEERS += [(name, getattr(peers, name), [{}], situations) for name, situations in SAME_IN.items()]
# Where a loss computes so many values at a time, or compares triplets instead of sorting.
PARTS = {
    "AngularLoss": ("angular.ROW_VALUES", 1),
    "FastAPLoss": ("fast_ap.CACHED_VALUES", 100),
    "LiftedStructureLoss": ("lifted_structure.ROW_VALUES", 1),
    "PotentialFieldLoss": ("potential_field.CACHED_VALUES", 100),
    "SmoothAPLoss": ("soft_ranks.CACHED_VALUES", 100),
    "TripletMarginLoss": ("triplets.COMPARED", 0),
}
# fmt: on


def cases(table):
    found = []
    for name, other, settings, *given in table:
        default = CLASS_SITUATIONS if needs_classes(getattr(losses, name)) else SITUATIONS
        for arguments in settings:
            for situation in given[0] if given else default:
                label = f"{name}-{','.join(map(str, arguments))}-{situation}"
                found.append(pytest.param(name, other, arguments, situation, id=label))
    return pytest.mark.parametrize(("name", "other", "arguments", "situation"), found)


def make(name: str, arguments: dict | tuple) -> nn.Module:
    kind = getattr(losses, name)
    sizes = {"num_classes": 6, "embedding_size": 5} if needs_classes(kind) else {}
    by_name = isinstance(arguments, dict)
    loss = kind(**{**sizes, **arguments}) if by_name else kind(*sizes.values(), *arguments)
    for weight in loss.double().parameters():
        weight.data += torch.linspace(0, 0.2, weight.numel()).view_as(weight)  # no two begin alike
    return loss


def check(name, loop, arguments, situation, labels=None):
    """The loss equals the loop over its equation; returns the loss and the batch."""
    loss = make(name, arguments)
    case = class_batch(situation) if needs_classes(getattr(losses, name)) else batch(situation, labels)
    by_name = isinstance(arguments, dict)
    assert_equals_loop(loss, lambda c: loop(c, **arguments) if by_name else loop(c, *arguments), case)
    return loss, case


@cases(EQUATIONS)
def test_a_loss_equals_its_equation(name, other, arguments, situation):
    check(name, other, arguments, situation)


@pytest.mark.parametrize(("name", "loop", "arguments", "labels"), OWN_LABELS)
@pytest.mark.parametrize("situation", ["unit", "raw"])
def test_a_batch_of_its_own_equals_the_equation(name, loop, arguments, labels, situation):
    check(name, loop, arguments, situation, labels)


@cases([row for row in EQUATIONS if row[0] in PARTS])
def test_a_loss_in_parts_equals_its_equation(name, other, arguments, situation, monkeypatch):
    monkeypatch.setattr(f"levelfield.losses.{PARTS[name][0]}", PARTS[name][1])
    loss, case = check(name, other, arguments, situation)
    if situation == "raw":
        steps = {"eps": 1e-6, "atol": 1e-4, "rtol": 1e-3, "fast_mode": True}
        assert torch.autograd.gradgradcheck(lambda x: loss(x, case.y), [case.x], **steps)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of a peer's constructor
@cases(PEERS)
def test_equals_pytorch_metric_learning(name, other, arguments, situation):
    loss, with_classes = make(name, arguments), needs_classes(getattr(losses, name))
    sizes = {"num_classes": 6, "embedding_size": 5} if with_classes else {}
    peer = other(**sizes, **arguments).double()
    for (_, held), weights in zip(peer.named_parameters(), loss.parameters(), strict=True):
        held.data = (weights if held.shape == weights.shape else weights.T).detach().clone()
    case = class_batch(situation) if with_classes else batch(situation)
    values = (each(*case.arguments()) for each in (loss, peer))
    assert_same(*values, case.x, case.ref, value=1e-5, gradient=1e-4)
