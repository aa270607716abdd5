"""What the samplers drew before they held arrays alone: studies stay what they are."""

import json
from hashlib import sha256

import numpy as np
import pytest

from levelfield.data.samplers import ClassBalancedBatchSampler, MPerClassBatchSampler, ShuffledBatchSampler

# SHA-256 of the indices and numbers of 36 batches.
RECORDED = {
    (MPerClassBatchSampler, 32, 4, False): "07fb69e5a9415779",
    (MPerClassBatchSampler, 32, 4, True): "21671a411a1a6423",
    (ClassBalancedBatchSampler, 30, 7, False): "0df16db66ef06458",
    (ClassBalancedBatchSampler, 30, 7, True): "77d81ebd6c92384e",
    (ShuffledBatchSampler, 32, 4, False): "4aafbed262480214",
}


@pytest.mark.parametrize("given", RECORDED, ids=lambda given: f"{given[0].__name__}-{given[3]}")
def test_draws_are_those_of_the_code_before(given: tuple) -> None:
    kind, batch_size, samples_per_class, replacement = given
    labels = np.random.default_rng(5).choice(40, 300, p=np.arange(1, 41) / 820)  # three classes with one sample
    sampler = kind(labels, batch_size, samples_per_class, num_batches=12, seed=3, replacement=replacement)
    drawn = ""
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        batches = [[(draw.index, draw.number) for draw in batch] for batch in sampler]
        drawn += json.dumps(batches)
    assert sha256(drawn.encode()).hexdigest()[:16] == RECORDED[given]
