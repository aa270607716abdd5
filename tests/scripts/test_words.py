"""scripts/words.py: what counts as prose, and what breaks a rule."""

import importlib
from types import ModuleType

import pytest
from tiny_fit import REPOSITORY

PAGE = """# A title

Two short words here. `levelfield fit --config x` counts as one, [a link](https://example.org/long/address) as two.

    levelfield fit --config data/glyphs

| a | table |
| --- | --- |
| not | counted |

```python
not_counted = 1
```

- One item.
- Nobody is told anew.
"""


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module("words")


def test_code_tables_and_addresses_are_no_prose(words: ModuleType) -> None:
    paragraphs = words.prose(PAGE)
    assert [paragraph.split()[0] for paragraph in paragraphs] == ["A", "Two", "One", "Nobody"]
    assert "example.org" not in " ".join(paragraphs)
    assert words.sentences(paragraphs[1])[1] == "code counts as one, a link as two."


def test_long_sentences_and_words_to_avoid_are_named(words: ModuleType) -> None:
    assert [fault.split(": ")[1] for fault in words.broken("page.md", words.prose(PAGE))] == ["'Nobody'", "'anew'"]
    (long,) = words.broken("page.md", ["word " * 26 + "end."])
    assert long.startswith("page.md: 27 words")
    (blank,) = words.broken("page.md", ["It takes MINUTES of a core, see `LEVELFIELD_DATA`."])
    assert "MINUTES" in blank


def test_the_pages_keep_the_rules(words: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["words.py", "--check"])
    assert words.main() == 0
