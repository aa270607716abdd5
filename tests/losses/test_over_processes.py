"""A training step of two processes has the loss and all gradients of one process, whatever the loss."""

from pathlib import Path

import pytest
import torch
from forked_ranks import run_script
from loss_cases import shipped

from levelfield import miners, regularizers


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], case: str) -> None:
    assert found.keys() == expected.keys()
    for weight, right in expected.items():
        difference, size = float((found[weight] - right).abs().max()), max(float(right.abs().max()), 1e-6)
        assert difference <= 1e-9 * size, f"{case}: {weight} differs by {difference} of {size}"


@pytest.mark.processes
def test_loss_and_gradients_are_those_of_one_process_in_chunks_too(tmp_path: Path) -> None:
    run_script(Path(__file__).parent / "losses_over_processes.py", str(tmp_path))
    alone, together = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    listed = {*miners.__all__, *regularizers.__all__} - {"Miner", "Regularizer"}
    names = {loss.__name__ for loss in shipped()} | listed | {"WeightedSum", "CrossBatchMemory"}
    assert {name.partition("(")[0] for name in alone} == names
    for name, expected in alone.items():
        assert any(gradient.any() for weight, gradient in expected.items() if weight.startswith("trunk")), name
        assert_close(together[name], expected, name)
    chunked = together.keys() - alone.keys()
    assert len(chunked) == len(shipped()) + 2
    for name in chunked:
        assert_close(together[name], alone[name.removesuffix(", in chunks")], name)
