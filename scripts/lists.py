"""The help of `fit` and the tables of docs/*.md, made from the docstrings, signatures and configurations.

python scripts/lists.py    writes them
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from levelfield.data import samplers as sampler_module
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.dataset import MetricDataset
from levelfield.losses.base import MetricLoss
from levelfield.metrics.definitions import METRICS
from levelfield.miners.base import Miner
from levelfield.models.embedders import Embedder
from levelfield.models.trunks import TimmTrunk, Trunk
from levelfield.regularizers.base import Regularizer
from levelfield.study.methods import method_of_loss
from levelfield.training.learner import MetricLearner
from levelfield.training.optimization import Optimization

ROOT = Path(__file__).resolve().parents[1]
# The base class of the classes that users can name, and the package that exports them.
PACKAGES: dict[type, str] = {
    **{MetricLoss: "losses", Miner: "miners", Regularizer: "regularizers"},
    **{Trunk: "models", Embedder: "models", MetricDataset: "data.datasets"},
}
# What a loss needs apart from labels, by the argument that shows it.
NEEDS = {"num_classes": "class weights", "memory_size": "a memory of former batches"}
WIDTH = 120
POOLING = {"token": "class token", "cls": "class token", "map": "attention"}
STATISTICS = {0.485: "ImageNet's", 0.5: "0.5", 0.48145466: "CLIP's"}  # by red's mean
Named = type | Callable[..., object]  # a class, or the function of a metric


def shipped(base: type) -> list[type]:
    """The classes that users can name, without those that others extend."""
    exported = vars(import_module(f"levelfield.{PACKAGES[base]}")).values()
    kinds = [each for each in exported if inspect.isclass(each) and issubclass(each, base)]
    extended = {base, *(parent for kind in kinds for parent in kind.__mro__[1:])}
    return [kind for kind in kinds if kind not in extended and not inspect.isabstract(kind)]


def doc(kind: Named) -> str:
    return inspect.getdoc(kind) or ""


def first_sentence(kind: Named) -> str:
    return " ".join(doc(kind).partition("\n\n")[0].split()).removesuffix(".")


def meanings(kind: type) -> dict[str, str]:
    """What each argument means, by its name; a base class explains those that it shares."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        section = re.search(r"^Args:\n((?:    .*\n?)+)", doc(each), re.M)
        entries = re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section[1] if section else "", re.M)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def given(kind: Named) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters


def field(kind: Named, what: str, usual: str | None = None) -> str:
    """What follows `what:` in a docstring, up to the next such word or the end of the paragraph; else `usual`."""
    found = re.search(rf"(?:^|\. ){what}: (.*?)\.(?=\s+[A-Z]\w+: |\n\n|\Z)", doc(kind), re.M | re.S)
    if found is None and usual is None:
        raise SystemExit(f"{kind.__module__}.{kind.__name__}: its docstring has no line '{what}: ...'")
    return " ".join(found[1].split()) if found else str(usual)


def papers(kind: Named) -> str:
    """Authors and years, each a link, without the titles."""
    links = []
    for paper in field(kind, "Papers?").split("; "):
        label = re.sub(r', "[^"]*"', "", paper)
        for address in re.findall(r"arXiv:[\d.]+\d|https://[^\s,]+", label):
            link = address.replace("arXiv:", "https://arxiv.org/abs/")
            label = re.sub(rf"((?:this form )?)([^;]+?\d{{4}}), {re.escape(address)}", rf"\1[\2]({link})", label)
        links.append(label)
    return "; ".join(links)


def year(kind: Named) -> int:
    """Of the first paper; without a year, as in `Paper: none yet.`, after all others."""
    return int([*re.findall(r" (\d{4})\b", field(kind, "Papers?")), "9999"][0])


def in_code(kind: Named) -> str:
    return f"`{kind.__name__}`"


def equation(kind: Named) -> str:
    """The indented lines after the first sentence."""
    paragraph = [*doc(kind).split("\n\n"), ""][1]
    return textwrap.dedent(paragraph) if paragraph.startswith("    ") else ""


def explained(kind: Named) -> str:
    """First sentence and equation, for a cell."""
    block = re.sub(r"\n +\+ ", " + ", equation(kind))  # joins the lines of a sum
    lines = [f"`{' '.join(line.split())}`" for line in re.split(r"\n| {4,}", block) if line]
    return "<br>".join([first_sentence(kind), *lines])


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    rule = ["---:" if name in ("classes", "samples") else "---" for name in columns]
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(row)} |") for row in cells)


def methods(kind: type) -> dict[str, str]:
    """The methods that use a class, by name, as YAML: files of `configs/method/`, and the `search_space` of a loss."""
    path = re.compile(rf"class_path: {kind.__module__.rpartition('.')[0]}\.{kind.__name__}\b")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "configs/method").glob("*.yaml")}
    found = {name: text for name, text in texts.items() if path.search(text)}
    if hasattr(kind, "search_space"):
        name, method = method_of_loss(kind.__name__, kind.__name__)
        found[name] = yaml.safe_dump(method, sort_keys=False)
    return dict(sorted(found.items()))


def needs(loss: type) -> tuple[str, ...]:
    """What a loss needs apart from labels, by its arguments and by the settings that use it."""
    arguments, settings = given(loss), [yaml.safe_load(text) for text in methods(loss).values()]
    if "losses" in arguments:
        return ("what its losses need",)
    found = [words for name, words in NEEDS.items() if name in arguments and arguments[name].default is not None]
    if not any(setting.get("data", {}).get("samples_per_class") == 1 for setting in settings):
        found.insert(0, "several samples of a class in a batch")
    if settings and all(setting["model"].get("normalize") is False for setting in settings):
        found.append("raw embeddings")
    return tuple(found)


def looked_up(kinds: Iterable[type]) -> list[list[str]]:
    """A row for each class, the oldest first."""
    oldest = sorted(kinds, key=lambda kind: (year(kind), kind.__name__))
    return [
        [in_code(kind), first_sentence(kind), field(kind, "When"), field(kind, "Cost"), papers(kind).partition("; ")[0]]
        for kind in oldest
    ]


def losses() -> str:
    """The losses grouped by what they need, the fewest needs first."""
    groups: dict[tuple[str, ...], list[type]] = {}
    for kind in shipped(MetricLoss):
        groups.setdefault(needs(kind), []).append(kind)
    rows = []
    for group in sorted(groups, key=lambda group: (len(group), group)):
        rows += [[f"**Needs {' and '.join(group)}**", *[""] * 4], *looked_up(groups[group])]
    return table("loss | what it does | when | cost | paper", rows)


def regularizers() -> str:
    return table("regularizer | what it does | when | cost | paper", looked_up(shipped(Regularizer)))


def miners() -> str:
    rows = ([in_code(kind), first_sentence(kind), papers(kind).partition("; ")[0]] for kind in shipped(Miner))
    return table("miner | keeps | paper", rows)


def embedders() -> str:
    supplied = ("num_features", "embedding_size")
    rows = (
        [in_code(kind), first_sentence(kind), ", ".join(f"`{name}`" for name in given(kind) if name not in supplied)]
        for kind in shipped(Embedder)
    )
    return table("class | what it does | arguments", rows)


def trunk_files(kind: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, arguments of the trunk and other settings of the files of `configs/trunk/` with weights of a class."""
    for file in sorted((ROOT / "configs/trunk").glob("*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        trunk = content["model"]["trunk"]
        if trunk["class_path"] == f"levelfield.models.{kind}" and not file.stem.startswith("tiny"):
            yield f"`{file.stem}`", trunk["init_args"], content


def image_trunks() -> str:
    """The files with a model of timm, the smallest first; models are built without memory for weights."""
    rows = []
    for name, arguments, content in trunk_files("TimmTrunk"):
        with torch.device("meta"):
            trunk: Any = TimmTrunk(**arguments | {"weights": None})
        weights = sum(weight.numel() for weight in trunk.parameters())
        sizes = content.get("data", {}).get("transforms")
        cells = [
            *(name, f"`{arguments['name']}`", f"{trunk.num_features:,}", f"{weights / 1e6:.1f} M"),
            f"{sizes['crop_size']} of {sizes['resize']}" if sizes else "the data's",
            POOLING.get(str(getattr(trunk.model, "global_pool", "")), "mean"),
            STATISTICS[trunk.mean[0]],
            str(trunk.model.pretrained_cfg["license"]),
        ]
        rows.append((weights, cells))
    head = "`configs/trunk/` | model of timm | features | parameters | px | pooling | mean, deviation | licence"
    return table(head, [cells for _, cells in sorted(rows)])


def text_trunks() -> str:
    rows = []
    for name, arguments, _ in trunk_files("TransformersTrunk"):
        pooling = POOLING.get(arguments["pooling"], arguments["pooling"])
        prefix = f"`{arguments['prefix']}`" if "prefix" in arguments else ""
        rows.append([name, f"`{arguments['name']}`", pooling, prefix, str(arguments["max_length"])])
    return table("`configs/trunk/` | model of transformers | pooling | prefix | tokens", rows)


def sampler_classes() -> list[type]:
    named = (getattr(sampler_module, name) for name in sampler_module.__all__)
    return [kind for kind in named if inspect.isclass(kind) and "\nWhen: " in doc(kind)]


def samplers() -> str:
    rows = ([in_code(kind), explained(kind), field(kind, "When")] for kind in sampler_classes())
    return table("class | a batch has | when", rows)


def datasets() -> str:
    named = [kind for kind in shipped(MetricDataset) if kind.num_classes_published is not None]
    rows = (
        [
            *(f"`{kind.name}`", f"{kind.num_classes_published:,}", f"{kind.num_samples_published:,}"),
            *(kind.splits, kind.licence, how_to_get(kind), field(kind, "Tested with")),
        ]
        for kind in sorted(named, key=lambda kind: (kind.modality, kind.name))
    )
    return table("name | classes | samples | splits | licence | how to get it | tested with", rows)


def metrics() -> str:
    scores = {(row.key, re.sub("[<>]", "", row.title)): row.score for row in METRICS}
    rows = (
        [f"`{key}`", title, explained(score), field(score, "When"), papers(score)]
        for (key, title), score in scores.items()
    )
    return table("key | title | what it measures | when | paper", rows)


def how_to_get(kind: Named) -> str:
    if not kind.archives:
        install = re.search(r"pip install '.*'", kind.source)
        return f"`{install[0]}`" if install else "installed"
    if any(not archive.url for archive in kind.archives):
        return "by hand, see below"
    return "`prepare`" if all(archive.sha256 for archive in kind.archives) else "`prepare`, unverified"


TABLES = {
    "docs/losses.md": {"losses": losses, "regularizers": regularizers, "miners": miners},
    "docs/datasets.md": {"data sets": datasets, "samplers": samplers},
    "docs/trunks.md": {"image trunks": image_trunks, "text trunks": text_trunks, "embedders": embedders},
    "docs/metrics.md": {"metrics": metrics},
}


# Title to the class whose arguments are the settings, and the section of their keys.
SECTIONS = {
    "model: trunk -> embedder -> loss": (MetricLearner, "model"),
    "model: optimizer and learning rates": (Optimization, "model"),
    "data: batches of M samples per class, and a held-out fold": (MetricDataModule, "data"),
}
# Key to the classes that it takes.
CLASSES: dict[str, Callable[[], list[type]]] = {
    "model.loss": lambda: shipped(MetricLoss),
    "model.miner": lambda: shipped(Miner),
    "model.trunk": lambda: shipped(Trunk),
    "model.embedder": lambda: shipped(Embedder),
    "model.regularizer": lambda: shipped(Regularizer),
    "data.dataset": lambda: shipped(MetricDataset),
    "data.sampler": sampler_classes,
}


def fit_help() -> str:
    """The settings of `levelfield fit`, each with the first sentence of its description."""
    lines = list[str]()
    for title, (found, section) in SECTIONS.items():
        lines += ["", title]
        for name, argument in given(found).items():
            if name in ("seed", "optimization") or name not in meanings(found):
                continue
            text, key = re.split(r"\.(?: |$)", meanings(found)[name])[0], f"{section}.{name}"
            default = getattr(argument.default, "__name__", argument.default)
            if default not in (None, argument.empty, "_empty"):
                text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
            lines.append(textwrap.fill(text, WIDTH, initial_indent=f"  --{key:<28}", subsequent_indent=" " * 32))
            if key in CLASSES:
                classes = ", ".join(kind.__name__ for kind in CLASSES[key]())
                lines.append(textwrap.fill(classes, WIDTH, initial_indent=" " * 32, subsequent_indent=" " * 32))
    return "\n".join(lines).removeprefix("\n") + "\n"


def page(name: str) -> str:
    """A page with its current tables, each between its two marks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for title, make in TABLES[name].items():
        before, mark, rest = text.partition(f"<!-- {title}: made by scripts/lists.py -->\n")
        _, end, after = rest.partition("<!-- -->")
        if not end:
            raise SystemExit(f"{name} has no place for the table {title}")
        text = f"{before}{mark}\n{make()}\n\n{end}{after}"
    return text


def changed() -> Iterator[tuple[Path, str]]:
    """Out-of-date files with their new text."""
    texts = {"src/levelfield/cli/fit.txt": fit_help(), **{name: page(name) for name in TABLES}}
    for name, text in texts.items():
        if (ROOT / name).read_text(encoding="utf-8") != text:
            yield ROOT / name, text


if __name__ == "__main__":
    for file, content in changed():
        file.write_text(content, encoding="utf-8")
