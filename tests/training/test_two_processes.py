"""Two gloo processes give the loss, gradients, batches and validation scores of one."""

import json
from pathlib import Path

import pytest
import torch
from forked import python, torchrun

SCRIPT = Path(__file__).parent / "two_process_fits.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fits")


@pytest.fixture(scope="module")
def results(folder: Path):
    for done in [python(SCRIPT, folder, 1), *torchrun(SCRIPT, folder, 2)]:
        assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{world_size}.pt") for world_size in (1, 2)]


@pytest.mark.processes
def test_a_step_has_the_gradients_of_one_process(results):
    alone, together = results
    assert alone.keys() == together.keys()
    assert len(alone) > 6
    for name in alone:
        assert together[name]["batches"][0] == alone[name]["batches"][0], name
        assert together[name]["losses"] == pytest.approx(alone[name]["losses"], abs=1e-6), name
        for weight, value in alone[name]["weights"].items():
            difference = (together[name]["weights"][weight] - value).abs().max()
            assert difference <= 1e-6, f"{name}: {weight} differs by {difference}"


@pytest.mark.processes
def test_chunks_have_the_gradients_of_the_batch_on_one_process_and_on_two(results):
    chunked = [name for name in results[0] if name.endswith(", in chunks")]
    assert len(chunked) == 5
    for result in results:
        for name in chunked:
            whole = result[name.removesuffix(", in chunks")]["weights"]
            for weight, value in result[name]["weights"].items():
                assert (value - whole[weight]).abs().max() <= 1e-10, (name, weight)


@pytest.mark.processes
def test_a_step_changes_trunk_embedder_and_class_weights(results):
    weights = [result["ArcFaceLoss"]["weights"] for result in results]
    names = weights[0].keys()
    assert {name.partition(".")[0] for name in names} >= {"trunk", "embedder", "loss"}
    contrastive = results[0]["ContrastiveLoss"]["weights"]
    assert not torch.equal(contrastive["embedder.linear.weight"], weights[0]["embedder.linear.weight"])
    own = [results[0][f"a module of its own{loss}"]["weights"]["projection.weight"] for loss in ("", ", another loss")]
    assert not torch.equal(*own)


@pytest.mark.processes
def test_epochs_draw_different_batches(results):
    for result in results:
        first, *_, last = result["twenty steps"]["batches"]
        assert first != last
        assert len(first) == len(last) == 16


@pytest.mark.processes
def test_validation_scores_are_equal(results):
    alone, together = (result["twenty steps"]["scores"] for result in results)
    assert len(alone) == len(together) > 0
    assert alone[0].keys() == {"val/map_at_r", "val/r_precision", "val/precision_at_1"}
    assert all(mine == pytest.approx(scores, abs=1e-6) for mine, scores in zip(together, alone, strict=True))


@pytest.mark.processes
def test_the_processes_part_before_they_end(results, folder: Path):
    """Else gloo's threads may free a tensor of an interpreter that has ended, and abort the process."""
    assert all(json.loads((folder / f"left_2_{rank}.json").read_text()) for rank in range(2))
