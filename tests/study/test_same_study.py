"""Which results belong to a study: an edit, another setting, other data or weights make rows stale, by name."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_images import noise_images
from study_engine import ADDED, SMALL, results, run_file, run_study, small_study, tables

from levelfield.core.configuration import set_dotted
from levelfield.core.errors import UserError
from levelfield.study.rows import load_spec, with_options
from levelfield.study.same_study import differing_origins, with_rows_of
from levelfield.study.spec import StudySpec
from levelfield.study.workers import Here

LOUDER = "embeddings = embeddings * 1.5"


def times(folder: Path, row: str) -> list[int]:
    return [path.stat().st_mtime_ns for path in results(folder, f"{row}/*/fold*")]


@pytest.mark.slow
def test_an_edited_loss_is_refused_by_name_then_computed_again(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    result = json.loads((folder / "jobs/mine/run0/fold0/result.json").read_text())
    assert {"my_loss.py", "levelfield/losses/contrastive.py"} <= {*result["sources"]}

    (here / "my_loss.py").write_text("# a comment\n" + (here / "my_loss.py").read_text())
    stamp = times(folder, "*")
    run_file(file, folder)
    assert times(folder, "*") == stamp

    small_study(here, LOUDER)
    with pytest.raises(UserError, match=r"mine: my_loss\.py.*--recompute mine") as refused:
        run_file(file, folder)
    assert "contrastive" not in str(refused.value)
    assert times(folder, "*") == stamp

    (folder / "jobs/mine/run0/fold1/result.json").unlink()
    with pytest.raises(UserError, match=r"mine: my_loss\.py"):
        run_file(file, folder)  # nor is half of a row finished with other code
    run_file(file, folder, recompute=["mine"])
    assert times(folder, "contrastive") != times(folder, "mine")
    fresh = run_file(file, here / "fresh")
    assert tables(folder) == tables(fresh.folder)


@pytest.mark.slow
def test_another_setting_makes_its_rows_stale_and_all_are_named(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    spec = load_spec(file)
    with pytest.raises(UserError, match=r"contrastive, mine: trainer\.max_epochs is 1.*--recompute all"):
        run_study(folder, with_options(spec, {"trainer.max_epochs": 2}))  # epochs change no untrained row
    mine = set_dotted(spec.methods["mine"], "model.loss_lr", 1.0)
    other = replace(spec, methods={**spec.methods, "mine": mine})
    with pytest.raises(UserError, match=r"mine: model\.loss_lr .*1\.0"):
        run_study(folder, other)
    stamp = times(folder, "contrastive")
    run_study(folder, other, recompute=["mine"])
    assert times(folder, "contrastive") == stamp
    for options in ({"runs": 2}, {"metrics": "nmi"}):
        with pytest.raises(UserError, match=next(iter(options))):
            run_study(folder, with_options(spec, options))


@pytest.mark.slow
def test_a_row_is_added_and_stays(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    stamp = times(folder, "*")
    added = load_spec(file, added=ADDED)
    study = run_study(folder, added)
    assert b"arcface" in tables(folder)[1]
    assert set(stamp) < set(times(folder, "*"))
    assert (folder / "ledger.jsonl").read_text().count('"evaluated"') == 2
    before = tables(folder)
    assert list(run_file(file, folder).spec.methods) == ["contrastive", "mine", "arcface"]
    assert tables(folder) == before
    assert with_rows_of(load_spec(file), study.spec, study.spec.methods) == study.spec


def test_an_added_method_that_cannot_be_trained_leaves_the_study_as_it_was(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    before = tables(folder)
    broken = {"model": {"loss": "my_loss.Mine", "embedder": {"class_path": "my_broken.Broken"}}}
    (here / "my_broken.py").write_text("class Broken:\n    pass\n")
    with pytest.raises(UserError, match=r"Broken|embedder"):
        run_study(folder, load_spec(file, added={"broken": broken}))
    assert list(run_file(file, folder).spec.methods) == ["contrastive", "mine"]
    assert tables(folder) == before


class Overwrites(Here):
    """Overwrites an image after so many jobs; size and modification time stay."""

    def __init__(self, image: Path, jobs: int) -> None:
        self.image, self.left = image, jobs

    def submit(self, slot, function, *arguments):
        result = super().submit(slot, function, *arguments)
        self.left -= 1
        if self.left == 0:
            before, content = self.image.stat(), bytearray(self.image.read_bytes())
            content[-1] ^= 1
            self.image.write_bytes(content)
            os.utime(self.image, ns=(before.st_atime_ns, before.st_mtime_ns))
        return result


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [pytest.param(3, marks=pytest.mark.full), 7])
def test_images_overwritten_while_a_study_runs_stop_it(here: Path, jobs: int) -> None:
    """After the third job by the next job; after the last one before a test label is read."""
    noise_images(here, 48, samples=6, height=32, width=32, suffix=".bmp")
    data = "{class_path: ImageTable, init_args: {table: table.csv}}"
    text = SMALL.replace("{class_path: Glyphs, init_args: {num_classes: 32, image_size: 32}}", data)
    text = text.replace("batch_size: 16", "batch_size: 4").replace("samples_per_class: 4", "samples_per_class: 2")
    file, folder = small_study(here, text=text), here / "out"
    for slots in (Overwrites(here / "0.bmp", jobs), Here()):
        with pytest.raises(UserError, match=r"\bdata\b"):
            run_file(file, folder, slots)
        assert len(results(folder)) == jobs
        assert not (folder / "ledger.jsonl").exists()


def test_an_added_module_keeps_its_untrained_row(spec: StudySpec) -> None:
    added = replace(spec, methods={**spec.methods, "plain": spec.methods["arcface"]}, modules=["plain"])
    merged = with_rows_of(spec, added, ["plain"])
    assert merged.rows == added.rows
    assert merged.baseline_of("plain") == added.baseline_of("plain") != "pretrained"


def test_a_failed_job_has_no_version_to_compare() -> None:
    origin = {"code": {"levelfield": "1"}, "libraries": {"torch": "2"}, "gpu": None}
    study = SimpleNamespace(stored={0: {"provenance": origin}, 1: {"failure": "nan"}}, tests=dict)
    assert differing_origins(study) == []
    study.stored[2] = {"provenance": {**origin, "libraries": {"torch": "3"}}}
    assert differing_origins(study) == ["torch: 2 in 1 results, 3 in 1 results."]
