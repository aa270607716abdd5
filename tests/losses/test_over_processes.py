"""A training step of two processes has the loss and all gradients of one process, whatever the loss."""

from pathlib import Path

import pytest
import torch
from forked_ranks import run_script
from loss_cases import shipped

from levelfield import miners, regularizers

SCRIPT = Path(__file__).parent / "losses_over_processes.py"
Results = dict[str, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[Results, Results]:
    folder = tmp_path_factory.mktemp("processes")
    run_script(SCRIPT, str(folder))
    return torch.load(folder / "1.pt"), torch.load(folder / "2.pt")


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], case: str) -> None:
    assert found.keys() == expected.keys()
    for weight, right in expected.items():
        difference, size = float((found[weight] - right).abs().max()), max(float(right.abs().max()), 1e-6)
        assert difference <= 1e-9 * size, f"{case}: {weight} differs by {difference} of {size}"


@pytest.mark.processes
def test_loss_and_gradients_are_those_of_one_process(results: tuple[Results, Results]) -> None:
    alone, together = results
    listed = {*miners.__all__, *regularizers.__all__} - {"Miner", "Regularizer"}
    names = {loss.__name__ for loss in shipped()} | listed | {"WeightedSum", "CrossBatchMemory"}
    assert {name.partition("(")[0] for name in alone} == names
    for name, expected in alone.items():
        assert any(gradient.any() for weight, gradient in expected.items() if weight.startswith("trunk")), name
        assert_close(together[name], expected, name)


@pytest.mark.processes
def test_gradients_in_chunks_are_those_of_the_whole_batch(results: tuple[Results, Results]) -> None:
    alone, together = results
    chunked = [name for name in alone if name.endswith(", in chunks")]
    assert chunked
    for name in chunked:
        for found in (alone, together):
            assert_close(found[name], alone[name.removesuffix(", in chunks")], name)
