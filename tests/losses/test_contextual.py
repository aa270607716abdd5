import pytest
import torch
from loss_cases import assert_equals_loop, batch, nonzero_mean

from levelfield.losses import ContextualLoss, contextual

LABELS = [7, 7, 7, 7, 2, 2, 2, 5, 5]


def loop(case, k, epsilon, pos_margin, neg_margin, context_weight, similarity_weight, mean_similarity):
    N, y = len(case.y), case.y.tolist()
    s = [[case.s(i, j) for j in range(N)] for i in range(N)]
    d2 = [[2 - 2 * s[i][j] for j in range(N)] for i in range(N)]

    def is_in(neighbours):
        """Whether j is among i's nearest: 0 or 1, with the slope 10 with respect to -d^2."""
        found = []
        for i in range(N):
            farthest = sorted(d.detach() for d in d2[i])[neighbours - 1]
            hard = [float(d.detach() <= farthest + epsilon) for d in d2[i]]
            found.append([h - 10 * (d - d.detach()) for h, d in zip(hard, d2[i], strict=True)])
        return found

    near, nearer = is_in(k), is_in(k // 2)
    W = [[None] * N for _ in range(N)]
    for i in range(N):
        size = float(sum(near[i]).detach())
        for j in range(N):
            both = sum(near[i][m] * near[j][m] for m in range(N))
            neither = sum((1 - near[i][m]) * (1 - near[j][m]) for m in range(N))
            W[i][j] = (both / size + neither / max(N - size, 1)) / 2 * near[i][j]
    J = [[None] * N for _ in range(N)]
    for i in range(N):
        mutual = [nearer[i][m] * nearer[m][i] for m in range(N)]
        for j in range(N):
            J[i][j] = sum(mutual[m] * W[m][j] for m in range(N)) / sum(mutual)
    context = sum((float(y[i] == y[j]) - (J[i][j] + J[j][i]) / 2) ** 2 for i in range(N) for j in range(N) if i != j)
    pairs = [(i, j) for i in range(N) for j in range(N) if i != j]
    pull = nonzero_mean([pos_margin - s[i][j] for i, j in pairs if y[i] == y[j]])
    push = nonzero_mean([s[i][j] - neg_margin for i, j in pairs if y[i] != y[j]])
    spread = (sum(sum(row) for row in s) / N**2 - mean_similarity) ** 2
    rest = 1 - context_weight - similarity_weight
    return context_weight * context / N**2 + rest * (pull + push) + similarity_weight * spread


@pytest.mark.parametrize("situation", ["unit", "raw"])
@pytest.mark.parametrize(
    "arguments",
    [(4, 0.05, 0.75, 0.6, 0.4, 0.1, 0.25), (2, 0.3, 0.9, 0.1, 0.8, 0.2, 0.0), (9, 0.0, 0.5, 0.5, 1.0, 0.0, 0.0)],
)
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(ContextualLoss(*arguments), lambda case: loop(case, *arguments), batch(situation, LABELS))


def test_classes_that_are_cliques_of_their_own_lose_nothing_in_context():
    """Each sample's four neighbours are its class: all Jaccard similarities are 0 or 1."""
    points = torch.eye(5, dtype=torch.float64).repeat_interleave(4, dim=0)
    labels = torch.arange(5).repeat_interleave(4)
    matrix = points @ points.T
    alike = contextual.contextual_similarities(matrix, *ContextualLoss().neighbours(matrix))
    torch.testing.assert_close(alike, (labels[:, None] == labels[None]).double())
    loss = ContextualLoss(context_weight=1.0, similarity_weight=0.0)
    assert loss(points, labels) == pytest.approx(0)


def test_miners_references_and_bad_arguments_are_refused():
    x, y = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
    for rest in ((tuple(torch.tensor([[0], [1], [3]])),), (None, x, y)):
        with pytest.raises(ValueError, match="takes no miner and no ref_emb"):
            ContextualLoss()(x, y, *rest)
    with pytest.raises(ValueError, match="together at most 1"):
        ContextualLoss(context_weight=0.7, similarity_weight=0.4)
