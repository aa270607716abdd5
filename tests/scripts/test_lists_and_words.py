"""The tables of the docs, the names of `__init__` files, and the rules of prose."""

import importlib
import inspect
import pkgutil
import re

import pytest
import yaml
from tiny_fit import REPOSITORY

from levelfield.metrics.definitions import METRICS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module


@pytest.mark.slow
def test_every_list_is_what_the_files_say(script) -> None:
    stale = [str(path.relative_to(REPOSITORY)) for path in script("lists").changed()]
    assert not stale, f"python scripts/lists.py writes {stale}"


def test_whatever_can_be_named_is_exported_and_has_a_test_and_a_data_set_its_configuration(script) -> None:
    lists = script("lists")
    for part, (base, package) in lists.PARTS.items():
        exported = importlib.import_module(f"levelfield.{package}")
        for file in pkgutil.iter_modules(getattr(exported, "__path__", [])):
            module = importlib.import_module(f"{exported.__name__}.{file.name}")
            own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
            for kind in (each for each in own if inspect.isclass(each) and issubclass(each, base)):
                is_named = not (kind.__name__.startswith("_") or inspect.isabstract(kind))
                assert not is_named or kind.__name__ in exported.__all__, (
                    f"import {kind.__name__} in {exported.__name__}"
                )
        folder = REPOSITORY.joinpath("tests", *package.split("."))
        tests = "\n".join(path.read_text() for path in (REPOSITORY / "tests" / package.split(".")[0]).rglob("*.py"))
        for kind in lists.shipped(part):
            file = folder / f"test_{kind.__module__.rpartition('.')[2]}.py"
            assert file.exists() or kind.__name__ in tests, f"nothing tests {kind.__name__}: write {file}"
    for kind in lists.shipped("dataset"):
        file = f"configs/data/{kind.name}.yaml"
        assert kind.num_classes_published is None or (REPOSITORY / file).exists(), f"{kind.__name__}: write {file}"


def test_tables_that_are_written_by_hand_have_a_row_for_each(script) -> None:
    lists = script("lists")
    pages = ("trunks", "datasets", "metrics")
    trunks, datasets, metrics = ((REPOSITORY / f"docs/{page}.md").read_text() for page in pages)
    for kind in lists.shipped("dataset"):
        if kind.num_classes_published is not None:
            counts = f"{kind.num_classes_published:,} | {kind.num_samples_published:,}"
            (row,) = re.findall(rf"^\| `{kind.name}` \|.*$", datasets, re.M)
            assert f" | {counts} | {kind.splits} | {kind.licence} | " in row
            assert row.endswith(f" | {lists.field(kind, 'Tested with')} |")
    for part, page in (("embedder", trunks), ("sampler", datasets)):
        for kind in lists.shipped(part):
            assert f"| `{kind.__name__}` | {lists.first_sentence(kind)} |" in page
    for row in METRICS:
        assert f"| `{row.key}` | {re.sub('[<>]', '', row.title)} | {lists.first_sentence(row.score)}<br>`" in metrics
        assert f" | {lists.field(row.score, 'When')} | {lists.papers(row.score)} |" in metrics
    for file in REPOSITORY.glob("configs/trunk/*.yaml"):
        trunk = yaml.safe_load(file.read_text())["model"]["trunk"]
        if not file.stem.startswith("tiny"):
            assert f"| `{file.stem}` | `{trunk.get('init_args', {}).get('name', 'BNInceptionTrunk')}` | " in trunks


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
