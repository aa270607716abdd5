"""The studies in configs/study load and start."""

from pathlib import Path

import pytest
from no_skips_in_ci import real_data
from tiny_text import own_texts

from levelfield.analysis.conditions import differing_conditions
from levelfield.cli.study import main
from levelfield.study.executors.local import Local
from levelfield.study.first_look import look_at_rows
from levelfield.study.rows import load_spec
from levelfield.study.study_file import find_study
from levelfield.study.workers import GivenUp

REPOSITORY = Path(__file__).parents[2]
STUDIES = REPOSITORY / "configs" / "study"
TINY_TRUNK = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
# Studies of data that are no part of the package.
NEEDED = {
    "grocery_quick": "grocery_store",
    "fair_groceries": "grocery_store",
    "banking77_quick": "banking77",
    "clinc150_quick": "clinc150",
}
# A tiny random trunk and a handful of steps in place of minutes.
QUICK = [
    *("--model.trunk", "{class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}"),
    *("--data.transforms.crop_size", "32", "--data.transforms.resize", "32"),
    *("--data.steps_per_epoch", "2", "--trainer.max_epochs", "1", "--folds", "2", "--runs", "1", "--threads", "1"),
]


# Protocols that give their methods other embeddings, miners or batches: test_paper_protocols.py.
PAPERS = ("zhai_wu", "fehervari", "vasilev_dyakonov")
SHIPPED = [path for path in sorted(STUDIES.glob("*.yaml")) if not path.stem.endswith(PAPERS)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_builds_and_only_batches_differ(path: Path, write_letters: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    tables = {"own_images_quick": write_letters, "own_images_finetune": write_letters}
    tables |= {"own_texts_quick": texts, "own_texts_finetune": texts}
    overrides = {"data.dataset.table": str(tables[path.stem])} if path.stem in tables else {}
    own_texts(tmp_path)
    if path.stem in NEEDED:
        overrides = {"data.root": str(real_data(NEEDED[path.stem]).parent)}
    if "_reality_check" in path.stem:  # full size: letters in place of photographs, another trunk for speed
        overrides = {"data.dataset": "levelfield.data.datasets.Glyphs", "model.trunk": TINY_TRUNK}
    spec = load_spec(path, {**overrides, "model.trunk.weights": None})
    assert spec.name == path.stem
    assert all("data.samples_per_class" in sentence for sentence in differing_conditions(spec))
    look_at_rows(spec, (), GivenUp(print))


@pytest.fixture(scope="session")
def write_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 16 letters in 12 faces or more, the images beside it."""
    from levelfield.data.datasets import Glyphs

    folder = tmp_path_factory.mktemp("own_images")
    glyphs = Glyphs(num_classes=16, image_size=32)
    rows = ["path,label"]
    for position, label in enumerate(glyphs.labels.tolist()):
        glyphs[position][0].save(folder / f"{position:03}.png")
        rows.append(f"{position:03}.png,letter {label}")
    (folder / "letters.csv").write_text("\n".join(rows) + "\n")
    return folder / "letters.csv"


@pytest.mark.slow
def test_own_images_study_works_on_a_table(
    write_letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    words = [
        "run",
        "own_images_finetune.yaml",
        "--data.dataset.table",
        str(write_letters),
        "--output",
        str(tmp_path / "own"),
    ]
    assert main([*words, *QUICK]) == 0
    assert "contrastive" in capsys.readouterr().out
    assert (tmp_path / "own" / "summary.csv").read_text().count("map_at_r") == 2 * 3 + 1  # the one PCA


@pytest.mark.parametrize(("study", "workers"), [("quickstart", 2), ("smoke", 1)])
def test_trainings_of_seconds_take_all_cores_and_a_moments_one(
    study: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert Local(load_spec(find_study(study))).number == workers
