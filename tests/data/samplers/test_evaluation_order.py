"""Evaluation goes through all samples in order, in equal shares."""

from itertools import chain

import pytest

from levelfield.data.samplers import EvalSampler


@pytest.mark.parametrize(("num_samples", "world_size"), [(10, 1), (10, 4), (8, 4), (1, 3), (3, 4)])
def test_evaluation_covers_all_in_equal_shares(num_samples: int, world_size: int) -> None:
    shares = [list(EvalSampler(num_samples, rank, world_size)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert [len(EvalSampler(num_samples, rank, world_size)) for rank in range(world_size)] == [len(s) for s in shares]
    gathered = list(chain(*shares))
    assert set(gathered) == set(range(num_samples))
    assert len(gathered) - num_samples < world_size
