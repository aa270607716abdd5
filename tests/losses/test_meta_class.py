"""Meta-class loss: a loop over its equation, balanced maps, and what it refuses."""

import pytest
import torch
from loss_cases import assert_equals_loop, class_batch, cross_entropy, sample_weights

from levelfield.losses import MetaClassLoss, ProxyNCALoss


@pytest.mark.parametrize("situation", ["unit", "raw", "triplets"])
def test_the_equation(situation):
    case = class_batch(situation, num_classes=6, dim=12)
    torch.manual_seed(1)
    loss = MetaClassLoss(num_classes=6, embedding_size=12, members=4, softmax_scale=7.0)

    def loop(case):
        terms = []
        for i, weight in enumerate(sample_weights(case)):
            for member in range(4):
                u = case.x[i, 3 * member : 3 * member + 3]
                u = u / u.norm()
                logits = [-7.0 * (u - torch.eye(3, dtype=u.dtype)[c]).square().sum() for c in range(3)]
                terms.append(weight * cross_entropy(logits, int(loss.meta_classes[member, case.y[i]])))
        return sum(terms) / len(case.y)

    assert_equals_loop(loss, loop, case)


def test_one_member_is_proxy_nca_on_meta_classes_with_unit_vectors_as_proxies():
    case = class_batch("raw", num_classes=6, dim=4)
    loss = MetaClassLoss(num_classes=6, embedding_size=4, members=1, softmax_scale=10.0)
    proxies = ProxyNCALoss(num_classes=4, embedding_size=4, softmax_scale=10.0).double()
    proxies.class_weights.data = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(loss(case.x, case.y), proxies(case.x, loss.meta_classes[0, case.y]))


@pytest.mark.parametrize("num_classes", [3, 12, 50, 100])
def test_each_member_has_a_balanced_map_of_its_own(num_classes):
    torch.manual_seed(0)
    maps = MetaClassLoss(num_classes=num_classes, embedding_size=144).meta_classes
    assert maps.shape == (12, num_classes)
    sizes = torch.stack([torch.bincount(row, minlength=12) for row in maps])
    assert sizes.min() == num_classes // 12
    assert sizes.max() == -(-num_classes // 12)
    assert num_classes == 3 or len({tuple(row.tolist()) for row in maps}) == 12  # 3 classes have 6 orders


def test_maps_follow_the_seed_and_travel_with_the_state():
    def made(seed: int) -> MetaClassLoss:
        torch.manual_seed(seed)
        return MetaClassLoss(num_classes=50, embedding_size=144)

    first, again, other = made(0), made(0), made(1)
    assert torch.equal(first.meta_classes, again.meta_classes)
    assert not torch.equal(first.meta_classes, other.meta_classes)
    other.load_state_dict(first.state_dict())
    assert torch.equal(first.meta_classes, other.meta_classes)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="embedding_size=128 must be a multiple of members=12"):
        MetaClassLoss(num_classes=3, embedding_size=128)
    with pytest.raises(ValueError, match=r"softmax_scale=0\.0 must be above 0"):
        MetaClassLoss(num_classes=3, embedding_size=144, softmax_scale=0.0)
    loss = MetaClassLoss(num_classes=3, embedding_size=6, members=2)
    embeddings, labels = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match="label 3 at position 1"):
        loss(embeddings, torch.tensor([0, 3, 2, 0]))
    with pytest.raises(ValueError, match="takes no ref_emb"):
        loss(embeddings, labels, ref_emb=embeddings, ref_labels=labels)
    with pytest.raises(ValueError, match="have 5 dimensions"):
        loss(embeddings[:, :5], labels)
