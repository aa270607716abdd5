"""`levelfield compare PATH`: folders, tables and broken images, from the path to the next command."""

import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from forked import Forked, levelfield
from PIL import Image
from pyarrow import parquet
from refused import refused, succeeded
from study_engine import tables
from tiny_text import own_texts, tiny_text_model

from levelfield.analysis.all_classes import on_all_classes
from levelfield.cli.compare import WRITTEN
from levelfield.compare import samples
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.datasets import Glyphs, ImageFolder, ImageTable, TextTable
from levelfield.experiment import Study

TINY = "model: {trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}}"
# A trunk trains in four epochs, a head in as many as it takes: of one step each here. A busy machine takes its time:
# with 25 minutes the plan has all folds all the same, and one run.
FEW = ["--trunk", "tiny.yaml", "--data.steps_per_epoch", "1", "--data.transforms.crop_size", "32"]
FEW += ["--executor.workers", "1", "--minutes", "25"]
OWN_LOSS = "from levelfield import losses\n\n\nclass MyLoss(losses.ContrastiveLoss):\n    pass\n"
# A fold trains on 21 samples at least: a head has no more numbers.
UNTRAINED = ["pretrained", *(f"pretrained[{kind}]" for kind in ("features", "whitening", "whitening21"))]
TRAINED = ["head_ntxent", "head_normalized_softmax", "trunk_ntxent", "trunk_normalized_softmax"]
DERIVED = [f"trunk_{loss}_{made}" for loss in ("ntxent", "normalized_softmax") for made in ("averaged", "pca")]


def letters(folder: Path, classes: int = 20, samples: int = 3) -> Path:
    """A folder a letter."""
    glyphs = Glyphs(num_classes=classes, image_size=32)
    for label in range(classes):
        (folder / f"letter {label:02}").mkdir(parents=True)
        for position in np.flatnonzero(glyphs.labels == label)[:samples]:
            glyphs[position][0].save(folder / f"letter {label:02}" / f"{position}.png")
    return folder


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with files of a stranger that have the names of those of `compare`: each would stop it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    for place in ("configs", "."):
        for name in ("protocol/heads", "method/ntxent", "method/normalized_softmax", "data/image_folder"):
            file = tmp_path / place / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("data: {sampler: {class_path: os.abort}}")
    (tmp_path / "tiny.yaml").write_text(TINY)


def command_of(line: str) -> list[str]:
    """The words of the command that a line ends with, for `run`."""
    return shlex.split(line[line.index("levelfield ") :])[1:]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--output exp", "exp.yaml is .*--output"),
        ("--output exp1.0", "exp1.0 is .*--output"),
        ("--trunk configs/method/ntxent_koleo.yaml", "model.trunk"),
        ("--trunk configs/trunk/minilm.yaml", "texts"),
        ("--trunk tiny.yaml levelfield:trunk/tiny.yaml", "tiny.yaml"),
        ("--minutes inf", "--minutes"),
    ],
)
def test_what_no_comparison_can_begin_with(words: str, key: str, run, tmp_path: Path) -> None:
    letters(tmp_path / "letters")
    files = [tmp_path / name for name in ("exp.yaml", "exp1.0")]
    for file in files:
        file.write_text("# my notes")
    assert re.search(key, refused(run("compare", "letters", "--executor.workers", "1", *words.split())))
    assert [file.read_text() for file in files] == ["# my notes"] * 2


def stopped_and_continued(run, tmp_path: Path) -> tuple[list[str], str]:
    """The words of a comparison with two broken images that Ctrl-C stops, and what it prints when it has gone on."""
    folder = letters(tmp_path / "letters")
    for letter in ("letter 00", "letter 19"):
        (folder / letter / "broken.png").write_bytes(b"no image")
    words = ["compare", "letters", *FEW, "--output", "outputs/mine"]
    code, _, complaint = run(*words)
    assert (code, complaint.count("broken.png")) == (2, 2)
    assert "--skip-broken" in complaint
    assert not (tmp_path / "outputs").exists()
    words.append("--skip-broken")
    process = Forked(levelfield(*words), tmp_path / "log", folder=tmp_path)
    process.wait_for((tmp_path / "outputs/mine/jobs/head_ntxent/run0/fold1/result.json").exists)
    process.signal(signal.SIGINT)
    printed = process.wait()
    assert process.exit_code == 130, printed
    assert command_of(printed.strip().splitlines()[-1]) == words
    here = succeeded(run(*words, "--stop-here"))
    assert "features, whitened to 21" in here
    assert re.search(r"whole trunk, NT-Xent +- +- +-", here), "the rows that have no scores yet"
    ended = succeeded(run(*words))
    return words, ended


@pytest.mark.slow
@pytest.mark.processes
def test_a_comparison_that_was_stopped_goes_on_and_scores_every_rung(run, tmp_path: Path) -> None:
    words, printed = stopped_and_continued(run, tmp_path)
    study = Study("outputs/mine")
    assert study.record().spec.rows == [*UNTRAINED, "pretrained_one_pca", *TRAINED, *DERIVED]
    assert study.verify() == []
    assert {*study.results.query("stage == 'test'").method} >= {*UNTRAINED, *TRAINED, *DERIVED}
    ledger = Path("outputs/mine/ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in ledger].count("evaluated") == 2
    ended, again = (text.partition(": percent on unseen classes") for text in (printed, succeeded(run(*words))))
    assert ended[1:] == again[1:] > ("", ""), "the table and all below"
    found = json.loads(succeeded(run(*words, "--json")))
    assert found["decision"] == json.loads((study.folder / "decision.json").read_text())
    assert {row["method"] for row in found["summary"]} >= {*TRAINED}
    first = found["decision"]["sentences"][0]
    assert first.startswith("Use ")
    assert first in " ".join(printed.split())
    assert first in (study.folder / "report/index.html").read_text(), "the page says the same"
    succeeded(run(*command_of(printed.strip().splitlines()[-1])))
    succeeded(run(*on_all_classes(study.record(), "trunk_ntxent_averaged", study.folder)[0][1:]))


@pytest.mark.full
@pytest.mark.processes
def test_it_ends_in_the_bytes_of_one_that_was_left_alone_and_takes_a_loss_of_ones_own(run, tmp_path: Path) -> None:
    words, _ = stopped_and_continued(run, tmp_path)
    succeeded(run("study", "run", "outputs/mine.yaml", "--output", "outputs/whole", *FEW[2:-2]))
    assert tables(tmp_path / "outputs/mine") == tables(tmp_path / "outputs/whole")
    study = Study("outputs/mine")
    for row in ("head_ntxent", "trunk_ntxent"):
        succeeded(run(*on_all_classes(study.record(), row, study.folder)[0][1:], "--output", f"whole_{row}"))
    (tmp_path / "my_loss.py").write_text(OWN_LOSS)
    succeeded(run(*words, "--add-method", "my_loss.MyLoss"))
    assert "my_loss," in Path("outputs/mine/summary.csv").read_text()


@pytest.mark.full
def test_a_table_of_texts_goes_on_where_it_was(run, tmp_path: Path) -> None:
    table, trunk = own_texts(tmp_path), tiny_text_model(tmp_path / "tiny")
    arguments = {"name": str(trunk), "weights": None, "max_length": 64}
    text = {"model": {"trunk": {"class_path": "levelfield.models.TransformersTrunk", "init_args": arguments}}}
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(text))
    words = ["compare", table.name, "--trunk", "text.yaml", "--data.steps_per_epoch", "1"]
    succeeded(run(*words))
    before = tables(tmp_path / "outputs/compare_texts")
    succeeded(run(*words))
    assert tables(tmp_path / "outputs/compare_texts") == before


@pytest.mark.full
def test_of_several_trunks_the_ladder_goes_on_with_the_best_features(run, tmp_path: Path) -> None:
    letters(tmp_path / "letters")
    (tmp_path / "wide.yaml").write_text(TINY.replace("test_resnet", "resnet10t"))
    printed = succeeded(run("compare", "letters", *FEW[:2], "wide.yaml", *FEW[2:-2]))
    scores = yaml.safe_load(printed[printed.index("continues with") :].splitlines()[0].split()[-1])
    study = Study("outputs/compare_letters")
    other = {"tiny": "wide", "wide": "tiny"}[scores]
    assert f"pretrained[features-{other}]" in {*study.results.query("stage == 'run'").method}
    assert [*study.record().spec.trunks] == [other]


def test_the_table_of_samples_that_can_be_opened_lists_the_others_and_links(tmp_path: Path, capsys) -> None:
    """Samples in both halves are named; those twice in a class are not."""
    folder, table = letters(tmp_path / "letters", 2, samples=2), tmp_path / "chosen.parquet"
    whole = ImageFolder(folder)
    assert samples.usable("letters", whole, {}, 1000, False, table) is whole
    assert capsys.readouterr().err == ""
    first, tested = (next((folder / name).iterdir()) for name in ("letter 00", "letter 01"))
    (folder / "letter 00/broken.png").write_bytes(b"no image")
    (folder / "letter 00/link.png").symlink_to(tested)
    shutil.copy(first, folder / "letter 00/again.png")
    found = samples.usable("letters", ImageFolder(folder), {}, 1000, True, table)
    assert (found.table, len(found.read_index().keys)) == (table, 6)
    noted = capsys.readouterr().err
    pair = f"letter 00/link.png (letter 00, training) = letter 01/{tested.name} (letter 01, test)"
    assert all(each in noted for each in ("1 of 7 images are left out", "letters has 1 sample ", pair))
    assert "again.png" not in noted


@pytest.mark.parametrize("kind", ["image", "path", "text"])
def test_a_chosen_table_has_the_samples_halves_roles_and_groups_of_the_table(kind: str, tmp_path: Path) -> None:
    """Of a table with images inside, with paths or with texts, of which each class has a sample too many."""
    rows, values = range(4 * 5), []
    for row in rows:
        file = tmp_path / f"{row}.png"
        Image.new("RGB", (16, 16), (row * 9, 0, 0)).save(file)
        values.append({"image": file.read_bytes(), "path": file.name, "text": f"text {row}"}[kind])
    columns = {kind: values, "label": [f"c{row // 5}" for row in rows], "group": [f"g{row % 3}" for row in rows]}
    columns |= {"split": ["test" if row < 10 else "train" for row in rows], "role": ["query", "gallery"] * 10}
    parquet.write_table(pa.table(columns), tmp_path / "all.parquet")
    whole: MetricDataset = (TextTable if kind == "text" else ImageTable)(tmp_path / "all.parquet")
    found = samples.usable("all", whole, {}, 16, False, tmp_path / "chosen.parquet")
    before, now = whole.index(), found.index()
    assert [*np.bincount(now.labels)] == [4] * 4
    assert (now.class_names, now.test_classes) == (before.class_names, before.test_classes)
    chosen = np.array([next(row for row in rows if whole[row] == found[position]) for position in range(16)])
    assert [*now.roles] == [before.roles[row] for row in chosen]
    assert ((now.groups[:, None] == now.groups) == (chosen[:, None] % 3 == chosen % 3)).all()


def test_of_too_many_samples_whole_classes_are_left_out_in_both_halves_alike() -> None:
    labels = np.repeat(np.arange(2000), 3)
    index = SampleIndex(tuple(map(str, labels)), labels, tuple(map(str, range(2000))))
    kept = samples.sampled(index, np.arange(500), 1500)
    classes, counts = np.unique(labels[kept], return_counts=True)
    assert (len(classes), (classes < 500).sum(), {*counts}) == (500, 125, {3})
    assert classes.tolist() != [*range(125), *range(500, 875)], "at random"
    assert samples.sampled(index, np.arange(500), 6000).all()
    classes, counts = np.unique(labels[samples.sampled(index, np.arange(500), 200)], return_counts=True)
    assert (len(classes), {*counts}) == (200, {2}), "not fewer classes, nor fewer samples of one"


def test_folds_are_counted_by_what_groups_keep_whole(tmp_path: Path) -> None:
    rows = [f"text {n},c{n // 4},g{n // 8} {n % 2}" for n in range(24 * 4)]  # of 24 classes in 12 pairs
    (tmp_path / "t.csv").write_text("\n".join(["text,label,group", *rows]) + "\n")
    for folds, settings in ((3, {"keep_groups": True}), (4, {})):
        assert samples.blocks_of("t.csv", TextTable("t.csv"), settings) == folds


def test_with_too_few_classes_it_says_what_can_be_done(run, tmp_path: Path) -> None:
    shutil.rmtree("configs")  # the command that it prints names files
    letters(tmp_path / "six", classes=6)
    code, _, complaint = run("compare", "six")
    assert (code, "6 classes" in complaint) == (2, True)
    succeeded(run(*command_of(complaint), "--print_config"))


def test_a_comparison_of_other_data_is_refused(run, tmp_path: Path) -> None:
    ours, others = letters(tmp_path / "a/images", samples=2), letters(tmp_path / "b/images", samples=2)
    Path("outputs/compare_images").mkdir(parents=True)
    Path("outputs/compare_images/study.yaml").touch()
    Path("outputs/compare_images.yaml").write_text(f"{WRITTEN}{ours.resolve()}\n")
    result = run("compare", str(others))
    refused(result, str(ours.resolve()), str(others.resolve()), "--output")
    assert result[1] == ""
