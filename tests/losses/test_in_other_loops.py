"""Ours in the trainer of pytorch-metric-learning, and its losses' call in a plain loop."""

import pytest
import torch
from pytorch_metric_learning import losses as peer_losses
from pytorch_metric_learning import miners as peer_miners
from pytorch_metric_learning import trainers
from torch import nn

from levelfield.losses import ArcFaceLoss, MultiSimilarityLoss, TripletMarginLoss
from levelfield.miners import MultiSimilarityMiner, TripletMarginMiner


def clusters():
    """Four noisy directions in 8 dimensions, of which a linear map can keep the ones that matter."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 4
    return torch.eye(8)[labels] + 0.7 * torch.randn(64, 8, generator=generator), labels


@pytest.mark.filterwarnings("ignore")  # the peer's own
@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        (MultiSimilarityLoss(), MultiSimilarityMiner()),
        (TripletMarginLoss(), TripletMarginMiner(type_of_triplets="semihard")),
        (ArcFaceLoss(4, 3), None),
    ],
    ids=["pairs", "triplets", "classes"],
)
def test_our_loss_and_miner_train_in_the_peers_trainer(loss, miner):
    torch.manual_seed(0)
    samples, labels = clusters()
    dataset = torch.utils.data.TensorDataset(samples, labels)
    trunk = nn.Linear(8, 3)
    before = float(loss(trunk(samples), labels).detach())
    trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.Adam([*trunk.parameters(), *loss.parameters()], lr=0.05)},
        batch_size=32,
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miner} if miner is not None else {},
        dataset=dataset,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        dtype=torch.float32,
    ).train(num_epochs=5)
    assert float(loss(trunk(samples), labels).detach()) < before


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        (MultiSimilarityLoss(), peer_miners.MultiSimilarityMiner()),
        (peer_losses.MultiSimilarityLoss(), MultiSimilarityMiner()),
        (TripletMarginLoss(), peer_miners.BatchHardMiner()),
    ],
)
def test_losses_and_miners_of_either_library_mix_in_a_plain_loop(loss, miner):
    torch.manual_seed(0)
    samples, labels = clusters()
    trunk = nn.Linear(8, 3)
    optimizer = torch.optim.Adam(trunk.parameters(), lr=0.05)
    values = []
    for _ in range(20):
        embeddings = trunk(samples)
        value = loss(embeddings, labels, miner(embeddings, labels))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < values[0]
