"""Which blocks of a trunk are gathered by themselves; what shards do to numbers is in `test_two_processes.py`."""

import pytest
from torch import nn

from levelfield.training import fully_sharded


def test_the_large_members_of_lists_and_sequences_are_blocks_innermost_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fully_sharded, "BLOCK_WEIGHTS", 100)
    block, large = nn.Sequential(nn.Linear(10, 10)), nn.Linear(10, 10)  # 110 weights each
    stage = nn.Module()
    stage.blocks = nn.ModuleList([large, nn.Linear(3, 3)])
    network = nn.Sequential(nn.Linear(5, 5), stage, block)
    assert list(fully_sharded.large_blocks(network)) == [block[0], large, stage]
