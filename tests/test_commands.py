"""Every command that the README and the docs print: run here, or read by the real parser where it would take long."""

import ast
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from deletable import EXPORT, PARTS, RAY, is_deleted
from miniatures import MINIATURES
from own_images import image_options, own_images
from refused import succeeded
from tiny_fit import REPOSITORY, TINY
from tiny_text import own_texts

from levelfield.cli.data import named_datasets
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.study.archive import write_archive
from levelfield.study.folder import StudyFolder
from levelfield.training.build import Training
from scripts.words import commands as lines_of_commands

FOLDERS = ("benchmarks", "docs", "papers", "results")
PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [page for folder in FOLDERS for page in sorted((REPOSITORY / folder).rglob("*.md"))]
PAGES = [page for page in PAGES if "reference" not in page.parts]  # what `make docs` generates is no source
# What stands for the options that a page has named before, or leaves to the reader.
ELLIPSIS = "--config configs/data/glyphs.yaml --model.loss ContrastiveLoss"
PLACEHOLDERS = {"FILE": "quickstart", "NAME": "cub200", "DIR": "DIR", "CHECKPOINT": "best.ckpt"}
SET = "grocery_store"  # whose study is kept


def blocks(page: str, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (REPOSITORY / f"docs/{page}.md").read_text(), re.S)


def commands(page: Path) -> Iterator[str]:
    """The commands of a page: lines that begin with a program that is here, or that has a rule."""
    for line in lines_of_commands(page.read_text()):
        word = line.split()[0]
        if word in RULES or (shutil.which(word) and not line.startswith(("from ", " "))):
            yield line


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A folder with all that the commands name: own data and modules, checkpoints, finished studies."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("configs", *FOLDERS):
        (folder / name).symlink_to(REPOSITORY / name)
    texts = own_texts(folder).read_text()
    for name in ("my_texts.csv", "questions.csv", "banking77.csv"):
        (folder / name).write_text(texts)
    (folder / "intents.csv").write_text(texts.replace("thing", "intent"))
    own_images(folder).rename(folder / "my_images.csv")
    for number, image in enumerate(sorted(folder.glob("*.png"))):
        for name in ("my_images", "grocery"):
            of_class = folder / name / f"class_{image.name.partition('_')[0]}"
            of_class.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, of_class / f"{number}.png")
    (folder / "my_images/tea_pot").mkdir()
    for copy in ("lemon.jpg", "photo.jpg", "my_images/tea_pot/000.jpg", "my_images/tea_pot/001.jpg"):
        shutil.copy(image, folder / copy)
    shutil.copytree(folder / "my_images", folder / "other")
    for made in MINIATURES.values():
        made(folder / "DIR")

    learner, schedule, *_ = blocks("own_parts")
    (loss,) = (block for block in blocks("tutorial_add_a_loss") if "class MyLoss" in block)
    for name, text in {
        "my_loss.py": loss,
        "their_loss.py": loss.replace("MyLoss", "TheirLoss"),
        "my_study.yaml": blocks("study_files", "yaml")[0],
        "my_trunk.py": blocks("trunks")[0],
        "my_metric.py": next(block for block in blocks("metrics") if block.startswith("import torch")),
        "my_learner.py": learner,
        "my_schedule.py": schedule,
    }.items():
        (folder / name).write_text(text)
    for name in ("plain_module", "own_augmentation", "wandb_neighbours"):
        shutil.copy(REPOSITORY / f"examples/{name}.py", folder)
    tables = (f"reality_check_table{each}" for each in ("4_cub", "5_cars", "6_sop"))
    for name in ("quickstart", "quickstart_my_loss", "glyphs_search", "my_study", "cub", "cars", "sop", *tables):
        shutil.copytree(finished, folder / "outputs" / name)
    write_archive(StudyFolder.begun(finished), folder / "outputs/quickstart.tar.xz")
    return folder


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("LEVELFIELD_CACHE", str(place / "cache"))
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    for name in MINIATURES:
        monkeypatch.setattr(named_datasets()[name], "num_classes_published", 16)
        monkeypatch.setattr(named_datasets()[name], "num_samples_published", 64)


# What a command's checkpoint is called: the tiny fit that it is of.
FITS = {
    "Glyphs-ContrastiveLoss": ["--model", "my_learner.NoisyLearner", "--model.loss", "ContrastiveLoss"],
    "Glyphs-Plain": ["--model", "plain_module.Plain"],
    "theirs.ckpt": ["--model.loss", "their_loss.TheirLoss"],
    "mine.ckpt": ["--model.loss", "my_loss.MyLoss"],
    "best.ckpt": ["--model.loss", "ArcFaceLoss"],
}


def checkpoint(name: str, place: Path) -> None:
    """Make the checkpoint that a command names, if no command before it did."""
    if (place / name).exists():
        return
    if "TextTable" in name or "Banking77" in name:
        files = [f"--config=configs/{file}.yaml" for file in ("data/own_texts", "trunk/tiny_text", "trainer/debug")]
        words = [*files, "--model.loss", "SupConLoss", "--data.dataset.table", "texts.csv"]
    elif "ImageFolder" in name:
        words = [*image_options(TINY, place / "my_images.csv", Path("my_images")), "--model.loss", "ContrastiveLoss"]
    else:
        words = [*TINY, *next(options for part, options in FITS.items() if part in name)]
    made = place / "made" / str(len(list(place.glob("made/*"))))
    with redirect_stdout(io.StringIO()):
        assert main(["fit", *words, "--output", str(made)]) == 0
    (found,) = made.rglob("best.ckpt")
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    if (config := found.with_name("config.yaml")).exists():
        shutil.copy(config, (place / name).parent)
    shutil.copy(found, place / name)


def fit(words: list[str], run: Callable, place: Path) -> None:
    """Parsed; and built, where the weights are here."""
    if words in (["--config"], ["--config", "config.yaml"]):
        words = shlex.split(ELLIPSIS)
    if "--ckpt_path" in words:
        checkpoint(words[words.index("--ckpt_path") + 1], place)
    config = yaml.safe_load(succeeded(run("fit", *words, "--print_config")))
    large = ("bn_inception", "convnext", "dinov2", "gpus.yaml", "minilm")
    if not any(word in " ".join(words) for word in large):
        config["trainer"].update(accelerator="cpu", devices=1)
        Training({key: config[key] for key in ("model", "data", "trainer")}, place / "built").build()


def evaluate(verb: str) -> Callable:
    def check(words: list[str], run: Callable, place: Path) -> None:
        if "--ckpt_path" in words:  # else a pretrained trunk embeds
            checkpoint(words[words.index("--ckpt_path") + 1], place)
        sys.modules.pop("their_loss", None)  # what is imported is trusted
        code, _, complaint = run(verb, *words, *QUIET.get(verb, ()))
        if "theirs.ckpt" in words and "--trust" not in words:
            assert (code, "allow it: --trust their_loss" in complaint) == (2, True)
        else:
            assert would_run(complaint) if verb == "export" else code == 0, complaint

    return check


WOULD_RUN = "the study is read and would begin"
QUIET = dict.fromkeys(("validate", "test"), ("--trainer.enable_progress_bar", "false"))


def would_run(complaint: str) -> bool:
    return complaint.splitlines()[-1] == f"levelfield: {WOULD_RUN}"


def study(words: list[str], run: Callable, place: Path) -> None:
    if len(words) == 1:
        words = [*words, "quickstart"]
    if words[0] in ("verify", "report") and words[1].startswith("results/"):
        assert Path(words[1]).is_file()  # a test of scripts/results.py verifies its thousands of results
        words = [words[0], "outputs/quickstart.tar.xz", *words[2:]]
    code, _, complaint = run("study", *words)
    assert would_run(complaint) if words[0] in ("run", "resume") else code == 0, complaint


def compare(words: list[str], run: Callable, place: Path) -> None:
    assert would_run(run("compare", *words)[2])


def data(words: list[str], run: Callable, place: Path) -> None:
    if words == ["verify"]:
        words = ["verify", "cub200"]  # all would be opened, one by one
    if words[0] == "prepare" and words[1] not in MINIATURES:
        assert words[1] in named_datasets()
        words[1] = "cub200"  # the files are here; tests/data/test_prepare.py downloads from a server of its own
    root = [] if "--root" in words or words[-1].endswith(".csv") else ["--root", "DIR"]
    assert succeeded(run("data", *words, *root))


def sbatch(words: list[str], run: Callable, place: Path) -> None:
    """What the script is given; tests/scripts/test_slurm.py runs it. Without a word it is a fit."""
    given = words[words.index("scripts/slurm.sh") + 1 :]
    levelfield(given if given[0] in VERBS else ["fit", *given], run, place)


def levelfield(words: list[str], run: Callable, place: Path) -> None:
    if len(words) == 1 and words[0] in ("study", "data", "--version"):
        assert run(*words, *["--help"][: words[0] != "--version"])[0] == 0
        return
    if len(words) == 1:
        words = [*words, *shlex.split(ELLIPSIS)]
    VERBS[words[0]](words[1:], run, place)


def python(words: list[str], run: Callable, place: Path) -> None:
    if words[0] == "papers":
        from papers.__main__ import exhibits
        from papers.__main__ import main as papers

        with redirect_stderr(io.StringIO()) as complaint:
            code = papers(words[1:])
        would_run = words[1] == "run" and bool(exhibits()[words[2]].files)
        assert (code, WOULD_RUN in complaint.getvalue()) == ((2, True) if would_run else (0, False))
    elif words[0] == "-c":
        exec(words[1])
    elif words[0] != "-m":
        ast.parse((REPOSITORY / words[0]).read_text())


def pip(words: list[str], run: Callable, place: Path) -> None:
    """There is no release: what is installed is the checkout."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = re.fullmatch(r"\.(?:\[(.+)\])?", words[-1])[1]
    assert not extras or set(extras.split(",")) <= set(project["optional-dependencies"])


def by_itself(*command: str, folder: Path | None = None) -> Callable:
    def check(words: list[str], run: Callable, place: Path) -> None:
        subprocess.run([*command, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    return check


def init(words: list[str], run: Callable, place: Path) -> None:
    assert run("init", *words)[::2] == (0, "")
    assert (place / words[0] / "train.py").is_file()


VERBS = {verb: evaluate(verb) for verb in ("validate", "test", "predict", "score", "search", "export")}
VERBS |= {"fit": fit, "init": init, "compare": compare, "study": study, "data": data}
RULES = {
    **dict.fromkeys(("levelfield", ".venv/bin/levelfield"), levelfield),
    **dict.fromkeys(("python", "python3"), python),
    **dict.fromkeys(("pip", ".venv/bin/pip"), pip),
    **{"sbatch": sbatch, "make": by_itself("make", "-n", folder=REPOSITORY), "head": by_itself("head")},
    "cp": lambda words, run, place: (REPOSITORY / words[0]).stat(),
    # They take the reader elsewhere; nothing of ours can be wrong in them. The sweep's file has a test of its own.
    **dict.fromkeys(("wandb", "git", "source", "cd"), lambda words, run, place: None),
}
# What several pages say, runs once.
FIRST_SAID = {" ".join(line.partition("  #")[0].split()): page for page in reversed(PAGES) for line in commands(page)}
ALL = [pytest.param(line, id=f"{page.relative_to(REPOSITORY)}: {line}") for line, page in FIRST_SAID.items()]


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.parametrize("line", ALL)
@pytest.mark.slow
def test_it_works(line: str, run: Callable, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise UserError(WOULD_RUN)

    for part in filter(is_deleted, PARTS):
        if {RAY: "--executor ray", EXPORT: "levelfield export"}.get(part, part) in line:
            pytest.skip(f"this fork has no {part}")
    # An executor's options are read before it looks for its cluster.
    deletable = {RAY: "study.executors.ray._connected", EXPORT: "use.export.export"}
    there = [name for part, name in deletable.items() if not is_deleted(part)]
    for name in ("study.run.run_study", "cli.compare.Planner", "cli.study.print_jobs", *there):
        monkeypatch.setattr(f"levelfield.{name}", stop)
    if "--from outputs/" in line:  # the archive here is of a smaller study than the one of its name
        monkeypatch.setattr("levelfield.study.archive.check_archived", lambda *specs: None)
    given = ELLIPSIS.split(" --model.loss")[0] if "--model.loss " in line else ELLIPSIS
    line = line.replace("/SET", f"/{SET}").replace("...", given)
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True)]
    assert len(ALL) > 60
    for alone in (part.split("\0") for part in "\0".join(words).split("\0&&\0")):
        assert alone[0] in RULES, f"{alone[0]}: no rule of this file says how this command is tested"
        RULES[alone[0]](alone[1:], run, place)
