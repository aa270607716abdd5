"""LazyAdamW against its definition: each row is an AdamW of its own, which steps when the row is drawn."""

import math

import pytest
import torch
from torch import Tensor, nn

from levelfield.training.lazy_adamw import LazyAdamW

SETTINGS = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}


def sparse(rows: list[int], values: Tensor, length: int) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.long), values, (length, values.shape[1]), check_invariants=True
    )


def drawn(steps: int, length: int) -> list[tuple[list[int], Tensor]]:
    """Rows and their gradients; a row twice counts as the sum."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(steps):
        rows = torch.randint(length, (4,), generator=draw).tolist()
        found.append((rows, torch.randn(4, 3, generator=draw, dtype=torch.float64)))
    return found


def by_definition(weights: Tensor, steps: list[tuple[list[int], Tensor]]) -> list[list[float]]:
    """Decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), a number at a time, by a clock of each row."""
    lr, (beta1, beta2), eps, decay = (SETTINGS[key] for key in ("lr", "betas", "eps", "weight_decay"))
    w = [[float(number) for number in row] for row in weights]
    m, v = ([[0.0] * len(row) for row in w] for _ in range(2))
    t = [0] * len(w)
    for rows, values in steps:
        for row in set(rows):
            t[row] += 1
            for j in range(len(w[row])):
                g = sum(float(value[j]) for other, value in zip(rows, values, strict=True) if other == row)
                w[row][j] -= lr * decay * w[row][j]
                m[row][j] = beta1 * m[row][j] + (1 - beta1) * g
                v[row][j] = beta2 * v[row][j] + (1 - beta2) * g * g
                mean, square = m[row][j] / (1 - beta1 ** t[row]), v[row][j] / (1 - beta2 ** t[row])
                w[row][j] -= lr * mean / (math.sqrt(square) + eps)
    return w


@pytest.mark.parametrize("resumed", [False, True])
def test_each_row_is_an_adamw_of_its_own(resumed, monkeypatch):
    monkeypatch.setattr("levelfield.training.lazy_adamw.CACHED", 7)  # two rows of three at a time
    steps = drawn(25, 7)
    start = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = nn.Parameter(start.clone())
    optimizer = LazyAdamW([weights], **SETTINGS)
    for number, (rows, values) in enumerate(steps):
        if resumed and number == 10:
            state = optimizer.state_dict()
            optimizer = LazyAdamW([weights], **SETTINGS)
            optimizer.load_state_dict(state)
        weights.grad = sparse(rows, values, 7)
        optimizer.step()
    torch.testing.assert_close(weights.detach(), torch.tensor(by_definition(start, steps), dtype=torch.float64))


def test_a_row_that_is_not_drawn_stays_as_it_is():
    weights = nn.Parameter(torch.randn(6, 3))
    before = weights.detach().clone()
    optimizer = LazyAdamW([weights], lr=0.1, weight_decay=0.5)
    for _ in range(3):
        weights.grad = sparse([1, 4], torch.randn(2, 3), 6)
        optimizer.step()
    weights.grad = sparse([], torch.zeros(0, 3), 6)  # nor where a process has none of the drawn rows
    optimizer.step()
    untouched = [0, 2, 3, 5]
    assert torch.equal(weights.detach()[untouched], before[untouched])
    assert (weights.detach()[[1, 4]] != before[[1, 4]]).all()


def test_rows_that_are_all_drawn_and_dense_gradients_have_torch_s_adamw():
    """Beside one another in one optimizer, with rates that change; the dense one to the bit."""
    torch.manual_seed(0)
    start = torch.randn(5, 3, dtype=torch.float64)
    ours, ours_dense, theirs, theirs_dense = (nn.Parameter(start.clone()) for _ in range(4))
    groups = [{"params": [ours, ours_dense], "weight_decay": 0.2}]
    optimizers = [LazyAdamW(groups, lr=0.1), torch.optim.AdamW([theirs, theirs_dense], lr=0.1, weight_decay=0.2)]
    for step in range(6):
        gradient = torch.randn(5, 3, dtype=torch.float64)
        ours.grad, ours_dense.grad = gradient.to_sparse(1), gradient.clone()
        theirs.grad, theirs_dense.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        assert ours.grad.is_sparse
    assert torch.equal(ours_dense, theirs_dense)
    torch.testing.assert_close(ours, theirs)


def test_a_first_step_is_one_learning_rate_however_late_it_comes():
    """torch's SparseAdam takes (1 - beta1) / sqrt(1 - beta2) of them."""
    moved = []
    for kind in (LazyAdamW, torch.optim.SparseAdam):
        weights = nn.Parameter(torch.zeros(2, 1, dtype=torch.float64))
        optimizer = kind([weights], lr=0.1, betas=(0.5, 0.99))
        for step in range(800):
            weights.grad = sparse([int(step == 799)], torch.ones(1, 1, dtype=torch.float64), 2)
            optimizer.step()
        moved.append(-weights[1].item() / 0.1)
    assert moved == pytest.approx([1.0, 0.5 / 0.1], rel=0.01)


def test_a_closure_is_called_with_gradients():
    weights = nn.Parameter(torch.ones(2, 2))

    def closure():
        loss = nn.functional.embedding(torch.tensor([1]), weights, sparse=True).sum()
        loss.backward()
        return loss

    assert LazyAdamW([weights]).step(closure) == 2
    assert weights[0].tolist() == [1, 1]
    assert (weights[1] < 1).all()
