"""Checks tests/capabilities.md: the test of each sentence of the README, and of each command and option of the pages.

python scripts/capabilities.py            a line for each fault
python scripts/capabilities.py --check    also exits with 1 if there is one
"""

import ast
import re
import sys

from words import ROOT, commands, prose, sentences

TABLE = "tests/capabilities.md"
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "results/README.md", "papers/**/README.md", "examples/*.py")
COMMAND = re.compile(r"(?:levelfield (?:(?:study|data) )?|make |python papers |(?:python|sbatch.*?) \w+/)\w[\w.-]*")
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z](?:[\w.-]*\w)?")


def plain(text: str) -> str:
    """A sentence without Markdown's marks, in one line."""
    return " ".join(re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]|\\(?=\|)", r"\1", text).split())


def claims() -> list[str]:
    """The headings, sentences and table rows of the README, and what the pages show in code."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = [sentence for paragraph in prose(readme) for sentence in sentences(plain(paragraph))]
    found += [plain(row.replace(" | ", " · ")) for row in re.findall(r"^\| (?!---)(.*) \|$(?!\n\| ---)", readme, re.M)]
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        text = path.read_text(encoding="utf-8")
        shown = [match[0] for line in commands(text) if (match := COMMAND.match(line.removeprefix(".venv/bin/")))]
        found += [re.sub(r"^sbatch .* ", "sbatch ", command) for command in shown] + OPTION.findall(text)
    return list(dict.fromkeys(found))


def tests(file: str) -> set[str]:
    """The names of the test functions of a file."""
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "").body
    return {each.name for each in body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")}


def faults() -> list[str]:
    rows = re.findall(r"^\| (?!claim |---)(.*) \| (.*) \|$", (ROOT / TABLE).read_text(encoding="utf-8"), re.M)
    known, made, found = {}, claims(), []
    for claim, held in rows:
        found += [f"on no page: {claim}"] * (plain(claim) not in made)
        for test in [] if re.match(r"none: \w", held) else held.split(", "):
            file, _, name = test.partition("::")
            known[file] = known.get(file) or tests(file)
            found += [f"no such test: {test}, of: {claim}"] * (name not in known[file])
    named = [plain(claim) for claim, _ in rows]
    return found + [f"no row: {claim}" for claim in made if claim not in named]


if __name__ == "__main__":
    for problem in (problems := faults()):
        print(f"{TABLE}: {problem}")
    sys.exit("--check" in sys.argv[1:] and bool(problems))
