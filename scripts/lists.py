"""Lists made from the sources: `__init__` of the packages that you extend, the help of `fit`, the tables of docs/*.md.

python scripts/lists.py    writes them
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from levelfield.study.methods import method_of_loss

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
# Package to the base classes of the classes in its list.
PACKAGES = {
    "levelfield.losses": ("base.MetricLoss",),
    "levelfield.miners": ("base.Miner",),
    "levelfield.regularizers": ("base.Regularizer",),
    "levelfield.models": ("trunks.Trunk", "embedders.Embedder"),
    "levelfield.data.datasets": ("levelfield.data.dataset.MetricDataset",),
    "levelfield.training.callbacks": ("lightning.pytorch.Callback",),
}
SUPPLIED = {"num_classes", "embedding_size", "num_features"}
# What a loss needs apart from labels, by the argument that shows it.
NEEDS = {"num_classes": "class weights", "memory_size": "a memory of former batches"}
WIDTH = 120
POOLING = {"token": "class token", "cls": "class token", "map": "attention"}
STATISTICS = {0.485: "ImageNet's", 0.5: "0.5", 0.48145466: "CLIP's"}  # by red's mean
Named = type | Callable[..., object]  # a class, or the function of a metric


def bases_of(package: str) -> tuple[type, ...]:
    found = []
    for path in PACKAGES[package]:
        module, _, name = path.rpartition(".")
        found.append(getattr(import_module(module if "." in module else f"{package}.{module}"), name))
    return tuple(found)


def classes_of(package: str) -> list[type]:
    """The public classes of a package's files that extend its base and can be built, and the base itself."""
    bases, found = bases_of(package), []
    for file in pkgutil.iter_modules(import_module(package).__path__):
        module = import_module(f"{package}.{file.name}")
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__ and not name.startswith("_")
            if own and (kind in bases or (issubclass(kind, bases) and not inspect.isabstract(kind))):
                found.append(kind)
    return found


def shipped(package: str) -> list[type]:
    """The classes that users can name, without those that others extend."""
    kinds = classes_of(package)
    extended = {base for kind in kinds for base in kind.__mro__[1:]}
    return [kind for kind in kinds if kind not in extended and kind not in bases_of(package)]


def listed(package: str) -> str:
    """The text of a package's `__init__.py`: its docstring, its classes, and other names that it re-exports."""
    text = file_of(package).read_text(encoding="utf-8")
    tree = ast.parse(text)
    bases = bases_of(package)
    kinds = [*classes_of(package), *(base for base in bases if base.__module__.startswith("levelfield."))]
    imports = {(kind.__module__, kind.__name__) for kind in kinds}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (SOURCES / f"{str(node.module).replace('.', '/')}.py").exists():
            given = {alias.name: getattr(import_module(node.module), alias.name, None) for alias in node.names}
            if node.module.startswith(f"{package}."):  # where a class that is gone leaves the list
                given = {name: it for name, it in given.items() if not (inspect.isclass(it) and issubclass(it, bases))}
            imports |= {(node.module, name) for name, it in given.items() if it is not None}
    lines = [f'"""{ast.get_docstring(tree, clean=False)}"""', ""]
    for module in sorted({module for module, _ in imports}):  # as ruff has them: constants, classes, the rest
        own = [name for other, name in imports if other == module]
        own.sort(key=lambda name: (not name.isupper(), not name[0].isupper(), name))
        line = f"from {module} import {', '.join(own)}"
        lines += [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {name}," for name in own), ")"]
    return "\n".join([*lines, "", "__all__ = [name for name in dir() if name[0].isupper()]"]) + "\n"


def file_of(package: str) -> Path:
    return SOURCES / package.replace(".", "/") / "__init__.py"


def doc(kind: Named) -> str:
    return inspect.getdoc(kind) or ""


def first_sentence(kind: Named) -> str:
    return " ".join(doc(kind).partition("\n\n")[0].split()).removesuffix(".")


def equation(kind: Named) -> str:
    """The indented lines after the first sentence."""
    paragraph = [*doc(kind).split("\n\n"), ""][1]
    return textwrap.dedent(paragraph) if paragraph.startswith("    ") else ""


def meanings(kind: type) -> dict[str, str]:
    """What each argument means, by its name; a base class explains those that it shares."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        section = re.search(r"^Args:\n((?:    .*\n?)+)", doc(each), re.M)
        entries = re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section[1] if section else "", re.M)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def is_supplied(argument: inspect.Parameter) -> bool:
    """Whether levelfield gives the argument its value, so that users do not."""
    return argument.name in SUPPLIED and argument.default is argument.empty


def given(kind: Named) -> dict[str, inspect.Parameter]:
    """The arguments that a class or function takes by name."""
    arguments = inspect.signature(kind).parameters
    found = {name: it for name, it in arguments.items() if it.kind is it.POSITIONAL_OR_KEYWORD}
    if "class_weights" in arguments:  # which every loss with class weights has, and its base explains
        shared = inspect.signature(import_module("levelfield.losses").ClassificationLoss).parameters
        found |= {name: shared[name] for name in ("class_fraction", "weight_init")}
    return found


def field(kind: Named, what: str) -> str:
    """What follows `what:` in a docstring, up to the next such word or the end of the paragraph."""
    found = re.search(rf"(?:^|\. ){what}: (.*?)\.(?=\s+[A-Z]\w+: |\n\n|\Z)", doc(kind), re.M | re.S)
    return " ".join(found[1].split()) if found else ""


def required_field(kind: Named, what: str) -> str:
    if text := field(kind, what):
        return text
    raise SystemExit(f"{kind.__module__}.{kind.__name__}: its docstring has no line '{what}: ...'")


def papers(kind: Named) -> str:
    """Authors and years, each a link, without the titles."""
    links = []
    for paper in required_field(kind, "Papers?").split("; "):
        label = re.sub(r', "[^"]*"', "", paper)
        for address in re.findall(r"arXiv:[\d.]+\d|https://[^\s,]+", label):
            link = address.replace("arXiv:", "https://arxiv.org/abs/")
            label = re.sub(rf"((?:this form )?)([^;]+?\d{{4}}), {re.escape(address)}", rf"\1[\2]({link})", label)
        links.append(label)
    return "; ".join(links)


def first_paper(kind: Named) -> str:
    return papers(kind).partition("; ")[0]


def year(kind: Named) -> int:
    """Of the first paper; without a year, as in `Paper: none yet.`, after all others."""
    return int([*re.findall(r" (\d{4})\b", required_field(kind, "Papers?")), "9999"][0])


def free(kind: Named) -> str:
    """The arguments that users may give."""
    return ", ".join(f"`{name}`" for name, argument in given(kind).items() if not is_supplied(argument))


def in_code(kind: Named) -> str:
    return f"`{kind.__name__}`"


def explained(kind: Named) -> str:
    """First sentence and equation, for a cell."""
    block = re.sub(r"\n +\+ ", " + ", equation(kind))  # joins the lines of a sum
    lines = [f"`{' '.join(line.split())}`" for line in re.split(r"\n| {4,}", block) if line]
    return "<br>".join([first_sentence(kind), *lines])


def methods(kind: type) -> dict[str, str]:
    """The methods that use a class, by name, as YAML: files of `configs/method/`, and the `search_space` of a loss."""
    path = re.compile(rf"class_path: {kind.__module__.rpartition('.')[0]}\.{kind.__name__}\b")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "configs" / "method").glob("*.yaml")}
    found = {name: text for name, text in texts.items() if path.search(text)}
    if hasattr(kind, "search_space"):
        name, method = method_of_loss(kind.__name__, kind.__name__)
        found[name] = yaml.safe_dump(method, sort_keys=False)
    return dict(sorted(found.items()))


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    rule = ["---:" if name in ("classes", "samples") else "---" for name in columns]
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(row)} |") for row in cells)


def needs(kind: type) -> tuple[str, ...]:
    """What a loss needs apart from labels, by its arguments and by the settings that use it."""
    if "losses" in given(kind):
        return ("what its losses need",)
    found = [words for name, words in NEEDS.items() if name in given(kind) and given(kind)[name].default is not None]
    settings = [yaml.safe_load(text) for text in methods(kind).values()]
    if not any(setting.get("data", {}).get("samples_per_class") == 1 for setting in settings):
        found.insert(0, "several samples of a class in a batch")
    if settings and all(setting["model"].get("normalize") is False for setting in settings):
        found.append("raw embeddings")
    return tuple(found)


def looked_up(kinds: Iterable[type]) -> list[list[str]]:
    """A row for each class, the oldest first."""
    oldest = sorted(kinds, key=lambda kind: (year(kind), kind.__name__))
    whens = ([required_field(kind, name) for name in ("When", "Cost")] for kind in oldest)
    return [
        [in_code(kind), first_sentence(kind), *when, first_paper(kind)]
        for kind, when in zip(oldest, whens, strict=True)
    ]


def losses() -> str:
    """The losses grouped by what they need, the fewest needs first."""
    groups: dict[tuple[str, ...], list[type]] = {}
    for kind in shipped("levelfield.losses"):
        groups.setdefault(needs(kind), []).append(kind)
    rows = []
    for group in sorted(groups, key=lambda group: (len(group), group)):
        rows += [[f"**Needs {' and '.join(group)}**", *[""] * 4], *looked_up(groups[group])]
    return table("loss | what it does | when | cost | paper", rows)


def regularizers() -> str:
    rows = looked_up(shipped("levelfield.regularizers"))
    return table("regularizer | what it does | when | cost | paper", rows)


def miners() -> str:
    kinds = shipped("levelfield.miners")
    return table("miner | keeps | paper", ([in_code(kind), first_sentence(kind), first_paper(kind)] for kind in kinds))


def embedders() -> str:
    kinds = [kind for kind in shipped("levelfield.models") if issubclass(kind, bases_of("levelfield.models")[1])]
    rows = ([in_code(kind), first_sentence(kind), free(kind)] for kind in kinds)
    return table("class | what it does | arguments", rows)


def trunk_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each file of `configs/trunk/` that names a model with weights."""
    for file in sorted((ROOT / "configs" / "trunk").glob("*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not file.stem.startswith("tiny"):
            yield file.stem, content


def image_trunks() -> str:
    """The files with a model of timm, the smallest first; models are built without memory for weights."""
    import torch

    from levelfield.models import TimmTrunk

    rows = []
    for name, content in trunk_files():
        spec = content["model"]["trunk"]
        if not spec["class_path"].endswith(".TimmTrunk"):
            continue
        with torch.device("meta"):
            trunk: Any = TimmTrunk(**{**spec["init_args"], "weights": None})
        weights = sum(weight.numel() for weight in trunk.parameters())
        sizes = content.get("data", {}).get("transforms")
        cells = [
            *(f"`{name}`", f"`{spec['init_args']['name']}`", f"{trunk.num_features:,}", f"{weights / 1e6:.1f} M"),
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
    for name, content in trunk_files():
        given = content["model"]["trunk"]["init_args"]
        if content["model"]["trunk"]["class_path"].endswith(".TransformersTrunk"):
            cells = [f"`{name}`", f"`{given['name']}`", POOLING.get(given["pooling"], given["pooling"])]
            rows.append([*cells, f"`{given['prefix']}`" if "prefix" in given else "", str(given["max_length"])])
    return table("`configs/trunk/` | model of transformers | pooling | prefix | tokens", rows)


def sampler_classes() -> list[type]:
    module = import_module("levelfield.data.samplers")
    return [kind for kind in map(vars(module).get, module.__all__) if inspect.isclass(kind) and "\nWhen: " in doc(kind)]


def samplers() -> str:
    rows = ([in_code(kind), explained(kind), required_field(kind, "When")] for kind in sampler_classes())
    return table("class | a batch has | when", rows)


def datasets() -> str:
    named = [kind for kind in shipped("levelfield.data.datasets") if kind.num_classes_published is not None]
    return table(
        "name | classes | samples | splits | licence | how to get it | tested with",
        (
            [
                *(f"`{kind.name}`", f"{kind.num_classes_published:,}", f"{kind.num_samples_published:,}"),
                *(kind.splits, kind.licence, how_to_get(kind), required_field(kind, "Tested with")),
            ]
            for kind in sorted(named, key=lambda kind: (kind.modality, kind.name))
        ),
    )


def metrics() -> str:
    rows = (
        [
            f"`{row.key}`",
            re.sub("[<>]", "", row.title),
            explained(row.score),
            required_field(row.score, "When"),
            papers(row.score),
        ]
        for row in import_module("levelfield.metrics.definitions").METRICS
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


FIT = "src/levelfield/cli/fit.txt"
# Title to the class whose arguments are the settings, and the section of their keys.
SECTIONS = {
    "model: trunk -> embedder -> loss": ("levelfield.training.learner.MetricLearner", "model"),
    "model: optimizer and learning rates": ("levelfield.training.optimization.Optimization", "model"),
    "data: batches of M samples per class, and a held-out fold": (
        "levelfield.data.datamodule.MetricDataModule",
        "data",
    ),
}
# Key to the package of the classes that it takes.
CLASSES = {
    **{f"model.{name}": f"levelfield.{package}" for name, package in (("loss", "losses"), ("miner", "miners"))},
    **{"model.trunk": "levelfield.models", "model.embedder": "levelfield.models"},
    **{"model.regularizer": "levelfield.regularizers", "data.dataset": "levelfield.data.datasets"},
}


def fit_help(_: str) -> str:
    """The settings of `levelfield fit`, each with the first sentence of its description."""
    lines = list[str]()
    for title, (place, section) in SECTIONS.items():
        module, _, kind = place.rpartition(".")
        found = getattr(import_module(module), kind)
        lines += ["", title]
        for key, argument in given(found).items():
            if key == "seed" or key not in meanings(found):
                continue
            text = re.split(r"\.(?: |$)", meanings(found)[key])[0]
            default = getattr(argument.default, "__name__", argument.default)
            if default not in (None, argument.empty, "_empty"):
                text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
            lines += option(f"--{section}.{key}", text)
            lines += option("", ", ".join(kind.__name__ for kind in classes_for(f"{section}.{key}")))
    return "\n".join(lines).removeprefix("\n") + "\n"


def classes_for(key: str) -> list[type]:
    if key == "data.sampler":
        return sampler_classes()
    kinds = shipped(CLASSES[key]) if key in CLASSES else []
    if CLASSES.get(key) != "levelfield.models":
        return kinds
    return [kind for kind in kinds if issubclass(kind, bases_of("levelfield.models")[key == "model.embedder"])]


def option(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, width=WIDTH - 32)
    return [f"  {name if not row else '':<30}{line}" for row, line in enumerate(wrapped)]


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
    """Out-of-date files with their new text. Packages come first, as a docstring may lack what pages need."""
    packages = [(file_of(package), listed, package) for package in PACKAGES]
    for path, make, name in [*packages, (ROOT / FIT, fit_help, FIT), *((ROOT / name, page, name) for name in TABLES)]:
        if path.read_text(encoding="utf-8") != (text := make(name)):
            yield path, text


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCES))
    for file, content in changed():
        file.write_text(content, encoding="utf-8")
