"""What the README shows works as it stands, its numbers are those of the kept tables, and it stays short."""

import csv
import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from deletable import is_deleted, needs
from PIL import Image
from tiny_fit import REPOSITORY
from wandb_files import offline_runs

README = (REPOSITORY / "README.md").read_text()
RESULTS = REPOSITORY / "results"
MOST_WORDS = 450
SHELL, PYTHON = (re.findall(rf"^```{kind}\n(.*?)^```", README, re.M | re.S) for kind in ("bash", "python"))
COMMANDS = [shlex.split(line, comments=True) for line in SHELL[0].splitlines()]
TINY = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
SMALL = ("--folds", "2", "--runs", "1", "--data.steps_per_epoch", "1", "--trainer.max_epochs", "1")


@pytest.fixture
def my_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, which the README's commands name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in range(64):
        file = tmp_path / f"my_images/class_{number % 16:02d}/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number % 16 * 16, number, 99)).save(file)
    return tmp_path / "my_images"


def rows(summary: Path, metric: str = "map_at_r") -> dict[str, float]:
    """A separated test score of each method, percent."""
    with open(summary, newline="") as text:
        lines = [line for line in csv.DictReader(text) if line["embedding"] == "separated"]
    return {line["method"]: 100 * float(line["mean"]) for line in lines if line["metric"] == metric}


def typed(begins: str) -> list[str]:
    """The command in the table "you have, run, you get" that begins so, or with `levelfield` and so."""
    (found,) = re.findall(rf"^\|[^|]*\| `((?:levelfield )?{begins} [^`]*)` \|", README, re.M)
    return shlex.split(found)


def test_it_is_short() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|[^\n]*$", "", README, flags=re.M | re.S)
    assert len(prose.split()) <= MOST_WORDS


def test_the_first_screen_has_its_sentence_commands_and_a_picture_before_the_first_section() -> None:
    first = README.partition("\n## ")[0]
    parts = (
        "**Train image or text embeddings",
        SHELL[0],
        "| you have | run | you get |",
        "](docs/neighbours_groceries.jpg)",
    )
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert len(first.splitlines()) <= 40
    assert [" ".join(words) for words in COMMANDS] == [
        "git clone ADDRESS levelfield && cd levelfield",
        "make quickstart && source .venv/bin/activate",
    ]
    assert len([line for line in PYTHON[0].splitlines() if line]) == 12


def test_what_it_names_is_there() -> None:
    for link in re.findall(r"\]\((?!https:)([^)#]+)", README):
        assert (REPOSITORY / link).is_file() or is_deleted(link), link
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (line,) = [line for line in SHELL[1].splitlines() if "[" in line]
    named = re.findall(r"\w+", line.partition("[")[2].partition("]")[0] + line.partition("also")[2])
    assert len(named) > 5
    assert set(named) <= set(extras)
    assert "make test" in SHELL[1]


@needs("results")
def test_what_training_brings_is_in_the_kept_studies() -> None:
    table = re.findall(r"^\| \[.*?\]\((results/(\w+)/summary\.csv)\).*?\| (.*?) \| (.*?) \| (\d+) \|$", README, re.M)
    assert len(table) == 6
    for file, study, untrained, trained, _ in table:
        means, first = rows(REPOSITORY / file), rows(REPOSITORY / file, "precision_at_1")
        row = chosen(study) if study.startswith("compare") else "good" if study.startswith("averaging") else "ntxent"
        for cell, name in ((untrained, "pretrained[features]"), (trained, row)):
            assert cell == f"{means[name]:.1f} ({first[name]:.1f})", (study, name)


def chosen(study: str) -> str:
    """The row with the best mean over the validation folds, the first of equal ones."""
    scores: dict[str, list[float]] = {}
    with tarfile.open(RESULTS / study / "archive.tar.xz") as archive:
        for row in csv.DictReader(io.TextIOWrapper(archive.extractfile("results.csv"), newline="")):
            if (row["stage"], row["metric"]) == ("run", "map_at_r"):
                scores.setdefault(row["method"], []).append(float(row["value"]))
    return max(scores, key=lambda method: fmean(scores[method]))


@needs("results")
def test_its_warnings_are_those_of_the_kept_tables() -> None:
    names = ("grocery_store", "banking77", "glyphs", "clinc150", "typefaces", "news20", "omniglot")
    features = {name: rows(RESULTS / name / "summary.csv")["pretrained[features]"] for name in names}
    fourteen = [method for method in rows(RESULTS / "glyphs_pca/summary.csv") if not method.startswith("pretrained")]
    assert len(fourteen) == 14
    prose = " ".join(README.split())
    for start, words in (("_pca", "best of 14 losses on {} of 7 data sets"), ("", "from random weights on {}.")):
        best = {name: rows(RESULTS / f"{name}{start}/summary.csv") for name in names}
        won = [name for name in names if features[name] > max(best[name][method] for method in fourteen)]
        assert words.format(len(won)) in prose
    counted = re.search(r"together \| (\d+) \| \d+ \| \**(\d+)", (RESULTS / "self_comparisons.md").read_text())
    assert counted is not None
    assert f"different from itself in {counted[2]} of {counted[1]} cases" in prose


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.processes
def test_make_quickstart_after_its_installation(tmp_path: Path, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["make", "--no-print-directory", "-n", "-o", ".venv/installed", "quickstart"]
    recipe = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    study, picture, _ = (shlex.split(line) for line in recipe.splitlines())
    assert [study[0], picture[0]] == [".venv/bin/levelfield", ".venv/bin/python"]
    monkeypatch.chdir(tmp_path)
    code, _, complaint = run(*study[1:], *SMALL)
    assert code == 0, complaint
    subprocess.run([sys.executable, REPOSITORY / picture[1], *picture[2:]], check=True, stdout=subprocess.DEVNULL)
    assert len(rows(tmp_path / "outputs/quickstart/summary.csv")) == 4 + 3
    with Image.open("outputs/neighbours.png") as drawn:
        assert drawn.width > 1200


@pytest.mark.slow
def test_compare(my_images: Path, run: Callable) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump({"model": {"trunk": TINY}}))
    few = ("--trunk", "tiny.yaml", "--data.transforms.crop_size", "32", "--data.steps_per_epoch", "1")
    code, _, complaint = run(*typed("compare")[1:], *few)
    assert code == 0, complaint
    found = rows(my_images.parent / "outputs/compare_my_images/summary.csv")
    assert {"pretrained[features]", "head_ntxent", "trunk_ntxent", "trunk_ntxent_averaged"} < set(found)


@pytest.mark.slow
def test_a_loss_of_ones_own_beside_the_quickstart_s(my_images: Path, run: Callable) -> None:
    page = (REPOSITORY / "docs/tutorial_add_a_loss.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in source.splitlines() if line.strip()]) == 10
    Path("examples").symlink_to(REPOSITORY / "examples")
    copy, add = " ".join(typed("cp")).split(" && ")
    subprocess.run(shlex.split(copy), check=True)
    assert Path("my_loss.py").read_text().endswith(f'"""\n\n{source}')
    code, _, complaint = run(*shlex.split(add)[1:], *SMALL, "--data.dataset.num_classes", "48")
    assert code == 0, complaint
    assert len(rows(my_images.parent / "outputs/quickstart/summary.csv")) == 4 + 3 + 1


@pytest.mark.slow
@pytest.mark.processes
def test_the_twelve_lines_train_and_log(my_images: Path) -> None:
    """As they are; the environment makes the epochs short, and keeps W&B offline."""
    short = {"PL_TRAINER_LIMIT_TRAIN_BATCHES": "1", "PL_TRAINER_LOG_EVERY_N_STEPS": "1", "WANDB_MODE": "offline"}
    Path("train.py").write_text(PYTHON[0])
    mine = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}  # of earlier tests
    done = subprocess.run([sys.executable, "train.py"], env=mine | short, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    file, score = re.search(r"^(.*\.ckpt): validation MAP@R (\S+)$", done.stdout, re.M).groups()
    assert Path(file).is_file()
    assert 0 < float(score) <= 1
    (logged,) = offline_runs(my_images.parent / "wandb")
    assert len(logged.series("val/map_at_r")) == 10
    assert len(logged.series("train/loss")) == 10
