"""Batches of S samples of a class where S need not divide the batch, as in Zhai and Wu's Table 4.

At the top of the repository:
levelfield fit ... --data.sampler papers.zhai_wu.samplers.ClassBalancedBatchSampler --data.samples_per_class 12
"""

from levelfield.core.errors import UserError
from levelfield.data.samplers import MPerClassBatchSampler


class ClassBalancedBatchSampler(MPerClassBatchSampler):
    """C = batch_size // samples_per_class classes drawn without replacement, then S = samples_per_class of each.

    A batch has C S samples, at most `batch_size` (`differences` reports it): 72 for 75 and S = 12. With fewer than C
    classes it uses all of them, S samples each. It draws the same batches as `MPerClassBatchSampler` if S divides the
    batch and there are C classes.

    Paper: Zhai and Wu 2019, "Classification is a Strong Baseline for Deep Metric Learning", arXiv:1811.12649,
    section 3.3.

    Raises:
        UserError: S is larger than the batch, the processes cannot divide the batch, or fewer than 2 usable classes.

    Example:
        >>> [len(batch) for batch in ClassBalancedBatchSampler([0, 0, 1, 1, 2, 2, 3, 3], 7, 2, num_batches=2)]
        [6, 6]
    """

    def check(self) -> None:
        if self.samples_per_class > self.batch_size:
            raise UserError(
                f"samples_per_class {self.samples_per_class} is more than batch_size {self.batch_size}: give at most "
                "as many"
            )

    def samples_of_classes(self) -> list[int]:
        return [self.samples_per_class] * self.classes_per_batch
