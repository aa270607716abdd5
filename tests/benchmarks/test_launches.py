"""The operators that a loss starts on a GPU, as `benchmarks/losses.py --launches` counts them."""

import pytest
from benchmark_module import benchmark_module

CASES = {case.name: case for case in benchmark_module("losses").CASES}
FEW = (
    "ContrastiveLoss", "TripletMarginLoss", "NTXentLoss", "MultiSimilarityLoss", "SupConLoss", "NormalizedSoftmaxLoss",
    "ArcFaceLoss", "ProxyAnchorLoss",
)  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_a_common_loss_starts_at_most_60_percent_of_the_peers_operators(name):
    ours, peer = benchmark_module("losses").launches(CASES[name])
    assert ours <= 0.6 * peer
