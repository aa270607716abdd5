"""Which losses have the CPU wait for a GPU, and what the others compute where they may not look.

A tensor on the device `meta` has a shape and no values: what depends on values raises there, as `nonzero`, `unique`,
`item` and a mask as an index do, for which the CPU would wait.
"""

import contextlib

import equations
import pytest
import torch
from loss_cases import assert_same, batch, make, value_and_gradients
from pretended_gpu import pretended_gpu
from scipy.stats import chisquare
from test_losses_on_device import CASES, RANDOM
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from levelfield.losses import ContrastiveLoss, FastAPLoss, MarginLoss, StructuredClusteringLoss, TripletMarginLoss
from levelfield.losses.triplets import draw_evenly

# Whose shapes the values of a batch set, and how; with a miner's pairs, too, where they may repeat.
WAITS = {
    "CentroidTripletLoss": "a centroid for each class that is there",
    "PrototypicalLoss": "a prototype for each class that is there",
    "StructuredClusteringLoss": "a medoid for each class that is there, and a search that ends where it finds nothing",
    **dict.fromkeys(("SmoothAPLoss", "PNPLoss", "ROADMAPLoss", "RecallAtKLoss"), "ranks of so many as an anchor has"),
    "TripletMarginLoss-swap": "distances of each positive pair to all others: so many as there are pairs",
    "TripletMarginLoss-smooth_loss": "likewise",
    "AngularLoss": "cosines of each positive pair with all others: so many as there are pairs",
    "NPairsLoss": "one pair of each class that is there",
}
WAITS_FOR_PAIRS = {
    "TripletMarginLoss": "as many columns as an anchor has positives, with their repeats",
}
WAITS_FOR_REFERENCES = {"LiftedStructureLoss": "distances among those references that are a positive"}


class Looks(TorchDispatchMode):
    """Notes what goes between two devices, and what looks at values though `meta` has none to show."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        devices = {each.device.type for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor)}
        if len(devices) > 1 or "multinomial" in str(func):
            self.seen.append(str(func))
        return found


def arguments(given: str, device: str) -> tuple:
    x, y, pairs = torch.randn(12, 6, device=device, requires_grad=True), torch.arange(12) // 3, torch.tensor([0, 4, 8])
    chosen = tuple(indices.to(device) for indices in (pairs, pairs + 1, pairs, (pairs + 5) % 12))
    reference = (torch.randn(9, 6, device=device), (torch.arange(9) // 2).to(device))
    more = {"batch": (), "pairs": (chosen,), "reference": (None, *reference)}
    return x, y.to(device), *more[given]


@pytest.mark.parametrize(("loss", "options"), [*CASES, *RANDOM])
@pytest.mark.parametrize("given", ["batch", "pairs", "reference"])
def test_a_loss_does_not_wait_unless_values_set_its_shapes(loss, options, given, device, monkeypatch):
    made = make(loss, **options)
    try:
        made(*arguments(given, "cpu"))
    except ValueError:
        return  # it takes no miner, or no references
    names = {loss.__name__, f"{loss.__name__}-{','.join(options)}"}
    waits = names & {*WAITS, *{"pairs": WAITS_FOR_PAIRS, "reference": WAITS_FOR_REFERENCES}.get(given, {})}
    if device == "cuda":
        made.cuda()(*arguments(given, "cuda")).backward()  # what is made once is made
        batch_there = arguments(given, "cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchroniz") if waits else contextlib.nullcontext():
                made(*batch_there).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    monkeypatch.setattr("levelfield.losses.base.autocast", lambda *_, **__: contextlib.nullcontext())  # not for meta
    made, batch_there = made.to("meta"), arguments(given, "meta")
    with Looks() as looks, pytest.raises(RuntimeError) if waits else contextlib.nullcontext():
        made(*batch_there).backward()
    assert not looks.seen


class Waits(TorchDispatchMode):
    """Notes the operators that make the CPU wait for a pretended GPU, and those of these names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = {"nonzero", "_unique2", *names}
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given, made = ([x.is_cuda for x in tree_leaves(some) if isinstance(x, Tensor)] for some in (args, found))
        name = func._schema.name.removeprefix("aten::")
        if any(given) and (name in self.names or not made or not all(made)):
            self.seen.append(name)
        return found


@pytest.mark.parametrize("options", [{}, {"gamma_decay": 0.9}])
def test_the_search_of_clusters_does_not_wait_for_each_value(options):
    labels = torch.arange(32) // 4
    embeddings = torch.randn(8, 16)[labels] + torch.randn(32, 16)
    made = StructuredClusteringLoss(**options)
    expected, (gradient,) = value_and_gradients(made.eval()(embeddings.requires_grad_(), labels), embeddings)
    with pretended_gpu() as device, Waits() as waits:
        there = embeddings.detach().to(device).requires_grad_()
        value = made.to(device)(there, labels.to(device))
        value.backward()
    assert len(waits.seen) <= 4
    torch.testing.assert_close(value.values, expected)
    torch.testing.assert_close(there.grad.values, gradient)


@pytest.mark.parametrize("loss", [FastAPLoss, TripletMarginLoss, ContrastiveLoss])
def test_a_loss_does_not_add_by_indices(loss):
    """Each such operator is a sort of all its entries on a GPU under determinism."""
    with pretended_gpu() as device, Waits("scatter_add", "scatter_add_", "index_put", "index_put_", "cumsum") as waits:
        loss()(torch.randn(12, 6, device=device, requires_grad=True), torch.arange(12, device=device) // 3).backward()
    assert not waits.seen


WITHOUT_LOOKING = [case for case in CASES if case.values[0] is TripletMarginLoss and case.id not in WAITS]


@pytest.mark.parametrize(("loss", "options"), WITHOUT_LOOKING)
def test_what_is_computed_without_looking_is_the_same(loss, options, monkeypatch):
    """The lines that a GPU and a compiler take, here in float64."""
    made = loss(**options)
    for situation, labels in (("raw", None), ("duplicates", None), ("reference", None), ("raw", [0, 1, 2, 3])):
        case = batch(situation, labels, dim=6)
        expected = made(*case.arguments())
        with monkeypatch.context() as patched:
            patched.setattr("levelfield.losses.triplets.can_look", lambda _: False)
            found = made(*case.arguments())
        if expected == 0:
            assert found.abs() < 1e-12
        else:
            assert_same(found, expected, case.x, case.ref, value=1e-10, gradient=1e-9)


def test_even_draws_follow_the_counts_of_their_row_and_an_empty_row_is_no_error(device):
    counts = torch.tensor([[0.0, 1, 0, 1, 1, 0, 1], [3, 0, 0, 1, 0, 0, 2], [0] * 7], device=device)
    drawn = draw_evenly(counts, 20_000).cpu()
    for row, law in zip(drawn[:2], counts[:2].cpu().double(), strict=True):
        counted, there = torch.bincount(row, minlength=7), law > 0
        assert not counted[~there].any()
        assert chisquare(counted[there], 20_000 * (law / law.sum())[there]).pvalue > 0.02
    assert ((drawn[2] >= 0) & (drawn[2] < 7)).all()


def test_even_draws_reach_every_column_where_half_precision_is_the_default_type(device):
    torch.set_default_dtype(torch.bfloat16)
    try:
        drawn = draw_evenly(torch.ones(1, 2000, device=device), 200_000)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(drawn.unique()) == 2000  # each is missed once in e^100 draws


@pytest.mark.parametrize(
    ("loss", "loop"), [(TripletMarginLoss, equations.triplet_margin), (MarginLoss, equations.margin)]
)
@pytest.mark.parametrize("looks", [True, False])
def test_the_mean_of_random_triplets_is_near_that_of_all(loss, loop, looks, monkeypatch):
    case = batch("raw", labels=[0, 0, 0, 1, 1, 1, 2, 3], dim=6)  # two anchors have no positive
    case.loss = loss(margin=4.0, triplets_per_anchor=20_000)  # all terms are above 0: draws have their mean
    monkeypatch.setattr("levelfield.losses.triplets.can_look", lambda _: looks)
    assert case.loss(case.x, case.y).item() == pytest.approx(loop(case, margin=4.0).item(), rel=5e-3)
