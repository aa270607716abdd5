"""benchmarks/all.py finds each table of benchmarks/README.md, and writes the machine and what a command prints."""

import re

import pytest
from benchmark_module import benchmark_module
from tiny_fit import REPOSITORY

everything = benchmark_module("all")


def test_each_marked_table_has_a_command_that_is_there() -> None:
    text = (REPOSITORY / "benchmarks/README.md").read_text()
    found = [match[2] for match in everything.BLOCK.finditer(text)]
    assert len(found) == text.count("<!-- printed -->") > 5
    assert all((REPOSITORY / f"benchmarks/{name}.py").is_file() for name in found)
    assert not re.search(r"\| ---[^\n]*\n\n<!-- -->", text), "a table without a row"


def test_only_the_named_table_is_written_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    block = "    python benchmarks/{}.py --few 1\n\n<!-- printed -->\n\nold {}\n\n<!-- -->\n"
    page.write_text("Before\n\n" + block.format("one", "one") + "\nBetween\n\n" + block.format("two", "two"))
    monkeypatch.setattr(everything, "PAGE", page)
    monkeypatch.setattr(everything, "printed", lambda command: f"from {command.strip()}")
    monkeypatch.setattr("sys.argv", ["all.py", "two"])
    everything.main()
    text = page.read_text()
    assert "old one" in text
    assert "old two" not in text
    assert "from python benchmarks/two.py --few 1" in text
    assert "torch" in text
    assert text.count("<!-- printed -->") == 2
    assert "Between" in text
