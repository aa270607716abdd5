"""`levelfield init my_project`: a small project of your own, with levelfield as a dependency."""

import keyword
import re
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from levelfield.core.configuration import SHIPPED
from levelfield.core.errors import UserError
from levelfield.core.terminal import say

NAME = "my_project"  # the files are a working project of this name
TEMPLATE = SHIPPED.parent / "templates" / NAME


def main(given: Namespace) -> int:
    """Run `levelfield init`; return the exit code."""
    folder = Path(given.name)
    name = folder.absolute().name
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise UserError(f"init '{name}': no name of a package; give lower-case letters, digits and _, such as {NAME}")
    module = find_spec(name)
    if (module and module.origin) or name in {file.stem for file in TEMPLATE.iterdir()}:
        raise UserError(f"init '{name}': another module has this name; give another one")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give another name, or remove what is in it")
    files = [file for file in TEMPLATE.rglob("*") if file.is_file() and "cache" not in str(file.relative_to(TEMPLATE))]
    for file in files:
        target = folder / str(file.relative_to(TEMPLATE)).replace(NAME, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8").replace(NAME, name), encoding="utf-8")
    say(
        f"{folder}: {len(files)} files, and all of them are yours; levelfield stays a dependency",
        f"cd {folder} && pip install --editable '.[dev]', then: python train.py, and: pytest",
        f"{folder / 'README.md'} says what each file is; all parts that you can write: docs/own_parts.md",
    )
    return 0
