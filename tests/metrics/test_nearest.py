"""The nearest, by each distance, as a loop finds them: in order, ties by index, never the query itself."""

import pytest
import torch
from torch.nn.functional import normalize

from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest


def test_nearest_come_in_order_and_ties_by_index():
    rows = normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), dim=1)
    cosines, items = nearest(rows, rows, 3, torch.arange(len(rows)), memory_budget=2**20)
    assert items[0].tolist() == [2, 4, 3]
    assert items[3].tolist() == [0, 1, 2]
    assert cosines[0].tolist() == pytest.approx([1.0, 1.0, 0.5**0.5])


@pytest.mark.parametrize("distance", DISTANCES)
def test_some_of_the_items_ask_for_the_others(distance: str) -> None:
    prepare, similarity = DISTANCES[distance]
    points = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
    points[60:] = points[:10]
    held, asked = prepare(points), torch.tensor([64, 3, 41])
    found, items = nearest(held[asked], held, 100, asked, similarity, memory_budget=1)
    assert items.shape == (3, 69), "all but itself"
    values = similarity(held[asked], held)
    for row, query in enumerate(asked.tolist()):
        others = [item for item in range(70) if item != query]
        wanted = sorted(others, key=lambda item: (-float(values[row, item]), item))
        assert items[row].tolist() == wanted
        assert found[row].tolist() == values[row, wanted].tolist()
    assert nearest(held[:0], held, 4, None, similarity)[1].shape == (0, 4)
