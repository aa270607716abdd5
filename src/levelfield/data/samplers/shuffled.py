"""Batches of a shuffled data set, independent of classes."""

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.data.samplers.base import TrainingBatchSampler


class ShuffledBatchSampler(TrainingBatchSampler):
    """All samples in a random order, pass after pass, cut into batches.

    Each pass has every sample once. Passes are independent of epochs: the stream continues in the next epoch. A batch
    across the end of a pass may have a sample twice. Classes with one sample are trained too. `samples_per_class` has
    no effect.

    When: losses with class weights, compared with training without balanced batches (Zhai and Wu's Table 4, S none).

    Raises:
        UserError: the processes cannot divide the batch, or `replacement`.

    Example:
        >>> sampler = ShuffledBatchSampler([0, 0, 0, 0, 1, 1], batch_size=2, samples_per_class=1, num_batches=3)
        >>> sorted(draw.index for batch in sampler for draw in batch)
        [0, 1, 2, 3, 4, 5]
    """

    def prepare(self) -> None:
        if self.replacement:
            raise UserError(
                "--data.replacement true: ShuffledBatchSampler takes all samples in turn; leave the option out"
            )
        self._orders: dict[int, Int[np.ndarray, " samples"]] = {}

    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        first = (self.epoch * self.num_batches + batch) * self.batch_size
        passes, places = np.divmod(np.arange(first, first + self.batch_size), len(self.labels))
        # Reuse the orders of the previous batch.
        self._orders = {
            int(n): self._orders[n] if n in self._orders else self._order(int(n)) for n in np.unique(passes)
        }
        return np.array([self._orders[int(number)][place] for number, place in zip(passes, places, strict=True)])

    def _order(self, number: int) -> Int[np.ndarray, " samples"]:
        """The order of a pass through the data, from 0."""
        return np.random.default_rng(seed_of("pass", self.seed, number)).permutation(len(self.labels))
