"""What holds for every loss and regularizer: awkward batches, precision, refusals, gradients, compilation."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import get_args

import pretended_gpu
import pytest
import torch
from loss_cases import ARGUMENTS, batch, needs_classes, shipped, value_and_gradients
from loss_cases import make as made_of
from matmul_precision import Products, coarse_on_the_cpu, made
from peak_memory import peak_bytes
from torch import nn

from levelfield import losses, regularizers

any_device = pretended_gpu.any_device
PAIRS = [loss.__name__ for loss in shipped() if not needs_classes(loss)]
CLASSES = [loss.__name__ for loss in shipped() if issubclass(loss, losses.ClassificationLoss)]
EVERY = [loss.__name__ for loss in shipped()]
REGULARIZERS = [name for name in regularizers.__all__ if name != "Regularizer"]
OF_POINTS = [*EVERY, *REGULARIZERS]


class Penalty(nn.Sequential):
    """A regularizer, called as a loss."""

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(embeddings)


def make(name: str, dim: int = 6) -> nn.Module:
    torch.manual_seed(0)
    if name in REGULARIZERS:
        return Penalty(getattr(regularizers, name)())
    return made_of(getattr(losses, name), dim, **ARGUMENTS.get(name, {}))


def drawn(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(seed))


AWKWARD = {
    "no positive pair": (drawn(4, 1), [0, 3, 5, 9]),
    "no negative": (drawn(4, 2), [3, 3, 3, 3]),
    "one sample": (drawn(1, 3), [7]),
    "two samples": (drawn(2, 4), [5, 5]),
    "identical embeddings": (torch.full((6, 6), 0.3), [1, 1, 1, 4, 4, 4]),
    "a zero vector": (torch.cat([torch.zeros(1, 6), torch.eye(6)[:5]]), [0, 0, 0, 4, 4, 4]),
    "all zero": (torch.zeros(4, 6), [0, 0, 1, 1]),
    "opposite embeddings": (torch.eye(6)[:2].repeat(2, 1) * torch.tensor([[1.0], [1], [-1], [-1]]), [0, 1, 0, 1]),
    "one dimension": (torch.tensor([[1.0], [2.0], [-1.0]]), [0, 0, 1]),
}


@pytest.mark.parametrize("name", OF_POINTS)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "float16"])
def test_an_awkward_batch_has_a_finite_loss_and_gradient(name, precision):
    dtype = getattr(torch, precision)
    for case, (points, labels) in AWKWARD.items():
        loss, embeddings = make(name, points.shape[1]), points.to(dtype).clone().requires_grad_()
        value = loss(embeddings, torch.tensor(labels))
        assert (value.shape, value.dtype) == ((), torch.float64 if dtype == torch.float64 else torch.float32)
        assert value.isfinite(), case
        value.backward()
        assert embeddings.grad.isfinite().all(), case
        assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters()), case
        if case == "one sample" and name in PAIRS + REGULARIZERS:
            assert value == 0
            assert (embeddings.grad == 0).all()


@pytest.mark.parametrize("name", OF_POINTS)
def test_autocast_leaves_a_loss_in_float32(name, device):
    x, y = batch("raw", dim=6).x.detach().float().to(device), torch.arange(10, device=device) // 3
    loss = make(name).to(device)
    expected = loss(x, y)
    for precision in (torch.bfloat16, torch.float16):
        with torch.autocast(device, precision):
            value = loss(x, y)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)  # a GPU adds in any order
    half = x.bfloat16()
    exact = make(name).to(device).double()(half.double(), y)
    torch.testing.assert_close(make(name).to(device)(half, y).double(), exact, rtol=1e-5, atol=1e-5)


def settings_off(name: str) -> Iterator[dict[str, object]]:
    """The loss' arguments, each once at 0, at the other truth value and at each other word, if the loss takes it."""
    kind = getattr(losses, name)
    for argument, known in inspect.signature(kind).parameters.items():
        words = [word for part in (known.annotation, *get_args(known.annotation)) for word in get_args(part)]
        is_number = isinstance(known.default, int | float)
        numbers = [not known.default if isinstance(known.default, bool) else 0] * is_number
        for value in [*numbers, *(word for word in words if isinstance(word, str))]:
            given = {**ARGUMENTS.get(name, {}), argument: value}
            with contextlib.suppress(ValueError):  # it refuses some
                made_of(kind, **given)
                yield given


@pytest.mark.parametrize("name", EVERY)
def test_every_weight_that_trains_gets_a_gradient_whatever_is_switched_off(name):
    """DDP waits in its second step for a weight without one."""
    for given in settings_off(name):
        loss = made_of(getattr(losses, name), **given)
        loss(torch.randn(8, 6, requires_grad=True), torch.arange(8) // 2).backward()
        assert [n for n, weight in loss.named_parameters() if weight.requires_grad and weight.grad is None] == [], given


@pytest.mark.parametrize("name", PAIRS)
def test_an_empty_choice_is_zero(name):
    if "Takes no miner" in " ".join(getattr(losses, name).__doc__.split()) or name == "FastAPLoss":
        pytest.skip("takes no miner, or one that only weighs its anchors: an empty choice weighs them alike")
    none = torch.zeros(0, dtype=torch.long)
    for chosen in ((none,) * 3, (none,) * 4):
        assert make(name)(torch.randn(4, 6), torch.tensor([0, 0, 1, 1]), chosen) == 0


@pytest.mark.parametrize("name", OF_POINTS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_embedding_that_is_not_finite_never_gives_a_finite_loss(name, bad):
    loss, points, labels = make(name), torch.randn(8, 6), torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])
    for row in (0, 7):  # one with positives, one without
        broken = points.clone()
        broken[row, 2] = bad
        assert not make(name)(broken, labels).isfinite()
    for broken in (torch.full((8, 6), bad), points.index_fill(0, torch.arange(1, 7), bad)):
        value = loss(broken.requires_grad_(), labels)
        value.backward()  # no error
        assert value.isnan()


OF_NORMS = {"SphericalConstraint", "CenterInvariance", "ZeroMean"}
NORMS = {"PrototypicalLoss", "SphereFaceLoss", "AdaFaceLoss", "MagFaceLoss", "HyperbolicCrossEntropyLoss", "HISTLoss"}


@pytest.mark.parametrize("name", OF_POINTS)
@pytest.mark.parametrize("scale", [1e-30, 1e19])
def test_losses_of_unit_vectors_are_the_same_at_any_scale(name, scale):
    if name in NORMS | OF_NORMS:
        pytest.skip("lives on the norms of the embeddings")
    case, loss = batch("raw", dim=6), make(name)
    embeddings = case.x.detach().float()
    torch.testing.assert_close(loss(embeddings * scale, case.y), loss(embeddings, case.y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_labels_may_be_any_integers(name):
    """Labels above 2^24 would fall together in float32."""
    if name == "MarginLoss":
        pytest.skip("one b for each class: labels are indices")
    embeddings = batch("raw").x.detach()
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 3])
    loss = make(name)
    expected = loss(embeddings, labels)
    for offset in (-2, 2**24, 2**40):
        torch.testing.assert_close(loss(embeddings, labels + offset), expected)
    torch.testing.assert_close(loss(embeddings, labels.int()), expected)


@pytest.mark.parametrize("name", [*CLASSES, "MarginLoss"])
def test_a_label_that_is_no_class_raises_on_the_cpu_and_makes_the_loss_nan_on_a_gpu(name, any_device):
    loss, x = make(name).to(any_device), torch.randn(4, 6, device=any_device)
    for wrong in (20, -1):
        labels = torch.tensor([0, 1, wrong, 3], device=any_device)
        if any_device == "cpu":
            with pytest.raises(ValueError, match=f"label {wrong} at position 2 is not one of the 20 classes"):
                loss(x, labels)
        else:
            assert loss(x, labels).isnan()


@pytest.mark.parametrize("name", EVERY)
def test_shapes_and_types_that_do_not_fit_raise_one_line(name):
    loss, x, y = make(name), torch.randn(4, 6), torch.tensor([0, 0, 1, 1])
    for arguments, message in [
        ((x[0], y), "embeddings must be a non-empty floating-point"),
        ((x.long(), y), "embeddings must be a non-empty floating-point"),
        ((x[:0], y[:0]), "embeddings must be a non-empty floating-point"),
        ((x, y[:3]), "3 labels for 4 embeddings"),
        ((x, y.float()), "labels must be an integer"),
        ((x, y[:, None]), "labels must be an integer"),
        *((((x, y[:, None] == y), "no label sets are taken"),) if not loss.takes_label_sets else ()),
        *((((x, y, None, x, y), "takes no ref_emb"),) if name in CLASSES else ()),
        *((((x[:, :5], y), "have 5 dimensions but .* embedding_size=6"),) if name in CLASSES else ()),
        ((x, y, None, x), "ref_emb is given without ref_labels"),
        ((x, y, None, x[:, :5], y), "ref_emb has 5 dimensions but embeddings have 6"),
        ((x, y, (y, y)), "indices_tuple must be"),
        ((x, y, (y, y, y[:2])), "indices_tuple must be"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            loss(*arguments)
        assert "\n" not in str(caught.value)


RANKED = {"margin": 0.4, "Tn": 10}
NONSENSE: dict[str, list[dict[str, object]]] = {
    "AdaFaceLoss": [{"momentum": 1}],
    "AngularLoss": [{"alpha": 90}],
    "ArcFaceLoss": [{"margin": 200}, {"scale": 0}, {"weight_init": "xavier"}],
    "CentroidTripletLoss": [{"power": 3}],
    "ContextualLoss": [{"similarity_weight": 0.4, "context_weight": 0.7}],
    "HISTLoss": [{"tau": 0.0}, {"hidden_size": 0}, {"classification_weight": -1.0}],
    "MagFaceLoss": [{"upper_norm": 5, "lower_norm": 10}],
    "MarginLoss": [{"triplets_per_anchor": "some"}],
    "NormalizedSoftmaxLoss": [{"num_classes": 0}, {"temperature": 0}, {"class_fraction": 0}, {"label_smoothing": 1}],
    "NPairsLoss": [{"temperature": 0}],
    "PNPLoss": [{"variant": "Dx"}],
    "PotentialFieldLoss": [{"delta": 0.0}, {"alpha": 10.5}],
    "PrototypicalLoss": [{"num_support": 0}],
    "ProxyTripletLoss": [{"reduction": "sum"}],
    "RankedListLoss": [{**RANKED, "imbalance": 2}, {**RANKED, "reduction": "non-zero"}],
    "RecallAtKLoss": [{"recall_at": ()}, {"recall_at": (0, 1)}],
    "ROADMAPLoss": [{"weight": 1.5}],
    "SphereFaceLoss": [{"margin": 1.5}],
    "StructuredClusteringLoss": [{"gamma_decay": 0.0}, {"gamma_decay": 1.1}, {"decay_steps": 0}],
    "TripletMarginLoss": [
        {"power": 3}, {"triplets_per_anchor": "semi-hard"}, {"triplets_per_anchor": "semihard", "swap": True},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), [(name, given) for name, rows in NONSENSE.items() for given in rows])
def test_an_argument_that_makes_no_sense_is_refused(name, arguments):
    *_, key = arguments
    with pytest.raises(ValueError, match=key) as caught:
        made_of(getattr(losses, name), **arguments)
    assert "\n" not in str(caught.value)


NO_MINER = ["CentroidTripletLoss", "ContextualLoss", "PrototypicalLoss", "StructuredClusteringLoss"]


@pytest.mark.parametrize("name", NO_MINER)
def test_a_miner_or_references_that_it_does_not_take_are_refused(name):
    loss, takes_references = getattr(losses, name)(), name in ("CentroidTripletLoss", "PrototypicalLoss")
    for situation in ["pairs"] + ["reference"] * (not takes_references):
        with pytest.raises(ValueError, match=f"{name}.* take.* miner"):
            loss(*batch(situation).arguments())
    assert torch.isfinite(loss(*batch("reference" if takes_references else "raw").arguments()))


# Their weights are constants for the gradient, or a step has a slope; see their own tests.
@pytest.mark.parametrize("name", sorted({*OF_POINTS} - {"CircleLoss", "AdaFaceLoss", "ContextualLoss"}))
def test_its_gradient_and_its_second_are_finite_differences(name):
    case = batch("raw", labels=[0, 0, 0, 1, 1, 1, 2, 2], dim=6, seed=3)
    loss = make(name).double()
    inputs = [case.x.detach().requires_grad_(), *loss.parameters()]
    if name == "ProxyAnchorLoss":
        loss.class_weights.data *= 3  # a step of 1e-6 is then small beside the weights
    arguments = {"eps": 1e-6, "fast_mode": True}
    assert torch.autograd.gradcheck(lambda x, *_: loss(x, case.y), inputs, atol=1e-5, rtol=1e-4, **arguments)
    assert torch.autograd.gradgradcheck(lambda x, *_: loss(x, case.y), inputs, atol=1e-4, rtol=1e-3, **arguments)


@pytest.mark.parametrize("name", OF_POINTS)
def test_products_and_their_gradients_are_true_float32_whatever_torch_was_told(name):
    loss, embeddings, labels = make(name), torch.randn(8, 6, requires_grad=True), torch.arange(8) // 2
    with made(coarse_on_the_cpu), Products() as products:
        loss(embeddings, labels).backward()
    assert not products.seen
    assert products.guarded or name in OF_NORMS


MATRICES = 64  # of the batch's size squared: 16 GiB at a batch of 8,192


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "StructuredClusteringLoss"])
def test_its_memory_is_that_of_some_matrices_of_pairs(name):
    """The other one searches among as many as the square of the number of classes."""
    loss = losses.MarginLoss() if name == "MarginLoss" else make(name)  # without a boundary for each class
    x, y = torch.randn(1024, 6, requires_grad=True), torch.arange(1024) // 4
    assert peak_bytes(lambda: loss(x, y).backward()) < MATRICES * 4 * 1024**2


@pytest.mark.parametrize("name", ["AngularLoss", "ContrastiveLoss", "LiftedStructureLoss"])
def test_a_memory_compares_the_batch_alone_with_all_that_it_holds(name):
    loss = losses.CrossBatchMemory(make(name), 6, memory_size=16384).train()
    x, y = torch.randn(64, 6, requires_grad=True), torch.arange(64) // 4
    loss.memory.copy_(torch.randn(16384, 6))
    loss.memory_labels.copy_(torch.arange(16384) % 4096)
    loss.entered = 16384
    assert peak_bytes(lambda: loss(x, y).backward()) < MATRICES * 4 * 64 * 16384


NOT_COMPILED_WHOLE = {loss.__name__ for loss in shipped() if "Not for `torch.compile(fullgraph=True)`" in loss.__doc__}
QUICK = ["ContrastiveLoss", "NTXentLoss", "ArcFaceLoss", "KoLeo"]
SLOWER = sorted({*OF_POINTS} - {*QUICK} - NOT_COMPILED_WHOLE)  # they take a minute


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in SLOWER)])
def test_compiles_without_a_break(name):
    torch._dynamo.reset()
    loss, x, y = make(name), torch.randn(8, 6, requires_grad=True), torch.arange(8) // 2
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (value, (slope,)), (expected, (right,)) = (value_and_gradients(each(x, y), x) for each in (compiled, loss))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, right, rtol=1e-4, atol=1e-5)
    if name in CLASSES:
        assert compiled(x, y + 17).isnan()  # labels up to 20 of 20 classes: no raise, no synchronisation
