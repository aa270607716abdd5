"""The help of `fit` and the tables of docs/losses.md, made from the docstrings, signatures and configurations.

python scripts/lists.py    writes them
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import yaml

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.dataset import MetricDataset
from levelfield.data.samplers import TrainingBatchSampler
from levelfield.losses.base import MetricLoss
from levelfield.miners.base import Miner
from levelfield.models.embedders import Embedder
from levelfield.models.trunks import Trunk
from levelfield.regularizers.base import Regularizer
from levelfield.study.methods import method_of_loss
from levelfield.training.learner import MetricLearner
from levelfield.training.optimization import Optimization

ROOT = Path(__file__).resolve().parents[1]
# What users can name, by the argument that takes it: the base class, and the package that exports its classes.
PARTS: dict[str, tuple[type, str]] = {
    "trunk": (Trunk, "models"),
    "embedder": (Embedder, "models"),
    "loss": (MetricLoss, "losses"),
    "miner": (Miner, "miners"),
    "regularizer": (Regularizer, "regularizers"),
    "dataset": (MetricDataset, "data.datasets"),
    "sampler": (TrainingBatchSampler, "data.samplers"),
}
# Title to the class whose arguments are the settings, and the section of their keys.
SECTIONS = {
    "model: trunk -> embedder -> loss": (MetricLearner, "model"),
    "model: optimizer and learning rates": (Optimization, "model"),
    "data: batches of M samples per class, and a held-out fold": (MetricDataModule, "data"),
}
# Of docs/losses.md.
TABLES = {
    "losses": "loss | what it does | when | cost | paper",
    "regularizers": "regularizer | what it does | when | cost | paper",
    "miners": "miner | keeps | paper",
}
# What a loss needs apart from labels, by the argument that shows it.
NEEDS = {"num_classes": "class weights", "memory_size": "a memory of former batches"}


def shipped(part: str) -> list[type]:
    """The classes that users can name, without those that others extend."""
    base, package = PARTS[part]
    exported = vars(import_module(f"levelfield.{package}")).values()
    kinds = [each for each in exported if inspect.isclass(each) and issubclass(each, base)]
    extended = {base, *(parent for kind in kinds for parent in kind.__mro__[1:])}
    return [kind for kind in kinds if kind not in extended and not inspect.isabstract(kind)]


def doc(kind: type) -> str:
    return inspect.getdoc(kind) or ""


def first_sentence(kind: type) -> str:
    return " ".join(doc(kind).partition("\n\n")[0].split()).removesuffix(".")


def meanings(kind: type) -> dict[str, str]:
    """What each argument means, by its name; a base class explains those that it shares."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        section = re.search(r"^Args:\n((?:    .*\n?)+)", doc(each), re.M)
        entries = re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section[1] if section else "", re.M)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def field(kind: type, what: str, usual: str | None = None) -> str:
    """What follows `what:` in a docstring, up to the next such word or the end of the paragraph; else `usual`."""
    found = re.search(rf"(?:^|\. ){what}: (.*?)\.(?=\s+[A-Z]\w+: |\n\n|\Z)", doc(kind), re.M | re.S)
    if found is None and usual is None:
        raise SystemExit(f"{kind.__module__}.{kind.__name__}: its docstring has no line '{what}: ...'")
    return " ".join(found[1].split()) if found else str(usual)


def papers(kind: type) -> str:
    """Authors and years, each a link, without the titles."""
    links = []
    for paper in field(kind, "Papers?").split("; "):
        label = re.sub(r', "[^"]*"', "", paper)
        for address in re.findall(r"arXiv:[\d.]+\d|https://[^\s,]+", label):
            link = address.replace("arXiv:", "https://arxiv.org/abs/")
            label = re.sub(rf"((?:this form )?)([^;]+?\d{{4}}), {re.escape(address)}", rf"\1[\2]({link})", label)
        links.append(label)
    return "; ".join(links)


def methods(kind: type) -> dict[str, str]:
    """The methods that use a class, by name, as YAML: files of `configs/method/`, and the `search_space` of a loss."""
    path = re.compile(rf"class_path: {kind.__module__.rpartition('.')[0]}\.{kind.__name__}\b")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in ROOT.glob("configs/method/*.yaml")}
    found = {name: text for name, text in texts.items() if path.search(text)}
    if hasattr(kind, "search_space"):
        name, method = method_of_loss(kind.__name__, kind.__name__)
        found[name] = yaml.safe_dump(method, sort_keys=False)
    return dict(sorted(found.items()))


def needs(loss: type) -> tuple[str, ...]:
    """What a loss needs apart from labels, by its arguments and by the settings that use it."""
    arguments, settings = inspect.signature(loss).parameters, [yaml.safe_load(text) for text in methods(loss).values()]
    if "losses" in arguments:
        return ("what its losses need",)
    found = [words for name, words in NEEDS.items() if name in arguments and arguments[name].default is not None]
    if not any(setting.get("data", {}).get("samples_per_class") == 1 for setting in settings):
        found.insert(0, "several samples of a class in a batch")
    if settings and all(setting["model"].get("normalize") is False for setting in settings):
        found.append("raw embeddings")
    return tuple(found)


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (columns, ["---"] * len(columns), *rows))
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(row)} |") for row in cells)


def listed(head: str) -> str:
    """The classes of the part that the first column names, the oldest first, losses by what they need."""
    part, _, *fields, _ = columns = head.split(" | ")
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for kind in shipped(part):
        facts = (field(kind, each.capitalize()) for each in fields)
        row = [f"`{kind.__name__}`", first_sentence(kind), *facts, papers(kind).partition("; ")[0]]
        groups.setdefault(needs(kind) if part == "loss" else (), []).append(row)
    rows: list[list[str]] = []
    for group in sorted(groups, key=lambda group: (len(group), group)):
        rows += [[f"**Needs {' and '.join(group)}**", *[""] * (len(columns) - 1)]] if group else []
        rows += sorted(groups[group], key=lambda row: (*re.findall(r"\d{4}", row[-1])[:1], "no year", row[0]))
    return table(head, rows)


def fit_help() -> str:
    """The settings of `levelfield fit`, each with the first sentence of its description."""
    lines = list[str]()
    for title, (kind, section) in SECTIONS.items():
        lines += ["", title]
        for name, argument in inspect.signature(kind).parameters.items():
            if name in ("seed", "optimization") or name not in meanings(kind):
                continue
            text = re.split(r"\.(?: |$)", meanings(kind)[name])[0]
            default = getattr(argument.default, "__name__", argument.default)
            if default not in (None, argument.empty, "_empty"):
                text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
            entry = {f"  --{section}.{name}": text}
            if name in PARTS:
                entry[""] = ", ".join(each.__name__ for each in shipped(name))
            for begin, words in entry.items():
                lines += textwrap.wrap(words, 120, initial_indent=f"{begin:<32}", subsequent_indent=" " * 32)
    return "\n".join(lines).removeprefix("\n") + "\n"


def changed() -> dict[Path, str]:
    """Out-of-date files with their new text; a table is between marks."""
    page = ROOT / "docs/losses.md"
    text = page.read_text(encoding="utf-8")
    for title, head in TABLES.items():
        mark, end = f"<!-- {title}: made by scripts/lists.py -->\n", "\n<!-- -->"
        before, rest = text.split(mark)
        text = f"{before}{mark}\n{listed(head)}\n{end}{rest.split(end, 1)[1]}"
    texts = {page: text, ROOT / "src/levelfield/cli/fit.txt": fit_help()}
    return {file: text for file, text in texts.items() if file.read_text(encoding="utf-8") != text}


if __name__ == "__main__":
    for file, content in changed().items():
        file.write_text(content, encoding="utf-8")
