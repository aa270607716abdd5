import pytest
import torch
from loss_cases import SITUATIONS, Batch, assert_equals_loop, assert_same, batch

from levelfield.losses import RecallAtKLoss


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def loop(case, recall_at, recall_temperature, rank_temperature, unit=True):
    cosine = case.s if unit else (lambda i, j: case.x[i] @ case.x[j])
    losses = []
    for i in range(len(case.y)):
        positives, others = sorted(set(case.P[i])), sorted({*case.P[i], *case.N[i]})
        if not positives:
            continue
        s = {j: cosine(i, j) for j in others}
        ranks = {p: 1 + sum(sigmoid((s[j] - s[p]) / rank_temperature) for j in others if j != p) for p in positives}
        recalls = [
            sum(sigmoid((k - ranks[p]) / recall_temperature) for p in positives) / len(positives) for k in recall_at
        ]
        losses.append(sum(1 - recall for recall in recalls) / len(recalls))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [((1, 2, 4, 8, 16), 1.0, 0.01), ((1, 3), 0.5, 0.1)])
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(RecallAtKLoss(*arguments), lambda case: loop(case, *arguments), batch(situation))


def test_mixed_samples_stand_in_the_batch_with_mixtures_of_similarities():
    """Whose vectors are a u_i + (1 - a) u_j for each two of a class, a the draws in their order."""
    case = batch("raw", [7, 7, 7, 2, 2, 5], seed=2)
    loss = RecallAtKLoss((1, 2), 1.0, 0.1, similarity_mixup=True)
    torch.manual_seed(4)
    value = loss(case.x, case.y)
    torch.manual_seed(4)
    shares = torch.rand(4, 1, dtype=torch.float64).flatten()
    rows, labels = [case.u(i) for i in range(6)], case.y.tolist()
    for a, (i, j) in zip(shares, [(0, 1), (0, 2), (1, 2), (3, 4)], strict=True):
        rows.append(a * case.u(i) + (1 - a) * case.u(j))
        labels.append(labels[i])
    expected = loop(Batch(torch.stack(rows), torch.tensor(labels)), (1, 2), 1.0, 0.1, unit=False)
    assert_same(value, expected, case.x, value=1e-10, gradient=1e-9)
    for rest in ((tuple(torch.tensor([[0], [1], [3]])),), (None, case.x, case.y)):
        with pytest.raises(ValueError, match="takes no miner and no ref_emb"):
            loss(case.x, case.y, *rest)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [4, 4]])
def test_mixup_of_little_is_finite(labels):
    x = torch.randn(len(labels), 3, requires_grad=True)
    value = RecallAtKLoss(similarity_mixup=True)(x, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert (value == 0) == (len(set(labels)) == len(labels))


def test_cold_sigmoids_give_the_recall_by_hand():
    """Positives at ranks 2 and 4 of 4: recall 0, 1/2, 1/2 and 1 among the 1, 2, 3 and 4 nearest, but for rank = k."""
    cosines = torch.tensor([[0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
    positives = torch.tensor([[0.0, 1, 0, 1]], dtype=torch.float64)
    for k, recall in [(1, 0), (2, 0.25), (3, 0.5), (4, 0.75), (5, 1)]:  # a rank of just k counts half
        loss = RecallAtKLoss((k,), 1e-3, 1e-4).pair_loss(cosines, positives, 1 - positives)
        assert loss == pytest.approx(1 - recall, abs=1e-6)


def test_bad_arguments_are_refused():
    for recall_at in ((), (0, 1)):
        with pytest.raises(ValueError, match="must be whole numbers from 1"):
            RecallAtKLoss(recall_at)
