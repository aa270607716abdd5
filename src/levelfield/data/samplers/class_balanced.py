"""Class-balanced batches for any number of samples per class."""

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.data.samplers.base import TrainingBatchSampler
from levelfield.data.samplers.classes import TrainedClasses


class ClassBalancedBatchSampler(TrainingBatchSampler):
    """C = batch_size // samples_per_class classes drawn without replacement, then S = samples_per_class of each.

    A batch has C S samples, at most `batch_size` (`differences` reports it): 72 for 75 and S = 12. With fewer than C
    classes it uses all of them, S samples each. It treats small classes and classes with one sample like
    `MPerClassBatchSampler`, and draws the same batches if S divides the batch and there are C classes.

    When: you study the number of samples of a class, as in Zhai and Wu's Table 4 (with `replacement`).

    Paper: Zhai and Wu 2019, "Classification is a Strong Baseline for Deep Metric Learning", arXiv:1811.12649,
    section 3.3.

    Raises:
        UserError: S is larger than the batch, the processes cannot divide the batch, or fewer than 2 usable classes.

    Example:
        >>> [len(batch) for batch in ClassBalancedBatchSampler([0, 0, 1, 1, 2, 2, 3, 3], 7, 2, num_batches=2)]
        [6, 6]
    """

    def prepare(self) -> None:
        if self.samples_per_class > self.batch_size:
            raise UserError(
                f"samples_per_class {self.samples_per_class} is more than batch_size {self.batch_size}: give at most "
                "as many"
            )
        self.classes = TrainedClasses(self.labels)
        self.classes_per_batch = min(self.batch_size // self.samples_per_class, len(self.classes))
        self.size = self.classes_per_batch * self.samples_per_class

    @property
    def differences(self) -> str:
        found = []
        if self.size < self.batch_size:
            plural = "" if self.classes_per_batch == 1 else "es"
            found.append(
                f"batches hold {self.size} samples instead of {self.batch_size}, {self.samples_per_class} of each of "
                f"{self.classes_per_batch} class{plural}"
            )
        if self.classes_per_batch == 1:
            found.append("a batch has one class: a loss that compares samples has no negatives")
        return "; ".join([*found, *self.classes.left_out])

    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        rng = np.random.default_rng(seed_of("batch", self.seed, self.epoch, batch))
        return self.classes.draw([self.samples_per_class] * self.classes_per_batch, self.replacement, rng)
