"""The table of metrics has what pages and results need of each row."""

import inspect
import re

from levelfield.metrics import table


def test_every_row_says_what_it_computes_when_and_whose_it_is() -> None:
    for metric in table.METRICS:
        said = inspect.getdoc(metric.score) or ""
        assert re.fullmatch(r"\S[^\n]+\.\n\n {4}\S[^\n]+\n\nWhen: .+\n\nPaper: .+", said, re.DOTALL), metric.key


def test_a_key_names_one_row_and_its_number() -> None:
    found = {key: table.named(key) for key in ("map", "map_at_r", "map_at_10", "recall_at_4", "recall", "recall_at_k")}
    rows = {key: row and (row[0].key, *row[1]) for key, row in found.items()}
    assert rows == {
        "map": ("map",),
        "map_at_r": ("map_at_r",),
        "map_at_10": ("map_at_<n>", 10),
        "recall_at_4": ("recall_at_<k>", 4),
        "recall": None,
        "recall_at_k": None,
    }
    keys = [name for metric in table.METRICS for name in (metric.key, *metric.also)]
    assert len(set(keys)) == len(keys)
