"""The files and the classes that the documentation names are there, by these names."""

import pkgutil
import re
from pathlib import Path

import pytest
from deletable import is_deleted

REPOSITORY = Path(__file__).parent.parent
PAGES = [
    "README.md",
    *sorted(
        str(page.relative_to(REPOSITORY))
        for part in ("docs/*.md", "benchmarks/README.md", "results/*.md", "papers/**/README.md")
        for page in REPOSITORY.glob(part)
    ),
]
FILE = re.compile(r"(?<![\w/.])(?:tests|src|configs|scripts|benchmarks|docs|papers|results)/[\w./-]*\w")
NAME = re.compile(r"`(levelfield(?:\.\w+)+)`")
PLACEHOLDER = re.compile(r"\b(NAME|SET|DIR|FILE)\b")


@pytest.mark.parametrize("page", PAGES)
def test_files_and_classes_are_there(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    files = {path for path in FILE.findall(text) if not PLACEHOLDER.search(path)}
    files = {path for path in files if not is_deleted(path)}
    missing = {path for path in files if not any((REPOSITORY / f"{path}{end}").exists() for end in ("", ".yaml"))}
    for name in set(NAME.findall(text)):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.add(name)
    assert not missing


def test_pages_that_the_code_names_are_there() -> None:
    folders = ("src", "configs", "scripts", "examples", "papers", "notebooks")
    files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*") if file.is_file()]
    named = {
        page
        for file in files
        if file.suffix in {".py", ".yaml", ".sh", ".ipynb", ".j2"}
        for page in re.findall(r"\bdocs/[\w/]+\.md", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert not {page for page in named if not (REPOSITORY / page).is_file()}
