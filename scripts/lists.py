"""Write the lists that follow from the source: `__init__.py` of some packages, and the tables in docs/*.md.

python scripts/lists.py            writes them
python scripts/lists.py --check    names files that are out of date, and exits with 1 if there are any
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
# Package to the base classes of its list.
ROOMS = {
    "levelfield.losses": ("base.MetricLoss",),
    "levelfield.miners": ("base.Miner",),
    "levelfield.regularizers": ("base.Regularizer",),
    "levelfield.models": ("trunks.Trunk", "embedders.Embedder"),
    "levelfield.data.datasets": ("base.MetricDataset",),
    "levelfield.data.samplers": ("base.TrainingBatchSampler",),
    "levelfield.training.callbacks": ("lightning.pytorch.Callback",),
}
# The learner adds it itself; no configuration names it.
WRAPPERS = {"ModuleTrunk"}
SUPPLIED = {"num_classes", "embedding_size", "num_features"}
SHARED = {"class_fraction"}  # of losses with class weights: the page explains it once
WIDTH = 120
POOLING = {"token": "class token", "cls": "class token", "map": "attention"}
STATISTICS = {0.485: "ImageNet's", 0.5: "0.5", 0.48145466: "CLIP's"}  # by red's mean
Named = type | Callable[..., object]  # a class, or the function of a metric


def bases_of(room: str) -> tuple[type, ...]:
    found = []
    for path in ROOMS[room]:
        module, _, name = path.rpartition(".")
        found.append(getattr(import_module(module if "." in module else f"{room}.{module}"), name))
    return tuple(found)


def classes_of(room: str) -> list[type]:
    """The base of a package and its public concrete subclasses in the files of the package."""
    bases, found = bases_of(room), []
    for file in pkgutil.iter_modules(import_module(room).__path__):
        module = import_module(f"{room}.{file.name}")
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__ and not name.startswith("_")
            if own and (kind in bases or (issubclass(kind, bases) and not inspect.isabstract(kind))):
                found.append(kind)
    return [kind for kind in found if kind.__name__ not in WRAPPERS]


def shipped(room: str) -> list[type]:
    """The classes that a configuration can name, without those that have subclasses."""
    kinds = classes_of(room)
    extended = {base for kind in kinds for base in kind.__mro__[1:]}
    return [kind for kind in kinds if kind not in extended and kind not in bases_of(room)]


def listed(room: str) -> str:
    """The text of a package's `__init__.py`: its docstring, its classes, and other exports."""
    text = file_of(room).read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = {(kind.__module__, kind.__name__) for kind in classes_of(room)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and exists(node.module):
            given = {alias.name: getattr(import_module(node.module), alias.name, None) for alias in node.names}
            others = {name for name, it in given.items() if it is not None and not is_of(room, it)}
            imports |= {(node.module, name) for name in others}
    lines = [f'"""{ast.get_docstring(tree, clean=False)}"""', ""]
    for module in sorted({module for module, _ in imports}):
        names = in_order(name for other, name in imports if other == module)
        lines += bracketed(f"from {module} import ", "()", names, always=False)
    quoted = [f'"{name}"' for name in in_order(name for _, name in imports)]
    return "\n".join([*lines, "", *bracketed("__all__ = ", "[]", quoted)]) + "\n"


def is_of(room: str, given: object) -> bool:
    return inspect.isclass(given) and issubclass(given, bases_of(room))


def bracketed(start: str, brackets: str, names: list[str], always: bool = True) -> list[str]:
    """A list in the format of ruff: on one line if it fits, else one line per name."""
    short = ", ".join(names)
    line = f"{start}{brackets[0]}{short}{brackets[1]}" if always else start + short
    if len(line) <= WIDTH:
        return [line]
    return [f"{start}{brackets[0]}", *(f"    {name}," for name in names), brackets[1]]


def exists(module: str) -> bool:
    return (SOURCES / (module.replace(".", "/") + ".py")).exists()


def file_of(room: str) -> Path:
    return SOURCES / room.replace(".", "/") / "__init__.py"


def in_order(names: Iterable[str]) -> list[str]:
    """In the order of ruff: constants, then classes, then the rest."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def doc(kind: Named) -> str:
    return inspect.getdoc(kind) or ""


def first_sentence(kind: Named) -> str:
    return " ".join(doc(kind).partition("\n\n")[0].split()).removesuffix(".")


def equation(kind: Named) -> str:
    """The indented lines after the first sentence."""
    paragraph = [*doc(kind).split("\n\n"), ""][1]
    if not paragraph.startswith("    "):
        return ""
    lines = re.split(r"\n| {4,}", re.sub(r"\n +\+ ", " + ", paragraph).strip())  # a continued sum is one line
    return "<br>".join(f"`{' '.join(line.split())}`" for line in lines if line)


def arguments(kind: Named) -> str:
    """The arguments, without those that the learner sets; angles with their unit."""
    named = []
    for name, argument in inspect.signature(kind).parameters.items():
        meaning = re.search(rf"^ +{name}: (.*)", doc(kind), re.M)
        unit = " (degrees)" if meaning and re.search(r"\bdegrees\b", meaning[1]) else ""
        supplied = name in SUPPLIED and argument.default is argument.empty
        if not supplied and name not in SHARED and argument.kind is argument.POSITIONAL_OR_KEYWORD:
            named.append(f"{name}{unit}")
    return ", ".join(named)


def said(kind: Named, what: str) -> str:
    """The text after `what:` in a docstring, up to the next such word or the end of the paragraph."""
    found = re.search(rf"(?:^|\. ){what}: (.*?)\.(?=\s+[A-Z]\w+: |\n\n|\Z)", doc(kind), re.M | re.S)
    if not found:
        raise SystemExit(f"{kind.__module__}.{kind.__name__}: its docstring has no line '{what}: ...'")
    return " ".join(found[1].split())


def papers(kind: Named) -> str:
    """Authors and years, each a link, without the titles."""
    links = []
    for paper in said(kind, "Papers?").split("; "):
        label = re.sub(r', "[^"]*"', "", paper)
        for address in re.findall(r"arXiv:[\d.]+\d|https://[^\s,]+", label):
            link = address.replace("arXiv:", "https://arxiv.org/abs/")
            label = re.sub(rf"((?:this form )?)([^;]+?\d{{4}}), {re.escape(address)}", rf"\1[\2]({link})", label)
        links.append(label)
    return "; ".join(links)


def year(kind: Named) -> int:
    return int(re.findall(r" (\d{4})\b", said(kind, "Papers?"))[0])


def explained(kind: Named) -> list[str]:
    """Name, sentence with equation, arguments."""
    what = "<br>".join(part for part in (first_sentence(kind), equation(kind)) if part)
    return [f"`{kind.__name__}`", what, arguments(kind)]


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    rule = ["---:" if name in ("classes", "samples") else "---" for name in columns]
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    return "\n".join(lines)


def losses(with_classes: bool) -> str:
    """Losses of pairs and triplets, or with class weights, in the order of years."""
    kinds = [kind for kind in shipped("levelfield.losses") if needs_classes(kind) == with_classes]
    return table(
        "loss | what it does | arguments | paper | cost | when",
        (
            [*explained(kind), papers(kind), said(kind, "Cost"), said(kind, "When")]
            for kind in sorted(kinds, key=lambda kind: (year(kind), kind.__name__))
        ),
    )


def needs_classes(kind: Named) -> bool:
    argument = inspect.signature(kind).parameters.get("num_classes")
    return argument is not None and argument.default is argument.empty


def miners() -> str:
    kinds = shipped("levelfield.miners")
    return table("miner | keeps | arguments | paper", ([*explained(kind), papers(kind)] for kind in kinds))


def regularizers() -> str:
    """Regularizers without the argument weight, which all have, in the order of years."""
    kinds = shipped("levelfield.regularizers")
    return table(
        "regularizer | what it does | arguments | paper | cost | when",
        (
            [*sentence, re.sub(r"^weight(, )?", "", given), papers(kind), said(kind, "Cost"), said(kind, "When")]
            for kind in sorted(kinds, key=lambda kind: (year(kind), kind.__name__))
            for *sentence, given in [explained(kind)]
        ),
    )


def embedders() -> str:
    kinds = [kind for kind in shipped("levelfield.models") if issubclass(kind, bases_of("levelfield.models")[1])]
    return table("class | what it does | arguments", map(explained, kinds))


def trunk_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each file in `configs/trunk/` with pretrained weights."""
    import yaml

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
            rows.append(
                [
                    *(f"`{name}`", f"`{given['name']}`", POOLING.get(given["pooling"], given["pooling"])),
                    *(f"`{given['prefix']}`" if "prefix" in given else "", str(given["max_length"])),
                ]
            )
    return table("`configs/trunk/` | model of transformers | pooling | prefix | tokens", rows)


def samplers() -> str:
    kinds = shipped("levelfield.data.samplers")
    return table("class | a batch has | when", ([*explained(kind)[:2], said(kind, "When")] for kind in kinds))


def datasets() -> str:
    named = [kind for kind in shipped("levelfield.data.datasets") if kind.num_classes_published is not None]
    return table(
        "name | classes | samples | splits | licence | to get it | tested here with",
        (
            [
                *(f"`{kind.name}`", f"{kind.num_classes_published:,}", f"{kind.num_samples_published:,}"),
                *(kind.splits, kind.licence, how_to_get(kind), said(kind, "Tested with")),
            ]
            for kind in sorted(named, key=lambda kind: (kind.modality, kind.name))
        ),
    )


def metrics() -> str:
    rows = import_module("levelfield.metrics.table").METRICS
    return table(
        "key | title | of a query, of clusters or of pairs | when | paper",
        (
            [f"`{row.key}`", row.title, *explained(row.score)[1:2], said(row.score, "When"), papers(row.score)]
            for row in rows
        ),
    )


def how_to_get(kind: Named) -> str:
    if not kind.archives:
        install = re.search(r"pip install '.*'", kind.source)
        return f"`{install[0]}`" if install else "installed"
    if any(not archive.url for archive in kind.archives):
        return "by hand, see below"
    return "`prepare`" if all(archive.sha256 for archive in kind.archives) else "`prepare`, unverified"


TABLES = {
    "docs/losses.md": {
        "losses of pairs": lambda: losses(with_classes=False),
        "losses with class weights": lambda: losses(with_classes=True),
        "regularizers": regularizers,
        "miners": miners,
    },
    "docs/datasets.md": {"data sets": datasets, "samplers": samplers},
    "docs/trunks.md": {
        "image trunks": image_trunks,
        "text trunks": text_trunks,
        "embedders": embedders,
    },
    "docs/metrics.md": {"metrics": metrics},
}


def page(name: str) -> str:
    """A page with new tables between their marks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for title, make in TABLES[name].items():
        before, mark, rest = text.partition(f"<!-- {title}: made by scripts/lists.py -->\n")
        _, end, after = rest.partition("<!-- -->")
        if not end:
            raise SystemExit(f"{name} has no mark for the table of {title}")
        text = f"{before}{mark}\n{make()}\n\n{end}{after}"
    return text


def changed() -> dict[Path, str]:
    """The files that are out of date, with their new content."""
    made = {file_of(room): listed(room) for room in ROOMS} | {ROOT / name: page(name) for name in TABLES}
    return {path: text for path, text in made.items() if path.read_text(encoding="utf-8") != text}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = changed()
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/lists.py")
        else:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCES))
    sys.exit(main())
