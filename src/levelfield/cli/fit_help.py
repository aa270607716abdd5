"""The help of `levelfield fit`, from the source of learner and datamodule, without importing them."""

import ast
import re
import textwrap
from pathlib import Path

from levelfield.core.configuration import PACKAGE

HEAD = """\
usage: levelfield fit [--config FILE ...] [--KEY VALUE ...]

Trains one method on one fold and keeps the best checkpoint.

  --config FILE          YAML file; repeatable: later files win, options win over files
  --print_config         print the resulting configuration and exit
  --name NAME            folder of this fit (default: <data set>-<loss>)
  --output DIR           folder for all output (default: outputs)
  --resume               continue the newest stopped fit with these settings
  --seed_everything N    seed of weights, batches and augmentation (default: 0)
  --ckpt_path FILE       checkpoint with the initial weights of a new fit
"""
TAIL = """\
Arguments of a class: --model.loss ArcFaceLoss --model.loss.margin 20
A learner of your own: --model my_learner.MyLearner (docs/own_parts.md)
trainer: any argument of Lightning's Trainer, e.g. --trainer.max_epochs 5 --trainer.devices 2
Callbacks: --trainer.callbacks+ GradientCheckpointing   recompute activations to save memory; one extra forward pass
           --trainer.callbacks+ GradientCaching --trainer.callbacks.chunk_size 64   batches that exceed memory
All settings with their defaults: --print_config
"""
SECTIONS = (
    ("model", "trunk -> embedder -> loss", "training/learner.py", "MetricLearner"),
    ("model", "optimizer and learning rates", "training/optimization.py", "Optimization"),
    ("data", "batches of M samples per class, and a held-out fold", "data/datamodule.py", "MetricDataModule"),
)
INDENT = 32
# Key to the package of its classes and their base class.
CLASSES = {
    "model.loss": ("losses", "MetricLoss"),
    "model.trunk": ("models", "Trunk"),
    "model.embedder": ("models", "Embedder"),
    "model.trunk.adapter": ("models", "LoRA"),
    "model.miner": ("miners", "Miner"),
    "model.regularizer": ("regularizers", "Regularizer"),
    "data.dataset": ("data/datasets", "MetricDataset"),
    "data.sampler": ("data/samplers.py", "TrainingBatchSampler"),
}


def fit_help() -> str:
    """The options of `levelfield fit`, each with the first sentence of its description."""
    lines = [HEAD]
    for section, title, file, name in SECTIONS:
        lines.append(f"{section}: {title}")
        for key, default, text in _arguments(PACKAGE / file, name):
            lines += _columns(f"--{section}.{key}", text + default)
            if f"{section}.{key}" in CLASSES:
                lines += _columns("", ", ".join(_classes(*CLASSES[f"{section}.{key}"])))
        lines.append("")
    return "\n".join([*lines, TAIL])


def _columns(option: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, width=120 - INDENT)
    return [f"  {option if not row else '':<{INDENT - 2}}{line}" for row, line in enumerate(wrapped)]


def _arguments(file: Path, name: str) -> list[tuple[str, str, str]]:
    """Name, default and description of each argument of a class."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kind = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    section = re.search(r"^Args:\n(.*?)\n\n", ast.get_docstring(kind) or "", re.DOTALL | re.MULTILINE)
    texts = dict(re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section[1] if section else "", re.MULTILINE))
    defaults: dict[str, ast.expr | None] = {}
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):  # a field of a dataclass
            defaults[node.target.id] = node.value
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args[1:]]
            defaults = dict.fromkeys(names, None) | dict(zip(names[::-1], node.args.defaults[::-1], strict=False))
    described = [key for key in defaults if key in texts and key != "seed"]
    return [(key, _default(defaults[key]), _first_sentence(texts[key])) for key in described]


def _default(value: ast.expr | None) -> str:
    shown = "None" if value is None else ast.unparse(value).strip("'")
    return "" if shown == "None" else f" (default: {shown.lower() if shown in ('True', 'False') else shown})"


def _first_sentence(text: str) -> str:
    return re.split(r"\.(?: |$)", " ".join(text.split()))[0]


def _classes(place: str, base: str) -> list[str]:
    """The public classes of a package or file that extend its base, without those that have subclasses there."""
    files = sorted((PACKAGE / place).glob("*.py")) or [PACKAGE / place]
    trees = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    bases = {
        node.name: {ast.unparse(each) for each in node.bases}
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    below, size = {base}, 0
    while size != len(below):
        size = len(below)
        below |= {name for name, above in bases.items() if above & below}
    listed = trees["__init__"].body if "__init__" in trees else []
    public = {alias.name for node in listed if isinstance(node, ast.ImportFrom) for alias in node.names} or set(bases)
    extended = set().union(*bases.values())
    return [name for name in bases if name in below & public and name not in extended]
