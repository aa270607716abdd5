"""Change one token of the source at a time and run its tests. A change that no test notices is a missing test.

    python scripts/mutants.py                                          # the rows of tests/mutations.txt
    python scripts/mutants.py src/levelfield/metrics/ranking.py --count 20 --minutes 10 --seed 1
    python scripts/mutants.py src/levelfield/study/seal.py --tests tests/study/test_study_seal.py

Everything runs in a copy of the working tree; your files stay as they are. Exits with 1 if a change survives: write the
test, delete the dead code, or list the line in tests/mutations.txt as equivalent, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import glob
import importlib.util
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = Path("tests/mutations.txt")
SOURCE = Path("src/levelfield")
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
# Arguments without which a correct program does the same on a CPU.
ALIKE = ("strict", "device")
# Tests of a file are those with its name in theirs, in the folder of its package, or else all of that folder. And:
TESTS = {
    "metrics/ranking.py": ["test_retrieval*.py", "test_query_scores*.py"],
    "analysis/comparison.py": ["test_*comparison*.py", "test_*verdict*.py", "test_conclusion*.py"],
}
OUTPUT = "output.txt"
FORK = multiprocessing.get_context("fork")
OPTIONS = ("-x", "-m", "not full and not gpu and not processes", "-p", "no:cacheprovider")
OPTIONS += ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


class Unhurried:
    """A test may compute for longer than in `make test`: time on a busy machine kills no change."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        item.add_marker("slow")


class Mutation(NamedTuple):
    """The lines of one change, before and after it, and the whole text of the changed file."""

    file: str
    line: int
    old: str
    new: str
    text: str


def mutations(file: str, source: str) -> Iterator[Mutation]:
    """All mutations of a file; strings, type annotations and the texts of errors stay."""
    content = source.encode()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, changed in _changes(ast.parse(source)):
        first, last = starts[node.lineno - 1], starts[node.end_lineno]
        begin, end = first + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        lines = content[first:begin] + ast.unparse(changed).encode() + content[end:last]
        old, new = (" ".join(part.decode().split()) for part in (content[first:last], lines))
        yield Mutation(file, node.lineno, old, new, (content[:first] + lines + content[last:]).decode())


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    yield from ((node, changed) for changed in _changed(node))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or (isinstance(node, ast.Raise) and name == "exc"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare):
        for place, operator in enumerate(new.ops):
            if type(operator) in OPERATORS:
                yield ast.Compare(
                    new.left, [*new.ops[:place], OPERATORS[type(operator)](), *new.ops[place + 1 :]], new.comparators
                )
    elif isinstance(new, (ast.BinOp, ast.BoolOp)) and type(new.op) in OPERATORS:
        new.op = OPERATORS[type(new.op)]()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, (ast.Not, ast.USub)):
        yield new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield ast.Constant(not new.value)
    elif isinstance(new, ast.Constant) and isinstance(new.value, (int, float)):
        yield from (ast.Constant(new.value + step) for step in (1, -1))
    elif isinstance(new, ast.Name) and new.id in NAMES:
        yield ast.Name(NAMES[new.id])
    elif isinstance(new, ast.Call):
        for place in (n for n, each in enumerate(new.keywords) if each.arg not in ALIKE):
            yield ast.Call(new.func, new.args, [*new.keywords[:place], *new.keywords[place + 1 :]])
        if isinstance(new.func, ast.Attribute) and new.func.attr in NAMES:
            yield ast.Call(ast.Attribute(new.func.value, NAMES[new.func.attr]), new.args, new.keywords)
    elif (
        isinstance(new, (ast.Raise, ast.Break, ast.Continue, ast.AugAssign))
        or (isinstance(new, ast.Expr) and not isinstance(new.value, ast.Constant))
        or (isinstance(new, ast.Assign) and not isinstance(new.targets[0], (ast.Name, ast.Tuple)))
    ):
        yield ast.Pass()


def rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows `file | old | new | tests` of tests/mutations.txt."""
    for line in (REPOSITORY / ROWS).read_text().splitlines():
        if line and not line.startswith("#"):
            file, old, new, tests = line.split(" | ")
            yield file, old, new, tests


def tests_of(file: str) -> str:
    """The tests of a source file."""
    folder = Path("tests", Path(file).parent)
    while not (REPOSITORY / folder).is_dir():
        folder = folder.parent
    return " ".join(str(folder / pattern) for pattern in TESTS.get(file, [f"test_*{Path(file).stem}*.py"]))


def found(word: str) -> list[str]:
    """The test files of a pattern, or their folder if there is none; another word as it is."""
    return (sorted(glob.glob(word)) or [str(Path(word).parent)]) if "*" in word else [word]


def passes(folder: Path, tests: str, seconds: float | None = None) -> bool:
    """Whether tests pass, in a child of this process, which has imported torch; not if they take too long."""
    child = FORK.Process(target=_run, args=(folder, tests))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    return child.exitcode == 0


def _run(folder: Path, tests: str) -> None:
    os.setsid()
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder)]
    with open(OUTPUT, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    words = [word for each in shlex.split(tests) for word in found(each)]
    sys.exit(pytest.main([*OPTIONS, *words], plugins=[Unhurried()]))


class Copy:
    """A copy of the working tree, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seconds: dict[str, float] = {}
        names = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY, text=True)
        for name in filter(os.path.isfile, (REPOSITORY / each for each in names.split("\0") if each)):
            place = folder / name.relative_to(REPOSITORY)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, place)

    def survives(self, file: str, text: str, tests: str) -> bool:
        """Whether the tests pass although a file has another text."""
        if tests not in self._seconds:
            begin = time.monotonic()
            if not passes(self.folder, tests):
                sys.exit(f"without a change these fail: {tests}\n{(self.folder / OUTPUT).read_text()[-3000:]}")
            self._seconds[tests] = time.monotonic() - begin
        before = (self.folder / SOURCE / file).read_text()
        self._write(file, text)
        try:
            return passes(self.folder, tests, 60 + 5 * self._seconds[tests])
        finally:
            self._write(file, before)

    def _write(self, file: str, text: str) -> None:
        path = self.folder / SOURCE / file
        path.write_text(text)
        # Python takes a file of the same second and size for the same file.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[Mutation, str]]:
    """The mutations to try, with their tests."""
    equivalent = {row[:3] for row in rows() if row[3].startswith("equivalent: ")}
    for path in arguments.files:
        file = str(path.resolve().relative_to(REPOSITORY / SOURCE))
        every = list(mutations(file, path.read_text()))
        random.Random(arguments.seed).shuffle(every)
        every = [each for each in every if equivalent.isdisjoint({(file, each.old, "*"), (file, each.old, each.new)})]
        yield from ((each, arguments.tests or tests_of(file)) for each in every[: arguments.count])
    for file, old, new, tests in () if arguments.files else rows():
        if not tests.startswith("equivalent: "):
            before, found_old, after = (REPOSITORY / SOURCE / file).read_text().partition(old)
            once = found_old and old not in after
            yield Mutation(file, before.count("\n") + 1, old, new, before + new + after if once else ""), tests


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="source files; none: the rows of tests/mutations.txt")
    parser.add_argument("--tests", default="", help="the tests to run, as for pytest")
    parser.add_argument("--count", type=int, default=20, help="random changes for each file")
    parser.add_argument("--minutes", type=float, default=60.0, help="none begins later")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    until, survivors, left = time.monotonic() + 60 * arguments.minutes, 0, 0
    todo = list(chosen(arguments))
    os.environ["OMP_NUM_THREADS"] = "1"
    import lightning.pytorch  # noqa: F401 # once for all children

    with tempfile.TemporaryDirectory() as folder:
        tree = Copy(Path(folder).resolve())
        os.environ["PYTHONPATH"] = str(tree.folder / "src")  # of processes that tests start
        for mutation, tests in todo:
            if time.monotonic() > until:
                left += 1
                continue
            survived = not mutation.text or tree.survives(mutation.file, mutation.text, tests)
            survivors += survived
            word = "SURVIVED" if mutation.text and survived else "NOT ONCE" if survived else "killed  "
            print(f"{word} {mutation.file}:{mutation.line} | {mutation.old} | {mutation.new} | {tests}", flush=True)
    print(f"{survivors} of {len(todo) - left} changes survived" + f"; no time for {left}" * bool(left))
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
