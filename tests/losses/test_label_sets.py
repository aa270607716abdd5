"""Label sets: samples match that share a label; a loop over pairs, one-hot rows, empty rows, what is refused."""

import equations
import pytest
import torch
from loss_cases import assert_equals_loop, batch

from levelfield import losses, miners

# The third and the last are empty, the first two share two labels, and one label is of a single sample.
SETS = [[k in labels for k in range(5)] for labels in ([0, 1], [0, 1], [], [1, 2], [2], [4], [0, 2], [1], [2, 3], [])]
LOSSES = [
    (losses.ContrastiveLoss, equations.contrastive, (0.9, 1.2)),
    (losses.MultiSimilarityLoss, equations.multi_similarity, (2.0, 50.0, 0.5)),
    (losses.NTXentLoss, equations.ntxent, (0.07,)),
    (losses.SupConLoss, equations.supcon, (0.1,)),
]
ONE_HOT = torch.eye(12, dtype=torch.bool)


@pytest.mark.parametrize("situation", ["unit", "raw", "pairs", "triplets", "repeats", "reference"])
@pytest.mark.parametrize(("loss", "loop", "given"), LOSSES)
def test_label_sets_equal_a_loop_over_pairs(loss, loop, given, situation):
    assert_equals_loop(loss(*given), lambda case: loop(case, *given), batch(situation, SETS))


@pytest.mark.parametrize(
    ("labels", "ref_labels", "key"),
    [
        (torch.ones(4, 3), None, "float32 of shape"),
        (torch.ones(4, 3, dtype=torch.long), None, "int64 of shape"),
        (torch.ones(4, dtype=torch.bool), None, "bool of shape"),
        (torch.ones(3, 3, dtype=torch.bool), None, "3 labels for 4 embeddings"),
        (ONE_HOT[:4], ONE_HOT[:4, :5], "ref_labels are sets of 5 labels but labels are sets of 12 labels"),
        (torch.arange(4), ONE_HOT[:4], "ref_labels are sets of 12 labels but labels are integers"),
    ],
)
def test_shapes_that_do_not_fit_raise_one_line(labels, ref_labels, key):
    x = torch.randn(4, 5)
    references = () if ref_labels is None else (x, ref_labels)
    for call, choice in ((losses.SupConLoss(), [None]), (miners.MultiSimilarityMiner(), [])):
        with pytest.raises(ValueError, match=key) as caught:
            call(x, labels, *choice, *references)
        assert "\n" not in str(caught.value)
