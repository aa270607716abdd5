"""Class weights over two and three processes give the value and all gradients of one; rows are drawn evenly."""

from pathlib import Path

import pytest
import torch
from forked_ranks import run_script
from shard_losses import ARGUMENTS, BATCHES, D, batch_of, cases

from levelfield import losses
from levelfield.losses import ArcFaceLoss, SubCenterArcFaceLoss
from levelfield.losses.class_shard import ClassShard, draw_classes

SCRIPT = Path(__file__).parent / "shard_losses.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    run_script(SCRIPT, str(folder))
    return {size: [torch.load(folder / f"{size}_{rank}.pt") for rank in range(size)] for size in (1, 2, 3)}


def expected(name, arguments, batch, fraction, mined):
    """Of the plain loss with whole class weights; with a fraction, of one that only ever knew the drawn classes."""
    num_classes = BATCHES[batch][0]
    torch.manual_seed(3)
    plain = getattr(losses, name)(num_classes, D, **arguments)
    began = plain.class_weights.detach().clone()
    embeddings, labels, chosen = batch_of(batch, mined)
    torch.manual_seed(7)
    classes = torch.arange(num_classes)
    if fraction < 1:
        classes = draw_classes(labels, num_classes, max(1, round(fraction * num_classes)))
    small = getattr(losses, name)(len(classes), D, **arguments).double()
    K = small.centers_per_class
    rows = (classes[:, None] * K + torch.arange(K)).flatten()
    small.class_weights.data = began[rows].double()
    value = small(embeddings, torch.searchsorted(classes, labels), chosen)
    value.backward()
    gradient = torch.zeros_like(began, dtype=torch.float64)
    gradient[rows] = small.class_weights.grad
    return {"value": value.detach(), "embeddings": embeddings.grad, "class_weights": gradient, "began": began}


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_value_and_gradients_are_those_of_the_plain_loss(results, world_size):
    assert len({name for name, _ in ARGUMENTS}) == 9
    for name, case in cases().items():
        wanted = expected(*case)
        found = results[world_size][0][name]
        assert torch.equal(found["began"], wanted["began"]), name
        assert torch.equal(found["loaded"], wanted["began"].double()), name
        for key in ("value", "embeddings", "class_weights"):
            size = max(float(wanted[key].abs().max()), 1e-6)
            difference = float((found[key] - wanted[key]).abs().max())
            assert difference <= 1e-9 * size, f"{name}: {key} differs by {difference} of {size}"


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_process_has_the_value_and_the_gradient_of_the_embeddings(results, world_size):
    first, *others = results[world_size]
    for name in first:
        for other in others:
            assert torch.equal(first[name]["value"], other[name]["value"]), name
            assert torch.equal(first[name]["embeddings"], other[name]["embeddings"]), name
            assert first[name]["sparse"] is other[name]["sparse"] is (cases()[name][3] < 1)


@pytest.mark.parametrize(("num_classes", "size"), [(40, 12), (40, 30)])
def test_classes_are_drawn_evenly_and_as_many_as_asked(num_classes, size):
    torch.manual_seed(0)
    labels, turns = torch.tensor([4, 5, 4]), 400
    counts = torch.zeros(num_classes)
    for _ in range(turns):
        classes = draw_classes(labels, num_classes, size)
        assert len(classes) == size
        assert torch.equal(classes, classes.unique())
        counts[classes] += 1
    assert counts[4] == counts[5] == turns
    others = torch.cat([counts[:4], counts[6:]])
    share = (size - 2) / (num_classes - 2)
    chi_square = (
        ((others - turns * share) ** 2 / (turns * share * (1 - share))).sum() * (num_classes - 3) / (num_classes - 2)
    )
    assert chi_square < 59.9  # 99% of 37 degrees of freedom


def test_a_batch_of_more_classes_than_asked_keeps_them_all():
    assert draw_classes(torch.tensor([9, 0, 3, 3]), 20, 2).tolist() == [0, 3, 9]


def test_one_process_has_a_sparse_gradient_of_the_drawn_rows_alone():
    torch.manual_seed(0)
    loss = SubCenterArcFaceLoss(50, 4, sub_centers=2, class_fraction=0.2, shard_classes=True)
    loss(torch.randn(3, 4), torch.tensor([7, 7, 30])).backward()
    rows = loss.class_weights.grad.coalesce().indices()[0]
    assert len(rows) == 20
    assert {14, 15, 60, 61} <= set(rows.tolist())
    assert torch.equal(rows[::2] + 1, rows[1::2])  # both centres of a class


def test_all_classes_on_one_process_are_the_plain_loss_to_the_bit():
    torch.manual_seed(0)
    plain, whole = ArcFaceLoss(20, 6), ArcFaceLoss(20, 6, shard_classes=True)
    whole.load_state_dict(plain.state_dict())
    x, y = torch.randn(8, 6), torch.randint(20, (8,))
    assert plain(x, y) == whole(x, y)


def test_a_loss_that_was_made_for_other_processes_is_refused_in_a_line():
    loss = ArcFaceLoss(20, 6, shard_classes=True)
    loss.shard.world_size = 2
    with pytest.raises(ValueError, match=r"made by 2 process.* used by 1: give the loss as a class"):
        loss(torch.randn(2, 6), torch.tensor([0, 1]))


@pytest.mark.parametrize("rows", [1, 5, 15, 16, 17, 50, 67])
@pytest.mark.parametrize("columns", [1, 6, 16])
def test_a_block_at_a_time_draws_what_one_draw_does(monkeypatch, rows, columns):
    monkeypatch.setattr("levelfield.losses.class_shard.BLOCK", 16)
    for fill in (torch.nn.init.normal_, torch.nn.init.uniform_):
        torch.manual_seed(0)
        whole = fill(torch.empty(rows, columns))
        for rank in range(3):
            shard = ClassShard(rows, 1, divided=True)
            shard.rows = [0, rows // 3, 2 * rows // 3, rows]
            shard.world_size, shard.rank = 3, rank
            own = torch.empty(shard.rows[rank + 1] - shard.rows[rank], columns)
            torch.manual_seed(0)
            shard.draw(own, fill)
            assert torch.equal(own, shard.own(whole))
