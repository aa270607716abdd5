"""Two and three processes, each with its rows of the loss, have the value and all gradients of one; so in chunks."""

from pathlib import Path

import pytest
import torch
from forked_ranks import run_script
from loss_cases import shipped

from levelfield import regularizers

SCRIPT = Path(__file__).parent / "rank_losses.py"
Gradients = dict[str, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[int, Gradients]:
    folder = tmp_path_factory.mktemp("ranks")
    run_script(SCRIPT, str(folder))
    return {world_size: torch.load(folder / f"{world_size}.pt") for world_size in (1, 2, 3)}


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_value_and_gradients_are_those_of_one_process(results: dict[int, Gradients], world_size: int) -> None:
    shipped_names = {loss.__name__ for loss in shipped()} | {*regularizers.__all__, "WeightedSum"} - {"Regularizer"}
    assert {name.partition("(")[0] for name in results[1] if "(" in name} == shipped_names
    assert {name.partition(" in chunks")[0] for name in results[1] if "(" not in name} == shipped_names
    for name, alone in results[1].items():
        together = results[world_size][name]
        assert together.keys() == alone.keys()
        for weight, expected in alone.items():
            difference = float((together[weight] - expected).abs().max())
            size = max(float(expected.abs().max()), 1e-6)
            assert difference <= 1e-9 * size, f"{name}: {weight} differs by {difference} of {size}"
