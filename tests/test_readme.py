"""What the README shows works as it stands, its numbers are those of the kept tables, and it stays short."""

import csv
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from deletable import is_deleted, needs
from PIL import Image
from tiny_fit import REPOSITORY
from wandb_files import offline_runs

README = (REPOSITORY / "README.md").read_text()
RESULTS = REPOSITORY / "results"
MOST_WORDS = 400
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


def rows(summary: Path) -> dict[str, float]:
    """Separated test MAP@R of each method, percent."""
    with open(summary, newline="") as text:
        lines = [line for line in csv.DictReader(text) if line["embedding"] == "separated"]
    return {line["method"]: 100 * float(line["mean"]) for line in lines if line["metric"] == "map_at_r"}


def test_it_is_short() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|[^\n]*$", "", README, flags=re.M | re.S)
    assert len(prose.split()) <= MOST_WORDS


def test_the_first_screen_has_a_question_its_commands_twelve_lines_and_a_picture() -> None:
    first = README.partition("\n## ")[0]
    parts = ("**Is your new metric loss better, and by how much?**", SHELL[0], PYTHON[0], "](docs/neighbours.png)")
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert [" ".join(words) for words in COMMANDS] == [
        "make quickstart",
        "source .venv/bin/activate",
        "levelfield compare my_images/",
        "cp examples/my_loss.py .",
        "levelfield study run quickstart --add-method my_loss.MyLoss",
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
def test_its_claims_are_those_of_the_kept_tables() -> None:
    names = ("grocery_store", "banking77", "glyphs", "clinc150", "typefaces", "news20", "omniglot")
    table = [row.split("|")[2:-1] for row in README.splitlines() if re.match(r"\| .* `\w+` \|$", row)]
    assert len(table) == len(names)
    ahead = {name: rows(RESULTS / name / "summary.csv") for name in names}
    fourteen = [method for method in rows(RESULTS / "glyphs_pca/summary.csv") if not method.startswith("pretrained")]
    assert len(fourteen) == 14
    for (*untrained, best), scores in zip(table, ahead.values(), strict=True):
        wanted = [f"{scores[f'pretrained{of}']:.1f}" for of in ("[features]", "", "[lda]")]
        assert [cell.strip() for cell in untrained] == wanted
        loss = max(fourteen, key=lambda each: scores[each])
        assert (best.split()[0], best.split()[-1]) == (f"{scores[loss]:.1f}", f"`{loss}`")
    prose = " ".join(README.split())
    best_of = {name: max(scores[method] for method in fourteen) for name, scores in ahead.items()}
    from_pca = {name: rows(RESULTS / f"{name}_pca/summary.csv") for name in names}
    features = {name: scores["pretrained[features]"] for name, scores in ahead.items()}
    won = [name for name in names if features[name] > max(from_pca[name][method] for method in fourteen)]
    assert f"beat the best of 14 losses in MAP@R on {len(won)} of 7 data sets. The losses trained one linear" in prose
    won = [name for name in names if features[name] > best_of[name]]
    assert f"From random weights it is {len(won)} of 7, and" in prose
    lda = [name for name in names if max(features[name], ahead[name]["pretrained[lda]"]) > best_of[name]]
    assert f"with LDA an untrained row wins on {len(lda)}." in prose


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.processes
def test_make_quickstart_after_its_installation(tmp_path: Path, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["make", "--no-print-directory", "-n", "-o", ".venv/installed", "quickstart"]
    recipe = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    study, picture, _ = (shlex.split(line) for line in recipe.replace("\\\n", " ").splitlines())
    assert [study[0], picture[0]] == [".venv/bin/levelfield", ".venv/bin/python"]
    monkeypatch.chdir(tmp_path)
    code, _, complaint = run(*study[1:], *SMALL)
    assert code == 0, complaint
    subprocess.run([sys.executable, REPOSITORY / picture[1], *picture[2:]], check=True, stdout=subprocess.DEVNULL)
    assert len(rows(tmp_path / "outputs/quickstart/summary.csv")) == 5 + 4
    with Image.open("outputs/quickstart_neighbours.png") as drawn:
        assert drawn.width == 1200


@pytest.mark.slow
def test_compare(my_images: Path, run: Callable) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump({"model": {"trunk": TINY}}))
    few = ("--trunk", "tiny.yaml", "--data.transforms.crop_size", "32", "--data.steps_per_epoch", "1")
    code, _, complaint = run(*COMMANDS[2][1:], *few)
    assert code == 0, complaint
    found = rows(my_images.parent / "outputs/compare_my_images/summary.csv")
    assert {"pretrained[features]", "head_ntxent", "trunk_ntxent", "trunk_ntxent_averaged"} < set(found)


@pytest.mark.slow
def test_a_loss_of_ones_own_beside_the_quickstart_s(my_images: Path, run: Callable) -> None:
    page = (REPOSITORY / "docs/tutorial_add_a_loss.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in source.splitlines() if line.strip()]) == 10
    Path("examples").symlink_to(REPOSITORY / "examples")
    subprocess.run(COMMANDS[3], check=True)
    assert Path("my_loss.py").read_text().endswith(f'"""\n\n{source}')
    code, _, complaint = run(*COMMANDS[4][1:], *SMALL, "--data.dataset.num_classes", "48")
    assert code == 0, complaint
    assert len(rows(my_images.parent / "outputs/quickstart/summary.csv")) == 5 + 4 + 1


@pytest.mark.slow
@pytest.mark.processes
def test_the_twelve_lines_train_and_log(my_images: Path) -> None:
    """As they are; the environment makes the epochs short, and keeps W&B offline."""
    short = {"PL_TRAINER_LIMIT_TRAIN_BATCHES": "1", "PL_TRAINER_LOG_EVERY_N_STEPS": "1", "WANDB_MODE": "offline"}
    Path("train.py").write_text(PYTHON[0])
    mine = {
        key: value for key, value in os.environ.items() if not key.startswith("WANDB")
    }  # of earlier tests
    done = subprocess.run([sys.executable, "train.py"], env=mine | short, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    file, score = re.search(r"^(.*\.ckpt): validation MAP@R (\S+)$", done.stdout, re.M).groups()
    assert Path(file).is_file()
    assert 0 < float(score) <= 1
    (logged,) = offline_runs(my_images.parent / "wandb")
    assert len(logged.series("val/map_at_r")) == 10
    assert len(logged.series("train/loss")) == 10
