"""Eighteen steps of Zhai and Wu's training, an epoch each, derived from sections 3 and 4.1 of their paper.

One epoch updates the new parameters alone; then a training of all parameters for 30 epochs begins, at a tenth of the
rate from its epoch 15 on. SGD with momentum 0.9 and weight decay 1e-4, 0.001 for all weights on CUB200. Batches of 75,
25 of each class, drawn with replacement. Layer norm without scale and shift, a linear layer without bias, class weights
and embeddings L2-normalised, temperature 0.05. Nothing is said of freezing batch norm: it measures each batch.
"""

from pathlib import Path

import torch
from ten_steps import assert_moved_alike, classes_and_repeats, features, leaves, trained

STEPS = 18


def test_the_warm_up_the_training_and_its_schedule_by_hand(tmp_path: Path) -> None:
    words = ["--data.dataset.num_classes", "48", "--data.steps_per_epoch", "1", "--trainer.max_epochs", str(STEPS)]
    words += ["--trainer.limit_val_batches", "0", "--trainer.enable_checkpointing", "false"]
    training = trained(tmp_path, "zhai_wu", *words)
    weights, speeds = training.before, {}
    assert weights["loss.class_weights"].abs().max() <= 6**-0.5  # uniform in +-1/sqrt(D), as their code begins
    repeats = 0
    for step, (images, labels, positions) in enumerate(training.batches):
        counts, again = classes_and_repeats(labels.tolist(), positions.tolist())
        assert list(counts.values()) == [25] * 3
        repeats += again

        learning = leaves(weights)
        pooled, mean, var = features(images, {**weights, **learning}, frozen=False)
        centred = pooled - pooled.mean(1, keepdim=True)
        normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        embeddings = normed @ learning["embedder.linear.weight"].T
        embeddings = embeddings / embeddings.norm(dim=1, keepdim=True)
        proxies = learning["loss.class_weights"]
        exponents = embeddings @ (proxies / proxies.norm(dim=1, keepdim=True)).T / 0.05
        own = exponents[torch.arange(75), labels]
        (-(own.exp() / exponents.exp().sum(1)).log()).mean().backward()  # equation 1

        epoch = step - 1  # of the training of all parameters
        if epoch == 0:
            speeds = {}  # which begins anew
        rate = 0.001 if epoch < 15 else 0.0001
        moved = {}
        for name, weight in learning.items():
            if epoch < 0 and name.startswith("trunk."):
                continue
            gradient = weight.grad + 1e-4 * weight.detach()
            speeds[name] = 0.9 * speeds[name] + gradient if name in speeds else gradient
            moved[name] = weight.detach() - rate * speeds[name]
        measured = {
            "trunk.module.bn.running_mean": 0.9 * weights["trunk.module.bn.running_mean"] + 0.1 * mean,
            "trunk.module.bn.running_var": 0.9 * weights["trunk.module.bn.running_var"] + 0.1 * var,
        }
        weights = {**weights, **moved, **measured}
        assert_moved_alike(training, step, {name: weights[name] for name in {**learning, **measured}})
    assert len(training.batches) == STEPS
    assert repeats > 0
    assert not [name for name in training.before if "embedder" in name and name != "embedder.linear.weight"]
