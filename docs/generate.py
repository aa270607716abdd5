"""The generated part of the site: a page for each loss, regularizer and miner, and one for the commands."""

import inspect
import posixpath
import re
import shutil
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lists
import yaml
from sphinx.application import Sphinx

from levelfield.cli.commands import TEXTS
from levelfield.cli.options import Command

FOLDER = "docs/reference"
# A package, and the option that takes its classes.
OPTIONS = {"losses": "loss", "regularizers": "regularizer", "miners": "miner"}
SUPPLIED = {"num_classes", "embedding_size", "num_features"}  # by levelfield, if they have no default
# Paragraphs of a docstring that a page shows in another form.
ELSEWHERE = re.compile(r"    |(Args|Attributes|Cost|Differs|Example|Papers?|Raises|When):")
EXIT_CODES = """\
| code | meaning |
| ---: | --- |
| 0 | The command finished. |
| 1 | An error in levelfield. The command prints the traceback. |
| 2 | A mistake in the input. One line says what to change. |
| 130 | Ctrl-C or a signal stopped the command. The same command continues the work, `fit` with `--resume`. |\
"""


@cache
def places() -> dict[str, str]:
    """Where the generated folder has a class or a method."""
    found: dict[str, str] = {}
    for package, part in OPTIONS.items():
        for kind in lists.shipped(part):
            page = f"{package}/{kind.__name__}.md"
            found |= {kind.__name__: page, **{name: f"{page}#{name}" for name in lists.methods(kind)}, **found}
    return found


def write(app: Sphinx) -> None:
    """Write the pages before Sphinx looks for them."""
    shutil.rmtree(Path(app.srcdir, FOLDER), ignore_errors=True)
    pages = {f"{package}/{kind.__name__}": page for package in OPTIONS for kind, page in class_pages(package)}
    for name, text in {**pages, "commands": commands_page()}.items():
        file = Path(app.srcdir, FOLDER, f"{name}.md")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def add_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """A class or method that begins a table's row becomes a link to its page."""
    folder = posixpath.relpath(FOLDER, posixpath.dirname(docname) or ".")

    def linked(row: re.Match[str]) -> str:
        return f"| [`{row[1]}`]({folder}/{places()[row[1]]}) |" if row[1] in places() else row[0]

    if not docname.startswith(FOLDER):
        source[0] = re.sub(r"^\| `(\w+)` \|", linked, source[0], flags=re.M)


def class_pages(package: str) -> Iterator[tuple[type, str]]:
    for kind in lists.shipped(OPTIONS[package]):
        yield kind, "\n\n".join(filter(None, class_page(package, kind))) + "\n"


def class_page(package: str, kind: type) -> Iterator[str]:
    name, methods = kind.__name__, lists.methods(kind)
    yield f"# {name}"
    yield f"{lists.first_sentence(kind)}."
    option = f"--model.{OPTIONS[package]} {name}"
    option = option if package == "losses" else f"--model.loss ContrastiveLoss {option}"
    first = next(iter(methods), "")
    tried = f"--config method/{first}" if (lists.ROOT / f"configs/method/{first}.yaml").is_file() else option
    yield fenced("bash", f"levelfield fit --config data/glyphs {tried}")
    equation = [*lists.doc(kind).split("\n\n"), ""][1]
    if equation.startswith("    "):
        yield fenced("text", textwrap.dedent(equation))
        yield "The [notation](../../losses.md#notation) is the same on all pages."
    for paragraph in lists.doc(kind).split("\n\n")[1:]:
        if not ELSEWHERE.match(paragraph):
            yield " ".join(paragraph.split())
    if differs := lists.field(kind, "Differs", ""):
        yield f"Different from the original: {differs}."
    facts = {"Needs": " and ".join(lists.needs(kind)) if package == "losses" else ""}
    facts |= {fact: lists.field(kind, fact, "") for fact in ("Cost", "When")}
    yield lists.table(" | ", [[fact, text] for fact, text in {**facts, "Papers": lists.papers(kind)}.items() if text])
    yield "## Arguments"
    yield fenced("python", f"from levelfield.{package} import {name}")
    if rows := list(arguments(kind)):
        yield lists.table("argument | default | meaning", rows)
    if methods:
        yield "## Methods"
    for method, text in methods.items():
        yield f"### {method}"
        yield fenced("yaml", re.split(r"^search:", text, flags=re.M)[0].rstrip())
        rows = [searched(*space) for space in yaml.safe_load(text).get("search", {}).items()]
        yield lists.table("searched key | from | to | scale", rows) if rows else "A study searches nothing here."


def arguments(kind: type) -> Iterator[list[str]]:
    meanings = lists.meanings(kind)
    for name, argument in inspect.signature(kind).parameters.items():
        default = f"`{argument.default}`"
        if argument.default is inspect.Parameter.empty:
            default = "supplied" if name in SUPPLIED else "required"
        yield [f"`{name}`", default, meanings.get(name, "")]


def searched(key: str, space: dict) -> list[str]:
    keys = ", ".join(f"`{each}`" for each in (key, *space.get("tied", ())))
    if "values" in space:
        return [keys, ", ".join(map(str, space["values"])), "", "choice"]
    scale = space.get("scale", "linear") + (", whole numbers" if space.get("integer") else "")
    return [keys, str(space["low"]), str(space["high"]), scale]


def commands_page() -> str:
    """Each command's help."""
    helps = {command.prog: command.format_help() for command in map(Command, TEXTS) if command.name}
    parts = [
        "# Commands",
        "`levelfield COMMAND --help` prints what this page shows. All commands end with one of these exit codes:",
        EXIT_CODES,
        *(f"## {name}\n\n{fenced('text', text.rstrip())}" for name, text in helps.items()),
    ]
    return "\n\n".join(parts) + "\n"


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
