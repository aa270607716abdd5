import pytest

from levelfield.metrics import ranking


@pytest.fixture(autouse=True)
def small_spaces_go_the_way_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the products is computed from 256 dimensions on; the tests have fewer."""
    monkeypatch.setattr(ranking, "LEAST_HALVED", 0)
