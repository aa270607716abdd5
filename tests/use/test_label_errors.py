"""Doubts about labels against a vote counted sample by sample, and pairs against all cosines."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from levelfield.errors import UserError
from levelfield.use import label_errors
from levelfield.use.label_errors import label_doubts, near_duplicates


def test_each_sample_is_voted_on_by_its_nearest_others(device):
    embeddings, labels = torch.randn(30, 5, device=device), torch.arange(30, device=device) % 4
    doubts = label_doubts(embeddings, labels, neighbours=6)
    for sample in range(30):
        likeness = {
            other: max(float(cosine_similarity(embeddings[sample], embeddings[other], dim=0)), 0)
            for other in range(30)
            if other != sample
        }
        voters = sorted(likeness, key=likeness.__getitem__, reverse=True)[:6]
        votes = {int(label): 0.0 for label in labels}
        for voter in voters:
            votes[int(labels[voter])] += likeness[voter]
        own = votes[int(labels[sample])] / sum(votes.values())
        assert float(doubts.agreement[sample]) == pytest.approx(own, abs=1e-6)
        assert int(doubts.vote[sample]) == max(votes, key=votes.__getitem__)
    suspects = doubts.suspects().tolist()
    assert set(suspects) == set((doubts.agreement < 0.5).nonzero().squeeze(1).tolist())
    assert doubts.agreement[suspects].tolist() == sorted(doubts.agreement[suspects].tolist())


def test_a_sample_with_anothers_label_is_the_first_suspect():
    centers = torch.eye(4).repeat_interleave(8, dim=0)
    labels = torch.arange(4).repeat_interleave(8)
    labels[11] = 3
    doubts = label_doubts(centers + 0.05 * torch.randn(32, 4), labels, neighbours=5)
    assert doubts.suspects().tolist() == [11]
    assert int(doubts.vote[11]) == 1


@pytest.mark.parametrize("memory_budget", [2**20, 1])
def test_near_duplicates_are_the_pairs_above_the_cosine(memory_budget, monkeypatch):
    monkeypatch.setattr(label_errors, "DEFAULT_MEMORY_BUDGET", memory_budget)
    points = torch.randn(90, 3)
    cosines = cosine_similarity(points[:, None].double(), points[None].double(), dim=2)
    expected = sorted(
        ((i, j) for i in range(90) for j in range(i + 1, 90) if cosines[i, j] >= 0.9), key=lambda pair: -cosines[pair]
    )
    assert near_duplicates(points, 0.9).tolist() == [list(pair) for pair in expected]
    assert len(expected) > 3
    assert len(near_duplicates(points, -1)) == 90 * 89 / 2, "each pair once, whatever is asked"


def test_more_neighbours_than_samples_are_refused():
    with pytest.raises(UserError, match="neighbours=3 with 3 samples: give 1 to 2"):
        label_doubts(torch.randn(3, 2), torch.tensor([0, 0, 1]), neighbours=3)
