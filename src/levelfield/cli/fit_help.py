"""The help of `levelfield fit`, read from the sources of learner and datamodule: nothing is imported."""

import ast
import re
import textwrap
from pathlib import Path

from levelfield.core.configuration import PACKAGE

HEAD = """\
usage: levelfield fit [--config FILE ...] [--KEY VALUE ...]

  --config FILE          a YAML file; several stack, the later one wins, options win over files
  --print_config         prints the resulting configuration and exits
  --name NAME            folder of this fit (default: <data set>-<loss>)
  --output DIR           folder that everything is written to (default: outputs)
  --resume               continue the newest fit of these settings at its last whole epoch, if it was stopped
  --seed_everything N    seed of weights, batches and augmentation (default 0)
  --ckpt_path FILE       a checkpoint whose weights a new fit starts from
"""
TAIL = """\
A class takes its arguments behind its key: --model.loss ArcFaceLoss --model.loss.margin 20
A learner of your own: --model my_learner.MyLearner (docs/own_learner.md)
trainer: any argument of Lightning's Trainer, e.g. --trainer.max_epochs 5 --trainer.devices 2;
  --print_config lists them, and the default trunk
"""
SECTIONS = {
    "model": ("trunk -> embedder -> loss", "training/learner.py", "MetricLearner"),
    "data": (
        "M-per-class batches of the training classes, a held-out fold for validation",
        "data/datamodule.py",
        "MetricDataModule",
    ),
}
# Where the classes of a key are, and the one that they extend.
CLASSES = {
    "model.loss": ("losses", "MetricLoss"),
    "model.trunk": ("models", "Trunk"),
    "model.embedder": ("models", "Embedder"),
    "model.trunk.adapter": ("models", "LoRA"),
    "model.miner": ("miners", "Miner"),
    "model.regularizer": ("regularizers", "Regularizer"),
    "data.dataset": ("data/datasets", "MetricDataset"),
    "data.sampler": ("data/samplers", "TrainingBatchSampler"),
}


def fit_help() -> str:
    """What a training is made of: model and data, a line or two for each option."""
    lines = [HEAD]
    for section, (title, file, name) in SECTIONS.items():
        lines.append(f"{section}: {title}")
        for key, default, text in _arguments(PACKAGE / file, name):
            if f"{section}.{key}" in CLASSES:
                text += f" One of: {', '.join(_classes(*CLASSES[f'{section}.{key}']))}."
            lines.append(f"  --{section}.{key}{default}")
            lines += [f"      {line}" for line in textwrap.wrap(text, width=112)]
        lines.append("")
    return "\n".join([*lines, TAIL])


def _arguments(file: Path, name: str) -> list[tuple[str, str, str]]:
    """Name, default and text of each argument of a class."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kind = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    init = next(node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    section = re.search(r"^Args:\n(.*?)\n\n", ast.get_docstring(kind) or "", re.DOTALL | re.MULTILINE)
    texts = dict(re.findall(r"^    (\w+): (.*(?:\n      .*)*)", section[1] if section else "", re.MULTILINE))
    names = [argument.arg for argument in init.args.args[1:]]
    defaults = dict(zip(reversed(names), map(ast.unparse, reversed(init.args.defaults)), strict=False))
    shown = {key: f" (default {value.strip(chr(39))})" for key, value in defaults.items() if value != "None"}
    return [(key, shown.get(key, ""), " ".join(texts.get(key, "").split())) for key in names if key != "seed"]


def _classes(folder: str, base: str) -> list[str]:
    """The public classes of a package that extend its base, and that no other class there extends."""
    trees = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in sorted((PACKAGE / folder).glob("*.py"))}
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
    public = {alias.name for node in trees["__init__"].body if isinstance(node, ast.ImportFrom) for alias in node.names}
    extended = set().union(*bases.values())
    return [name for name in bases if name in below & public and name not in extended]
