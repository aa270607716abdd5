"""Which results belong to a study: those of a state that has not changed, and those of an archive."""

import io
import json
import lzma
import os
import random
import tarfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from own_images import noise_images, own_images
from refused import refuses
from study_engine import ADDED, PLAIN, SMALL, forget, results, run_file, run_study, small_study, tables

from levelfield.analysis.verify import verify_study
from levelfield.core.configuration import set_dotted
from levelfield.report.facts import headline, setup
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec, with_options
from levelfield.study.same_study import differing_origins, with_rows_of
from levelfield.study.spec import StudySpec
from levelfield.study.workers import Here


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def pack(file: Path, contents: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    file.write_bytes(lzma.compress(stored.getvalue()))
    return file


@pytest.mark.slow
def test_an_unpacked_study_has_its_tables_and_takes_a_method(archived: tuple[Path, Path], tmp_path: Path) -> None:
    folder, archive = archived
    file, out = folder.parent / "small.yaml", tmp_path / "out"
    assert not any("best.ckpt" in name or "safetensors" in name for name in members(archive))
    assert write_archive(StudyFolder.begun(folder), tmp_path / "again.tar.xz").read_bytes() == archive.read_bytes()
    unpack_study(archive, out, load_spec(file))
    begun = StudyFolder.begun(out)
    assert begun.archived == {"pretrained", "pretrained_one_pca", "contrastive"}
    assert tables(out) == tables(folder) == tables(run_study(out, begun.spec).folder)
    for options in ({}, {"model.loss_lr": 0.5}):  # another rate changes the trained rows, which are computed again
        asked = load_spec(file, options, ADDED)
        added = run_study(out, asked, recompute=["all"] if options else [])
        assert tables(added.folder) == tables(run_study(tmp_path / f"whole{len(options)}", asked).folder)
        assert added.ledger_file.read_text().count('"evaluated"') == 2 + len(options)
    assert added.archived == {"pretrained", "pretrained_one_pca"}


@pytest.mark.slow
def test_an_archive_is_continued_where_the_data_are_now(tmp_path: Path) -> None:
    """An archive says of no row where its data were."""
    (tmp_path / "there").mkdir()
    own_images(tmp_path / "there", classes=24)
    file = tmp_path / "small.yaml"
    dataset = "{class_path: ImageTable, init_args: {table: table.csv}}"
    file.write_text(PLAIN.replace("{class_path: Glyphs, init_args: {num_classes: 32, image_size: 32}}", dataset))
    there = {"data.root": str(tmp_path / "there")}
    archive = write_archive(run_study(tmp_path / "out", load_spec(file, there, ADDED)), tmp_path / "study.tar.xz")
    (tmp_path / "there").rename(tmp_path / "here")
    here = load_spec(file, {"data.root": str(tmp_path / "here")}, {"ntxent": {"model": {"loss": "NTXentLoss"}}})
    assert unpack_study(archive, tmp_path / "again", here) == ["arcface"]
    study = run_study(tmp_path / "again", here)
    assert {*study.spec.methods} == {"contrastive", "ntxent"}
    assert "ntxent" in study.summary_file.read_text()


def test_a_refused_archive_leaves_nothing_behind(archived: tuple[Path, Path], tmp_path: Path) -> None:
    other = load_spec(archived[0].parent / "small.yaml", {"runs": 5})
    refuses("--from: runs", unpack_study, archived[1], tmp_path / "out", other)
    assert list(tmp_path.iterdir()) == []


JOB, TEST = "jobs/contrastive/run0/fold0/result.json", "jobs/contrastive/run0/test/result.json"
EXPANDS = b"a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n"
# A member, and what the refusal says of it.
HOSTILE = [
    *(("../evil.txt", b"", ""), ("/etc/cron.d/x", b"", ""), ("jobs/a/b/c/best.ckpt", b"", ""), ("my_loss.py", b"", "")),
    *(("jobs/../../x/y/result.json", b"{}", ""), (JOB, b"{}", ""), ("archived.json", b"[]", "")),
    *(("ledger.jsonl", b"{}\n", ""), ("study.yaml", EXPANDS, ""), ("study.yaml", b"name: [unclosed\n", "")),
    ("study.yaml", b"methods: {'=cmd()': {}}\n", ""),
    ("study.yaml", b"a: [" + b"1," * (1 << 19) + b"1]\n", "larger than an archive"),
    ("results.csv", b"0" * (17 << 20), "larger than an archive"),
    (JOB, b'{"a": [' + b"{}," * (6 << 20) + b"{}]}", "larger than an archive"),
    (f"{'long' * (5 << 20)}/x", b"", "larger than an archive"),
]
# A file, keys, and values of a wrong type for each of them.
WRONG = f"""
study.yaml | folds runs | null "2" 1000000000
study.yaml | name methods search metrics sweep spaces | 5
study.yaml | search | {{"trials":1000000000}}
{JOB} | provenance data seconds files validation checkpoint seed | [7]
{JOB} | seconds | Infinity "9"
{JOB} | provenance | {{"code":{{}},"libraries":{{}}}}
{JOB} | data | {{"fingerprint":"1","split":"half","train_classes":[],"val_classes":[]}}
{TEST} | separated concatenated data provenance | "x"
{TEST} | separated | [{{"map_at_r":"1"}}]
ledger.jsonl | checkpoints configuration results by data id | 5
archived.json | rows | {{"contrastive":5}}
"""


@pytest.mark.parametrize(("name", "content", "key"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_member_is_refused(archived, tmp_path, name, content, key):
    file = pack(tmp_path / "hostile.tar.xz", {**members(archived[1]), name: content})
    assert file.stat().st_size < 1 << 17
    refuses(key or None, unpack_study, file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.tar.xz"]


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_value_of_a_wrong_type_is_one_line(archived, tmp_path, line):
    name, keys, values = line.split(" | ")
    parts = members(archived[1])
    first, *others = parts[name].splitlines() if name == "ledger.jsonl" else [parts[name]]
    for key, value in product(keys.split(), values.split()):
        wrong = json.dumps({**yaml.safe_load(first), key: json.loads(value)}).encode()
        file = pack(tmp_path / "wrong.tar.xz", {**parts, name: b"\n".join([wrong, *others, b""])})
        refuses(f"{name.rpartition('/')[2]}|jobs, but a study", unpack_study, file, tmp_path / "out")


@pytest.mark.parametrize(
    "change", [{"model": {"trunk": "TimmTrunk"}}, {"model": 5}, {"data": None}, {"trainer": {"max_epochs": "many"}}]
)
def test_a_configuration_of_a_wrong_shape_leaves_the_page_with_fewer_facts(archived, tmp_path, change):
    parts, config = members(archived[1]), JOB.replace("result.json", "config.yaml")
    parts[config] = yaml.safe_dump({**yaml.safe_load(parts[config]), **change}).encode()
    parts[JOB] = json.dumps({**json.loads(parts[JOB]), "files": {}}).encode()
    unpack_study(pack(tmp_path / "wrong.tar.xz", parts), tmp_path / "out")
    study = StudyFolder.begun(tmp_path / "out")
    assert "data set" in dict(setup(study))
    assert "2 folds" in headline(study)


def test_a_link_or_a_damaged_file_is_refused(archived: tuple[Path, Path], tmp_path: Path) -> None:
    """Missing, shortened, or with one changed bit."""
    content, drawn, file = archived[1].read_bytes(), random.Random(0), tmp_path / "damaged.tar.xz"
    linked = pack(tmp_path / "linked.tar.xz", {"results.csv": b""}, tarfile.SYMTYPE).read_bytes()
    changed = [bytearray(content) for _ in range(69)]
    last = range(len(content) - 48, len(content))
    for place, each in zip((0, *last, *(drawn.randrange(len(content)) for _ in range(20))), changed, strict=True):
        each[place] ^= 1 << drawn.randrange(8)
    for damaged in (None, linked, content[:-100], *changed):
        if damaged is not None:
            file.write_bytes(damaged)
        refuses(file.name, unpack_study, file, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_unfinished_study_is_not_archived(archived: tuple[Path, Path], tmp_path: Path) -> None:
    unpack_study(archived[1], tmp_path / "out")
    for path in (TEST, JOB):
        (tmp_path / "out" / path).unlink()
        refuses("contrastive run 0", write_archive, StudyFolder.begun(tmp_path / "out"), tmp_path / "x.tar.xz")
    assert json.loads((tmp_path / "out/archived.json").read_text())["rows"]


PLANTED = """
from pathlib import Path

from levelfield.data.samplers import MPerClassBatchSampler

Path("ran").write_text("a command ran")


class Sampler(MPerClassBatchSampler):
    pass
"""


@pytest.mark.slow
def test_no_class_of_a_strangers_archive_is_built_or_trained(archived: tuple[Path, Path], here: Path) -> None:
    (here / "planted.py").write_text(PLANTED)
    evil = {"evil": {"model": {"loss": "ContrastiveLoss"}, "data": {"sampler": "planted.Sampler"}}}
    file = archived[0].parent / "small.yaml"
    theirs = write_archive(run_study(here / "made", load_spec(file, added=evil)), here / "theirs.tar.xz")
    (here / "ran").unlink()
    forget("planted")
    unpack_study(theirs, here / "theirs")
    study = StudyFolder.begun(here / "theirs")
    assert verify_study(study) == []
    refuses("an archive to read", run_study, study.folder, study.spec)
    asked = load_spec(file, added=ADDED)
    assert unpack_study(theirs, here / "out", asked) == ["evil"]
    study = run_study(here / "out", asked)
    assert verify_study(study) == []
    assert {*study.spec.methods} == {"contrastive", "arcface"}
    assert b"evil" not in b"".join(tables(here / "out"))
    less = {name: content for name, content in members(theirs).items() if name != JOB.replace("contrastive", "evil")}
    refuses("evil", unpack_study, pack(here / "less.tar.xz", less), here / "less")
    assert not (here / "ran").exists()


def times(folder: Path, row: str) -> list[int]:
    return [path.stat().st_mtime_ns for path in results(folder, f"{row}/*/fold*")]


@pytest.mark.slow
def test_an_edited_loss_is_refused_by_name_then_computed_again(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    sources = json.loads((folder / "jobs/mine/run0/fold0/result.json").read_text())["sources"]
    assert {"my_loss.py", "levelfield/losses/contrastive.py"} <= {*sources}
    (here / "my_loss.py").write_text("# a comment\n" + (here / "my_loss.py").read_text())
    stamp = times(folder, "*")
    run_file(file, folder)
    assert times(folder, "*") == stamp
    small_study(here, "embeddings = embeddings * 1.5")
    assert "contrastive" not in refuses(r"mine: my_loss\.py.*--recompute mine", run_file, file, folder)
    assert times(folder, "*") == stamp
    (folder / "jobs/mine/run0/fold1/result.json").unlink()
    refuses(r"mine: my_loss\.py", run_file, file, folder)  # nor is half of a row finished with other code
    run_file(file, folder, recompute=["mine"])
    assert times(folder, "contrastive") != times(folder, "mine")
    assert tables(folder) == tables(run_file(file, here / "fresh").folder)


@pytest.mark.slow
def test_another_setting_makes_its_rows_stale_and_all_are_named(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    spec = load_spec(file)
    longer = with_options(spec, {"trainer.max_epochs": 2})  # epochs change no untrained row
    refuses(r"contrastive, mine: trainer\.max_epochs is 1.*--recompute all", run_study, folder, longer)
    other = replace(spec, methods={**spec.methods, "mine": set_dotted(spec.methods["mine"], "model.loss_lr", 1.0)})
    refuses(r"mine: model\.loss_lr .*1\.0", run_study, folder, other)
    stamp = times(folder, "contrastive")
    run_study(folder, other, recompute=["mine"])
    assert times(folder, "contrastive") == stamp
    for options in ({"runs": 2}, {"metrics": "nmi"}):
        refuses(next(iter(options)), run_study, folder, with_options(spec, options))


@pytest.mark.slow
def test_a_row_is_added_and_stays(here: Path, small: Path) -> None:
    file, folder = small, here / "out"
    stamp = times(folder, "*")
    study = run_study(folder, load_spec(file, added=ADDED))
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
    refuses(r"Broken|embedder", run_study, folder, load_spec(file, added={"broken": broken}))
    assert list(run_file(file, folder).spec.methods) == ["contrastive", "mine"]
    assert tables(folder) == before


class Overwrites(Here):
    """Overwrites an image after so many jobs; size and modification time stay."""

    def __init__(self, image: Path, jobs: int) -> None:
        self.image, self.left = image, jobs

    def submit(self, *arguments):
        result = super().submit(*arguments)
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
        refuses(r"\bdata\b", run_file, file, folder, slots)
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
