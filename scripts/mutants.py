"""Change one token of the source at a time and run its tests. A change that no test notices is a missing test.

    python scripts/mutants.py                                          # the rows of tests/mutations.txt
    python scripts/mutants.py --files src/levelfield/metrics/ranking.py --count 20 --minutes 10 --seed 1

Everything runs in a copy of the working tree; your files stay as they are. Exits with 1 if a change survives: write the
test, delete the dead code, or list the line in tests/mutations.txt as equivalent, with the reason.
"""

import ast
import glob
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import auto_cli

SOURCE = Path("src/levelfield")
OPTIONS = ("-x", "--timeout=300", "-mnot full and not gpu and not processes", "-Wignore:Module already imported")
PAIRS = [("min", "max"), ("any", "all"), ("minimum", "maximum"), (ast.And, ast.Or), (ast.Add, ast.Sub)]
PAIRS += [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
OPPOSITES = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
KEPT = ("annotation", "returns", "decorator_list", "exc", "strict", "device")  # tests on a CPU cannot hold them


def replacements(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Constant(value=bool(value) | int(value) | float(value)):
            return [ast.Constant(new) for new in ([not value] if isinstance(value, bool) else [value + 1, value - 1])]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return [operand]
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in OPPOSITES:
            return [ast.Name(ast.unparse(node).removesuffix(name) + OPPOSITES[name])]
        case ast.Call(func=func, args=args, keywords=words):
            return [ast.Call(func, args, [w for w in words if w != word]) for word in words if word.arg not in KEPT]
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Raise():
            return [ast.Pass()]
    return [OPPOSITES[type(node)]()] if type(node) in OPPOSITES else []


def mutations(source: str) -> Iterator[tuple[int, str, str, str]]:
    """The line of each change, its code before and after, and the whole changed code."""
    before = ast.unparse(tree := ast.parse(source)).splitlines()
    for node, line in (nodes := [(tree, 1)]):
        for name, value in ast.iter_fields(node):
            parts, keys = (value, range(len(value))) if isinstance(value, list) else (vars(node), [name])
            for key in keys if name not in KEPT else ():
                if isinstance(child := parts[key], ast.AST) and not isinstance(child, ast.JoinedStr):
                    nodes.append((child, here := getattr(child, "lineno", line)))
                    for parts[key] in replacements(child):
                        lines = zip(before, (text := ast.unparse(tree)).splitlines(), strict=True)
                        yield from ((here, old.strip(), new.strip(), text) for old, new in lines if old != new)
                    parts[key] = child


def changes(files: str, count: int, seed: int, tests: str) -> Iterator[tuple[str, str, int, str, str, str]]:
    """File, tests, line, code before and after, whole changed code; it is the same if a row does not fit."""
    rows = [line.split(" | ") for line in Path("tests/mutations.txt").read_text().splitlines() if line[:1].isalpha()]
    for file, old, new, own in (row for row in rows if row[3].startswith("tests/") and not files):
        before, *after = (SOURCE / file).read_text().split(old)
        yield file, own, before.count("\n") + 1, old, new, (new if len(after) == 1 else old).join([before, *after])
    for path in map(Path, files.split()):  # its tests: those of its rows, or those with its name, or its folder
        file = str(path.relative_to(SOURCE))
        words = [word for row in rows if row[0] == file for word in row[3].split() if word.startswith("tests/")]
        folder = next(each for each in Path("tests", file).parents if each.is_dir())
        own = tests or " ".join(dict.fromkeys(words or glob.glob(f"{folder}/test_*{path.stem}*.py"))) or str(folder)
        equivalent = {(old, new) for name, old, new, why in rows if name == file and why.startswith("equivalent: ")}
        found = [each for each in mutations(path.read_text()) if not equivalent & {each[1:3], (each[1], "*")}]
        yield from ((file, own, *each) for each in random.Random(seed).sample(found, min(count, len(found))))


def passes(file: Path, text: str, tests: str) -> bool:
    """Whether the tests pass if a file has another text, in a child of this process, which has imported torch."""
    kept = file.rename("kept.py")
    file.write_text(text)
    os.utime(file, (0, random.randrange(2**31)))  # or Python takes it for its last text of the same second and size
    if (child := os.fork()) == 0:
        try:
            with open("output.txt", "w", buffering=1) as sys.stdout:
                words = [*OPTIONS, *(name for word in tests.split() for name in glob.glob(word) or [word])]
                slow = type("", (), {"pytest_itemcollected": lambda self, item: item.add_marker("slow")})  # no limit
                os._exit(pytest.main(words, plugins=[slow()]))
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    kept.rename(file)
    return status == 0


def main(*, files: str = "", count: int = 20, minutes: float = 60.0, seed: int = 0, tests: str = "") -> bool:
    """Try the rows of tests/mutations.txt, or random changes of files; none begins after these minutes."""
    with tempfile.TemporaryDirectory() as folder:
        copy = f"git ls-files -coz --exclude-standard | tar -c --null -T - | tar -x -C {folder}"
        subprocess.run(copy, shell=True, check=True, cwd=Path(__file__).parents[1])
        os.chdir(folder)
        sys.path.insert(0, os.path.abspath("src"))
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": sys.path[0]}
        import lightning.pytorch  # noqa: F401 # once for all children

        until, survived, todo = time.monotonic() + 60 * minutes, [], list(changes(files, count, seed, tests))
        for place, (file, own, line, old, new, text) in enumerate(todo):
            if time.monotonic() > until:
                break
            same = ast.unparse(ast.parse((SOURCE / file).read_text()))
            if (file, own) not in {each[:2] for each in todo[:place]} and not passes(SOURCE / file, same, own):
                sys.exit(f"without a change these fail: {own}\n{Path('output.txt').read_text()[-3000:]}")
            survived.append(passes(SOURCE / file, text, own))
            print("SURVIVED" if survived[-1] else "killed  ", f"{file}:{line} | {old} | {new} | {own}", flush=True)
    print(f"{sum(survived)} of {len(survived)} changes survived; no time for {len(todo) - len(survived)}")
    return any(survived)


if __name__ == "__main__":
    sys.exit(auto_cli(main))
