"""Class weights over processes in a fit: weights, optimizer, clipping and checkpoints are those of one process."""

from functools import partial
from pathlib import Path

import pytest
import torch
from forked_ranks import run_script
from lightning.pytorch import Trainer
from shard_fits import CASES, CLASSES
from torch import nn

from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss
from levelfield.training.learner import MetricLearner
from levelfield.training.sharded_classes import clip_gradients

SCRIPT = Path(__file__).parent / "shard_fits.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fits")
    run_script(SCRIPT, str(folder))
    return folder


def load(folder, case, name):
    return torch.load(folder / f"{case}_{name}.ckpt", weights_only=True)


def assert_close(found, expected, rel=1e-9):
    """Weights, and all that the optimizer holds of them."""
    assert found["state_dict"].keys() == expected["state_dict"].keys()
    for name, weight in expected["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], weight, rtol=rel, atol=rel, msg=name)
    states, wanted = (checkpoint["optimizer_states"][0]["state"] for checkpoint in (found, expected))
    assert states.keys() == wanted.keys()
    for number in wanted:
        assert states[number].keys() == wanted[number].keys()
        for key, value in wanted[number].items():
            torch.testing.assert_close(states[number][key], value, rtol=rel, atol=rel, msg=f"{number} {key}")


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_classes_train_as_a_plain_loss_on_one_process(folder, world_size):
    plain = load(folder, "whole", "plain")
    assert plain["state_dict"]["loss.class_weights"].shape == (CLASSES, 6)
    assert_close(load(folder, "whole", world_size), plain)


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("case", ["drawn", "value"])
def test_drawn_classes_train_as_on_one_process(folder, case, world_size):
    assert_close(load(folder, case, world_size), load(folder, case, 1))


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_fit_goes_on_with_another_number_of_processes(folder, case, world_size):
    resumed = load(folder, case, f"from_half_{world_size}")
    assert_close(resumed, load(folder, case, 1))
    assert resumed["global_step"] == 4
    if world_size == 2:  # to the bit where the number is the same
        assert_close(resumed, load(folder, case, 2), rel=0)


@pytest.mark.processes
def test_the_fits_do_something(folder):
    for case in CASES:
        half, end = (load(folder, case, name)["state_dict"] for name in ("half", "1"))
        assert all((half[name] - end[name]).abs().max() > 1e-6 for name in half)


@pytest.mark.processes
def test_a_checkpoint_of_two_processes_loads_on_one(folder):
    path = folder / "whole_half.ckpt"
    learner = MetricLearner.load_from_checkpoint(path, trunk=nn.Linear(5, 8))
    stored = load(folder, "whole", "half")["state_dict"]["loss.class_weights"]
    assert torch.equal(learner.loss.class_weights.detach(), stored.float())


def learner_of(loss, **arguments):
    return MetricLearner(nn.Linear(5, 8), loss=loss, embedding_size=6, num_features=8, **arguments)


def test_clipping_by_norm_is_torch_s_of_dense_gradients():
    torch.manual_seed(0)
    learner = learner_of(partial(ArcFaceLoss, class_fraction=0.3, shard_classes=True))
    learner.build_loss(20)
    for weight in learner.parameters():
        weight.grad = torch.randn_like(weight)
    sparse = learner.loss.class_weights
    rows = torch.tensor([[3, 7, 3]])  # a row twice, as after two batches whose gradients are accumulated
    sparse.grad = torch.sparse_coo_tensor(rows, torch.randn(3, 6), sparse.shape, check_invariants=True)
    dense = [nn.Parameter(weight.detach().clone()) for weight in learner.parameters()]
    for limit in (1.0, 1e6):
        for copy, weight in zip(dense, learner.parameters(), strict=True):
            copy.grad = weight.grad.to_dense().clone()
        torch.nn.utils.clip_grad_norm_(dense, limit)
        clip_gradients(learner, torch.optim.SGD(learner.parameters()), limit, None)
        for copy, weight in zip(dense, learner.parameters(), strict=True):
            torch.testing.assert_close(weight.grad.to_dense(), copy.grad)


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    [(torch.optim.AdamW, 0.0), (partial(torch.optim.SGD, momentum=0.9), 0.0), (torch.optim.SGD, 0.1)],
)
def test_an_optimizer_without_sparse_gradients_is_refused_in_a_line(optimizer, decay):
    loss = partial(ArcFaceLoss, class_fraction=0.3, shard_classes=True)
    learner = learner_of(loss, optimizer=optimizer, loss_weight_decay=decay)
    learner.build_loss(20)
    with pytest.raises(UserError, match=r"gives (AdamW|SGD) the gradient .* give --model.optimizer .*LazyAdamW"):
        learner.configure_optimizers()


def test_another_strategy_is_refused_in_a_line(tmp_path):
    learner = learner_of(partial(ArcFaceLoss, shard_classes=True))
    learner.build_loss(20)
    learner.loss.shard.world_size = 2
    learner.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    with pytest.raises(UserError, match=r"shard_classes true over processes goes with --trainer.strategy ddp alone"):
        learner.configure_optimizers()
