"""The tables of the docs, the names of `__init__` files, the rules of prose, and the picture of neighbours."""

import importlib
import inspect
import pkgutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image
from tiny_fit import REPOSITORY


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module


@pytest.mark.slow
def test_every_list_is_what_the_files_say(script) -> None:
    stale = [str(path.relative_to(REPOSITORY)) for path, _ in script("lists").changed()]
    assert not stale, f"python scripts/lists.py writes {stale}"


def test_whatever_can_be_named_is_exported_and_has_a_test_and_a_data_set_its_configuration(script) -> None:
    lists = script("lists")
    for base, package in lists.PACKAGES.items():
        exported = importlib.import_module(f"levelfield.{package}")
        for file in pkgutil.iter_modules(exported.__path__):
            module = importlib.import_module(f"{exported.__name__}.{file.name}")
            own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
            for kind in (each for each in own if inspect.isclass(each) and issubclass(each, base)):
                is_named = not (kind.__name__.startswith("_") or inspect.isabstract(kind))
                assert not is_named or kind.__name__ in exported.__all__, (
                    f"import {kind.__name__} in {exported.__name__}"
                )
        folder = REPOSITORY.joinpath("tests", *package.split("."))
        tests = "\n".join(path.read_text() for path in (REPOSITORY / "tests" / package.split(".")[0]).rglob("*.py"))
        for kind in lists.shipped(base):
            file = folder / f"test_{kind.__module__.rpartition('.')[2]}.py"
            assert file.exists() or kind.__name__ in tests, f"nothing tests {kind.__name__}: write {file}"
    for kind in lists.shipped(lists.MetricDataset):
        file = f"configs/data/{kind.name}.yaml"
        assert kind.num_classes_published is None or (REPOSITORY / file).exists(), f"{kind.__name__}: write {file}"


def test_long_sentences_and_words_to_avoid_are_named_and_code_is_no_prose(script) -> None:
    words = script("words")
    link, command = "[a link](https://example.org/long/address)", "    levelfield fit --config data/glyphs"
    blocks = ("# A title", f"`levelfield fit` counts as one, {link} as two.", command, "| a | table |")
    paragraphs = words.prose("\n\n".join([*blocks, "- Nobody is told anew.\n"]))
    assert [paragraph.split()[0] for paragraph in paragraphs] == ["A", "`levelfield", "Nobody"]
    assert words.sentences(paragraphs[1]) == ["code counts as one, a link as two."]
    assert [fault.split(": ")[1] for fault in words.broken("page.md", paragraphs)] == ["'Nobody'", "'anew'"]
    (long,) = words.broken("page.md", ["word " * 26 + "end."])
    assert long.startswith("page.md: 27 words")
    (blank,) = words.broken("page.md", ["It takes MINUTES of a core, see `LEVELFIELD_DATA`."])
    assert "MINUTES" in blank


def test_rows_of_the_picture_are_first_images_of_classes_and_their_neighbours(script, monkeypatch) -> None:
    module = script("neighbours_picture")
    assert (module.ROWS, module.NEIGHBOURS) == (6, 8)
    monkeypatch.setattr(module, "ROWS", 3)  # to draw 102 images takes seconds
    monkeypatch.setattr(module, "NEIGHBOURS", 2)
    labels = torch.arange(13).repeat_interleave(4)
    before, after = (torch.randn(52, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    opened: list[int] = []
    dataset = SimpleNamespace(load=lambda key: opened.append(key) or Image.new("RGB", (40, 30)))
    data = SimpleNamespace(test_subset=SimpleNamespace(index=SimpleNamespace(keys=range(52))), dataset=dataset)
    sets = {name: SimpleNamespace(embeddings=x, labels=labels) for name, x in (("before", before), ("after", after))}
    plt.close(module.draw(data, sets))
    expected = [0, 16, 32]  # the first of each fourth class
    for x in (before, after):
        for query in expected[:3]:
            cosines = torch.nn.functional.cosine_similarity(x[query, None], x)
            expected += sorted(set(range(52)) - {query}, key=(-cosines).tolist().__getitem__)[:2]
    assert opened == expected
