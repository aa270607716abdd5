"""The nearest, by each distance, as a loop finds them: in order, ties around the circle, never the query itself."""

import pytest
import torch
from tie_order import place_on_circle
from torch.nn.functional import normalize

from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest


def test_nearest_come_in_order_and_ties_around_the_circle():
    rows = normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), dim=1)
    # Around the circle the items are 0, 4, 2, 1, 3.
    cosines, items = nearest(rows, rows, 3, torch.arange(len(rows)), memory_budget=2**20)
    assert cosines[0].tolist() == pytest.approx([1.0, 1.0, 0.5**0.5])
    assert items.tolist() == [[4, 2, 3], [3, 0, 4], [0, 4, 3], [0, 4, 2], [2, 0, 3]]


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
        around = [(place_on_circle(item) - place_on_circle(query)) % 2**32 for item in range(70)]
        wanted = sorted(others, key=lambda item: (-float(values[row, item]), around[item]))
        assert items[row].tolist() == wanted
        assert found[row].tolist() == values[row, wanted].tolist()
    _, apart = nearest(held[asked], held, 100, None, similarity)
    _, alone = nearest(held[asked[1:2]], held, 100, None, similarity)
    assert apart.shape == (3, 70)
    assert apart[1].tolist() == alone[0].tolist()
    assert nearest(held[:0], held, 4, None, similarity)[1].shape == (0, 4)
