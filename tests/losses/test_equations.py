"""Each loss and its gradients are those of a loop over its equation, and those of pytorch-metric-learning."""

import class_loops as of_classes
import pair_loops as of_pairs
import pytest
import torch
from loss_cases import (
    CLASS_SITUATIONS,
    SITUATIONS,
    Batch,
    assert_equals_loop,
    assert_equals_peer,
    assert_same,
    batch,
    class_batch,
    needs_classes,
)
from pytorch_metric_learning import distances, regularizers
from pytorch_metric_learning import losses as peers
from torch import nn

from levelfield import losses

APART = [situation for situation in SITUATIONS if situation != "duplicates"]
UNMINED = ["unit", "raw", "reference"]
# fmt: off
# Loss, loop, the arguments of both, and in which situations if not in all. Of each loss the defaults or the paper's
# setting, and one far from it that makes every case of the equation occur.
TRIPLETS = ("TripletMarginLoss", of_pairs.triplet_margin, [
    {}, {"margin": -0.2}, {"margin": 2.5}, {"power": 2, "margin": 0.3}, {"normalize": False, "margin": 1.0},
    {"swap": True, "margin": 0.2}, {"smooth_loss": True},
])
BETAS = {"margin": 0.3, "nu": 0.1, "beta": 1.1, "learn_beta": True}
SHARP = {"margin": 0.4, "Tn": 3.0, "Tp": 2.0, "imbalance": 0.3, "alpha": 1.2, "reduction": "nonzero"}
PAIRS = [
    ("AngularLoss", of_pairs.angular, [{}, {"alpha": 70.0}, {"alpha": 45.0, "normalize": False}]),
    ("CentroidTripletLoss", of_pairs.centroid_triplet,
     [{}, {"margin": 0.5, "power": 2, "normalize_centroids": False}, {"margin": 1.0, "power": 2}], UNMINED),
    ("CircleLoss", of_pairs.circle, [(0.4, 80.0), (0.25, 5.0)]),
    ("ContrastiveLoss", of_pairs.contrastive, [(0.0, 1.0, 1), (0.9, 1.2, 2), (0.9, 1.2, 1), (-0.2, 0.5, 2)]),
    ("DecoupledContrastiveLoss", of_pairs.decoupled_contrastive, [(0.1,), (1.0,)]),
    ("FastAPLoss", of_pairs.fast_ap, [(1,), (10,), (25,)], [*UNMINED, "triplets"]),
    ("HyperbolicCrossEntropyLoss", of_pairs.hyperbolic_cross_entropy, [(0.2,), (1.0,)]),
    ("LiftedStructureLoss", of_pairs.lifted_structure,
     [{}, {"neg_margin": -1.5, "pos_margin": 0.4}, {"normalize": False, "neg_margin": 8.0}]),
    ("MarginLoss", of_pairs.margin, [BETAS, {**BETAS, "num_classes": 12}]),
    ("MarginLoss", of_pairs.margin, [{"pairs": True}], ["unit", "pairs", "reference"]),
    ("MultiSimilarityLoss", of_pairs.multi_similarity, [(2.0, 50.0, 0.5), (0.01, 40.0, 0.8), (20.0, 3.0, 0.0)]),
    ("NPairsLoss", of_pairs.n_pairs,
     [{}, {"normalize": False, "l2_reg": 5e-4}, {"symmetric": True}, {"temperature": 0.1}], [*UNMINED, "triplets"]),
    ("NTXentLoss", of_pairs.ntxent, [(0.07,), (1.0,), (1e-4,)]),
    ("PNPLoss", of_pairs.pnp, [(3, 4, 0.05, variant) for variant in of_pairs.PENALTIES]),
    ("PrototypicalLoss", of_pairs.prototypical,
     [{}, {"num_support": 3}, {"squared": False}, {"normalize": True}], UNMINED),
    ("RankedListLoss", of_pairs.ranked_list, [{"margin": 0.4, "Tn": 10.0}, SHARP]),
    ("RecallAtKLoss", of_pairs.recall_at_k, [((1, 2, 4, 8, 16), 1.0, 0.01), ((1, 3), 0.5, 0.1)]),
    ("ROADMAPLoss", of_pairs.roadmap, [(0.02, 70.0, 0.08, weight) for weight in (0.0, 0.3, 1.0)], APART),
    ("SigmoidPairLoss", of_pairs.sigmoid_pair, [(), (3.0, 0.5)]),
    ("SignalToNoiseRatioContrastiveLoss", of_pairs.signal_to_noise_ratio, [(0.0, 1.0, 0.0), (0.5, 2.5, 0.3)]),
    ("SmoothAPLoss", of_pairs.smooth_ap, [(0.01,), (0.2,)]),
    ("SoftNearestNeighborLoss", of_pairs.soft_nearest_neighbor, [(0.1,), (1.0,), (0.001,)]),
    ("SupConLoss", of_pairs.supcon, [(0.1,), (1.0,)]),
    TRIPLETS,
    ("TripletMarginLoss", of_pairs.semihard, [{"margin": 0.1, "triplets_per_anchor": "semihard"}], UNMINED),
    ("TupletMarginLoss", of_pairs.tuplet_margin, [(5.73, 64.0), (20.0, 4.0)], APART),  # no gradient of an arc cosine
]
# Norms are 1, below both ranges, or some 2 to 12, below, in and above the second.
MAGFACE = [(10.0, 110.0, 25.8, 45.8, 64.0, 35.0), (3.0, 8.0, 0.0, 120.0, 5.0, 2.0)]
CLASSES = [
    ("AdaFaceLoss", of_classes.adaface, [(0.4, 64.0, 0.333), (0.9, 10.0, 2.0)]),
    ("ArcFaceLoss", of_classes.arcface, [(28.6, 64.0), (100.0, 10.0), (0.0, 30.0)]),
    ("CosFaceLoss", of_classes.cosface, [(0.35, 64.0), (0.1, 5.0)]),
    ("HISTLoss", of_classes.hist, [
        {"hidden_size": 4, "network_rate": 1.0},  # fewer than classes, or more: the cheaper order of products
        {"hidden_size": 9, "tau": 3.0, "alpha": 2.0, "classification_weight": 0.4, "network_rate": 0.2},
        {"classification_weight": 0.0},
        {"num_classes": 40, "hidden_size": 9},  # more than samples, whose edges are then made another way
    ]),
    ("MagFaceLoss", of_classes.magface, [(*numbers, easy) for numbers in MAGFACE for easy in (True, False)]),
    ("NormalizedSoftmaxLoss", of_classes.normalized_softmax, [(0.05,), (0.7,), (0.3, 0.2)]),
    ("PotentialFieldLoss", of_classes.potential_field, [(2, 0.2, 4.0), (1, 0.9, 1.0), (3, 1.3, 2.5)]),
    ("ProxyAnchorLoss", of_classes.proxy_anchor, [(0.1, 32.0), (0.3, 2.0)]),
    ("ProxyNCALoss", of_classes.proxy_nca, [(1.0,), (10.0,)]),
    ("ProxyNCALoss", of_classes.proxy_nca, [(9.0, True)], ["raw"]),
    ("ProxyTripletLoss", of_classes.proxy_triplet, [(0.1, "nonzero"), (1.0, "nonzero"), (1.0, "mean")]),
    ("SoftTripleLoss", of_classes.soft_triple, [(3, 20.0, 0.1, 0.01, 0.0), (4, 40.0, 30.0, 0.3, 0.5)]),
    ("SphereFaceLoss", of_classes.sphereface, [(4, 1.0), (3, 30.0), (1, 5.0)]),
    ("SubCenterArcFaceLoss", of_classes.subcenter_arcface, [(1, 60.0, 20.0), (3, 60.0, 20.0)]),
]
# Whose equation looks at all of the batch, or goes by its order.
CONTEXTS = [(4, 0.05, 0.75, 0.6, 0.4, 0.1, 0.25), (2, 0.3, 0.9, 0.1, 0.8, 0.2, 0.0), (9, 0.0, 0.5, 0.5, 1.0, 0.0, 0.0)]
OWN_LABELS = [
    *(("ContextualLoss", of_pairs.contextual, given, [7, 7, 7, 7, 2, 2, 2, 5, 5]) for given in CONTEXTS),
    ("PrototypicalLoss", of_pairs.prototypical, {"num_support": 3}, [3, 0, 3, 1, 0, 1, 3, 3, 9]),
]
# fmt: on


def cases(table, situations):
    found = []
    for name, loop, settings, *given in table:
        for arguments in settings:
            for situation in given[0] if given else situations:
                marks = f"{name}-{','.join(map(str, arguments))}-{situation}"
                found.append(pytest.param(name, loop, arguments, situation, id=marks))
    return found


def make(name: str, arguments: dict | tuple) -> nn.Module:
    kind = getattr(losses, name)
    given = dict(arguments) if isinstance(arguments, dict) else {}
    sizes = [given.pop("num_classes", 6), 5] if needs_classes(kind) else []
    loss = kind(*sizes, **given) if isinstance(arguments, dict) else kind(*sizes, *arguments)
    for weight in loss.double().parameters():
        weight.data += torch.linspace(0, 0.2, weight.numel()).view_as(weight)  # no two begin alike
    return loss


def check(name: str, loop, arguments: dict | tuple, case: Batch) -> None:
    loss = make(name, arguments)
    call = (lambda c: loop(c, **arguments)) if isinstance(arguments, dict) else (lambda c: loop(c, *arguments))
    assert_equals_loop(loss, call, case)


@pytest.mark.parametrize(("name", "loop", "arguments", "situation"), cases(PAIRS, SITUATIONS))
def test_a_loss_of_pairs_equals_its_equation(name, loop, arguments, situation):
    check(name, loop, arguments, batch(situation))


@pytest.mark.parametrize(("name", "loop", "arguments", "situation"), cases(CLASSES, CLASS_SITUATIONS))
def test_a_loss_of_classes_equals_its_equation(name, loop, arguments, situation):
    check(name, loop, arguments, class_batch(situation))


@pytest.mark.parametrize(("name", "loop", "arguments", "labels"), OWN_LABELS)
@pytest.mark.parametrize("situation", ["unit", "raw"])
def test_a_batch_of_its_own_equals_the_equation(name, loop, arguments, labels, situation):
    check(name, loop, arguments, batch(situation, labels))


# Where a loss computes so many values at a time, or compares triplets instead of sorting.
PARTS = {
    "AngularLoss": ("angular.ROW_VALUES", 1),
    "FastAPLoss": ("fast_ap.CACHED_VALUES", 100),
    "LiftedStructureLoss": ("lifted_structure.ROW_VALUES", 1),
    "PotentialFieldLoss": ("potential_field.CACHED_VALUES", 100),
    "SmoothAPLoss": ("soft_ranks.CACHED_VALUES", 100),
    "TripletMarginLoss": ("triplets.COMPARED", 0),
}
IN_PARTS = [[row for row in table if row[0] in PARTS] for table in (PAIRS, CLASSES)]


@pytest.mark.parametrize(
    ("name", "loop", "arguments", "situation"),
    [*cases(IN_PARTS[0], SITUATIONS), *cases(IN_PARTS[1], ["raw", "triplets"])],
)
def test_a_loss_in_parts_equals_its_equation(name, loop, arguments, situation, monkeypatch):
    monkeypatch.setattr(f"levelfield.losses.{PARTS[name][0]}", PARTS[name][1])
    case = (class_batch if needs_classes(getattr(losses, name)) else batch)(situation)
    check(name, loop, arguments, case)
    if situation == "raw":
        loss, steps = make(name, arguments), {"eps": 1e-6, "atol": 1e-4, "rtol": 1e-3, "fast_mode": True}
        assert torch.autograd.gradgradcheck(lambda x: loss(x, case.y), [case.x], **steps)


def both(name, situations=None, peer=None, theirs=None, **ours):
    """Our loss, and the peer's of this name and these arguments if not of others."""
    situations = situations or (CLASS_SITUATIONS if needs_classes(getattr(losses, name)) else SITUATIONS)
    given = ",".join(map(str, ours.values()))
    for situation in situations:
        yield pytest.param(
            name, ours, peer or name, {**ours, **(theirs or {})}, situation, id=f"{name}-{given}-{situation}"
        )


UNIT_AND_RAW, MINED = ["unit", "raw"], ["unit", "raw", "pairs", "triplets"]
ZERO_MEAN = {"embedding_regularizer": regularizers.ZeroMeanRegularizer(), "embedding_reg_weight": 0.4}
SQUARED = {"distance": distances.LpDistance(power=2)}
PEERS = [
    *both("ArcFaceLoss", margin=70),
    *both("CircleLoss"),
    *both("ContrastiveLoss", pos_margin=0.3, neg_margin=1.1),
    *both("CosFaceLoss"),
    *both("LiftedStructureLoss", MINED),
    *both("MarginLoss"),
    *both("MarginLoss", learn_beta=True, nu=0.05, num_classes=12),
    *both("MultiSimilarityLoss"),
    *both("NPairsLoss", MINED),
    *both("NormalizedSoftmaxLoss"),
    *both("NTXentLoss"),
    *both("NTXentLoss", temperature=0.03),
    *both("ProxyAnchorLoss"),
    *both("ProxyNCALoss", softmax_scale=3.0),
    *both("SignalToNoiseRatioContrastiveLoss", pos_margin=0.1, neg_margin=1.5),
    *both("SoftTripleLoss"),
    *both("SphereFaceLoss"),
    *both("SubCenterArcFaceLoss"),
    *both("SupConLoss"),
    *both("TripletMarginLoss"),
    *both("TripletMarginLoss", margin=0.3, smooth_loss=True),
    *both("TupletMarginLoss", APART),
]
# Loss, arguments, the peer's loss and arguments, situation.
OTHERS = [
    ("AdaFaceLoss", (0.35, 64.0), "CosFaceLoss", {"margin": 0.35, "scale": 64}, "unit"),  # the norms are equal
    ("SignalToNoiseRatioContrastiveLoss", (0.0, 1.0, 0.4), "SignalToNoiseRatioContrastiveLoss", ZERO_MEAN, "raw"),
    # SNN(T) = NCA(1/(2T)): norm(u - v)^2 / (2T) = 1/T - u.v/T.
    *(("SoftNearestNeighborLoss", (0.2,), "NCALoss", {"softmax_scale": 1 / 0.4}, each) for each in UNIT_AND_RAW),
    *(
        ("TripletMarginLoss", given, "TripletMarginLoss", {"margin": 0.3, "swap": True, **SQUARED}, each)
        for given in [{"margin": 0.3, "swap": True, "power": 2}]
        for each in ("unit", "pairs", "triplets")
    ),
]


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of a peer's constructor
@pytest.mark.parametrize(("name", "ours", "peer", "theirs", "situation"), [*PEERS, *OTHERS])
def test_equals_pytorch_metric_learning(name, ours, peer, theirs, situation):
    loss, with_classes = make(name, ours), needs_classes(getattr(losses, name))
    sizes = {"num_classes": 6, "embedding_size": 5} if with_classes else {}
    other = getattr(peers, peer)(**sizes, **theirs).double()
    if with_classes:
        held = next(
            weight for weight in (getattr(other, key, None) for key in ("W", "fc", "proxies")) if weight is not None
        )
        weights = loss.class_weights.data
        held.data = (weights if held.shape == weights.shape else weights.T).clone()
    elif learnt := list(loss.parameters()):
        other.beta.data = learnt[0].data.clone()
    assert_equals_peer(loss, other, class_batch(situation) if with_classes else batch(situation))


# The peer takes classes of one size alone, or misplaces weights where an anchor is dropped, or counts the anchor as a
# positive, as ours does where the batch is its own reference.
@pytest.mark.parametrize(
    ("ours", "theirs", "labels", "counts_itself"),
    [
        *(
            (losses.FastAPLoss(bins), peers.FastAPLoss(bins), [7, 7, 7, 2, 2, 2, 5, 5, 5, 5, 3, 3], False)
            for bins in (10, 17)
        ),
        *((losses.SmoothAPLoss(t), peers.SmoothAPLoss(t), [7, 7, 7, 2, 2, 2, 5, 5, 5], True) for t in (0.01, 0.1)),
        *(
            (losses.PNPLoss(3, 4, variant=v), peers.PNPLoss(b=3, alpha=4, variant=v), [7, 7, 7, 2, 2, 5, 5, 5, 5], True)
            for v in of_pairs.PENALTIES
        ),
    ],
)
def test_ranks_equal_pytorch_metric_learnings(ours, theirs, labels, counts_itself):
    case = batch("raw", labels)
    expected = theirs(case.x, case.y)
    if getattr(ours, "variant", None) == "Iu":  # but for its - R, which the authors' code lacks too
        expected = expected - peers.PNPLoss(variant="O")(case.x, case.y)
    value = ours(case.x, case.y, None, *((case.x, case.y) if counts_itself else ()))
    assert_same(value, expected, case.x, value=1e-5, gradient=1e-4)
