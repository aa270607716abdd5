"""Batches of C classes with M samples each."""

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.data.samplers.base import TrainingBatchSampler
from levelfield.data.samplers.classes import TrainedClasses


class MPerClassBatchSampler(TrainingBatchSampler):
    """C = batch_size / samples_per_class classes drawn without replacement, then M = samples_per_class of each.

    Without replacement, a class with fewer than M samples uses each of them once before it repeats any.
    Classes with one sample are left out (`num_left_out`). With fewer than C classes it takes more samples of each, so
    the batch size stays the same (`differences` reports it). The arguments are those of `TrainingBatchSampler`.

    When: pairs, triplets and other losses that compare samples of a batch.

    Raises:
        UserError: M or the number of processes does not divide the batch size, or fewer than 2 classes in a
            batch or in the data.

    Example:
        >>> [len(set(batch)) for batch in MPerClassBatchSampler([0, 0, 1, 1, 2, 2], 4, 2, num_batches=2)]
        [4, 4]
    """

    def prepare(self) -> None:
        if self.batch_size % self.samples_per_class:
            nearest = self.samples_per_class * max(2, self.batch_size // self.samples_per_class)
            raise UserError(
                f"batch_size {self.batch_size} is not a multiple of samples_per_class {self.samples_per_class}: "
                f"give {nearest}, for example (or --data.sampler ClassBalancedBatchSampler)"
            )
        if self.batch_size == self.samples_per_class:
            raise UserError(
                f"a batch of {self.batch_size} with {self.batch_size} samples per class has no negatives: "
                f"give --data.batch_size {2 * self.batch_size}, or --data.samples_per_class {self.batch_size // 2}"
            )
        self.classes = TrainedClasses(self.labels)
        self.num_left_out = self.classes.num_left_out
        self.classes_per_batch = min(self.batch_size // self.samples_per_class, len(self.classes))

    @property
    def differences(self) -> str:
        found = []
        asked = self.batch_size // self.samples_per_class
        if self.classes_per_batch < asked:
            found.append(
                f"batches hold {self.classes_per_batch} classes instead of {asked}, with "
                f"{self.batch_size / self.classes_per_batch:.3g} samples of each instead of {self.samples_per_class}: "
                "there are no more classes"
            )
        return "; ".join([*found, *self.classes.left_out])

    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        rng = np.random.default_rng(seed_of("batch", self.seed, self.epoch, batch))
        samples_each, one_more = divmod(self.batch_size, self.classes_per_batch)
        counts = [samples_each + (position < one_more) for position in range(self.classes_per_batch)]
        return self.classes.draw(counts, self.replacement, rng)
