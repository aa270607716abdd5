"""The page: from the folder alone, the same bytes twice, with everything a reader needs to judge the numbers."""

import base64
import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load_file
from toy_study import evaluated

from levelfield.cli.main import main
from levelfield.report.page import write_report
from levelfield.report.scored_samples import NOT_HERE, OTHER_SAMPLES, ScoredSamples, scored_samples
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder

# In the page's order.
FIGURES = ("scores", "differences", "search", "search_slices", "validation")
VOID = ("meta", "br", "img")


class Text(HTMLParser):
    """The visible text of a page; refuses tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "body" in self.open and data.strip():
            self.pieces.append(" ".join(data.split()))


def written(study: Path) -> tuple[str, list[str]]:
    page = write_report(StudyFolder.begun(study)).read_text()
    return page, Text(page).pieces


@pytest.fixture
def study(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the toy study, whose user has evaluated nothing else."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(finished, tmp_path / "study"))


def test_the_page_holds_the_study(study: Path) -> None:
    page, pieces = written(study)
    text = "\n".join(pieces)
    files = {path.name: path.read_bytes() for path in (study / "report").iterdir()}
    assert set(files) == {"index.html", *(f"{name}.svg" for name in FIGURES)}
    embedded = [base64.b64decode(content) for content in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert embedded == [files[f"{name}.svg"] for name in FIGURES]
    assert str(study) not in page

    assert written(study)[0] == page
    assert {path.name: path.read_bytes() for path in (study / "report").iterdir()} == files

    assert pieces[:2] == ["toy", "Glyphs · test_resnet, trained · 2 runs × 2 folds · at most 4 steps per training"]
    assert "Glyphs(num_classes: 32, image_size: 32)" in text
    assert re.search(r"\b16 classes .* 2 class-disjoint folds, 16 test classes with 256 samples", text)
    assert "data.samples_per_class is 1, 4 for the others" in text or "data.samples_per_class is 4, 1 for" in text
    assert "3 trials of each method (gp), each on 2 folds" in text
    assert "The test classes were evaluated once." in text
    assert '<a href="https://arxiv.org/abs/1801.07698">ArcFace</a> <code>arcface</code>' in page
    result = json.loads((study / "jobs/arcface/run0/fold0/result.json").read_text())
    assert result["data"]["fingerprint"] in text
    assert result["provenance"]["weights"] in text
    assert f"torch {result['provenance']['libraries']['torch']}" in text


def test_the_numbers_are_those_of_the_results(study: Path) -> None:
    with open(study / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    def runs(method: str, metric: str, embedding: str) -> list[float]:
        found = [r for r in rows if (r["method"], r["stage"], r["embedding"]) == (method, "test", embedding)]
        return [fmean(float(r["value"]) for r in found if r["metric"] == metric and r["run"] == run) for run in "01"]

    _, pieces = written(study)
    place = pieces.index("concatenated", pieces.index("All scores"))
    place = pieces.index("arcface", place)  # the row's own name, after the shown one
    wanted = [f"{100 * fmean(runs('arcface', m, 'concatenated')):.1f}" for m in ("map_at_r", "r_precision")]
    assert pieces[place + 1 : place + 3] == wanted

    pairs = zip(runs("arcface", "map_at_r", "separated"), runs("contrastive", "map_at_r", "separated"), strict=True)
    difference = fmean(a - b for a, b in pairs)
    better, worse = ("ArcFace", "Contrastive") if difference >= 0 else ("Contrastive", "ArcFace")
    sentence = f"{better} over {worse}: {abs(100 * difference):+.1f} points MAP@R, too few runs for an interval"
    assert sentence in pieces


def test_the_search_shows_the_best_trial_and_what_failed(study: Path) -> None:
    trials: dict[int, list[dict]] = {}
    for path in sorted(study.glob("jobs/contrastive/trial*/fold*/result.json")):
        result = json.loads(path.read_text())
        trials.setdefault(result["number"], []).append(result)
    values = {number: fmean(r["validation"]["map_at_r"] for r in found) for number, found in trials.items()}
    worst, *_, best = sorted(values, key=lambda number: values[number])
    path = study / f"jobs/contrastive/trial{worst}/fold1/result.json"
    broken = json.loads(path.read_text())
    del broken["validation"], broken["checkpoint"]
    path.write_text(json.dumps({**broken, "failure": "loss is <nan> at step 3"}))
    page, pieces = written(study)
    margin = trials[best][0]["parameters"]["model.loss.init_args.neg_margin"]
    place = pieces.index(f"loss.neg_margin {margin:.4g}")
    assert pieces[place - 1 : place + 3] == [
        "Contrastive",
        f"loss.neg_margin {margin:.4g}",
        str(best),
        f"{100 * values[best]:.1f}",
    ]
    assert f"Contrastive: trial {worst} fold 1: loss is <nan> at step 3" in pieces
    assert "<nan>" not in page, "what stands in the results is text, not HTML"


def test_every_evaluation_is_counted_and_listed(study: Path) -> None:
    evaluated(study, by="levelfield test", reason="a bug in <our> loss")
    page, pieces = written(study)
    assert "The test classes were evaluated 2 times." in pieces
    assert "<our>" not in page
    times = [json.loads(line)["time"] for line in (study / "ledger.jsonl").read_text().splitlines()]
    place = pieces.index("Evaluations of the test classes")
    listed = {times[0].replace("T", " "), times[-1].replace("T", " "), "levelfield test", "a bug in <our> loss"}
    assert listed <= {*pieces[place:]}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_lost_configuration_or_curve_is_a_gap_that_is_said(
    recorded: bool, study: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"contrastive/run0/fold0/config.yaml": "is empty", "arcface/run1/fold1/metrics.csv": "is missing"}
    if recorded:
        lost["contrastive/run1/fold0/metrics.csv"] = "has changed since its job finished"
        (study / "jobs/contrastive/run1/fold0/metrics.csv").write_text("epoch\n\0")
    else:  # an earlier version did not
        for path in study.glob("jobs/*/*/*/result.json"):
            result = json.loads(path.read_text())
            result.pop("files", None)
            path.write_text(json.dumps(result))
    (study / "jobs/contrastive/run0/fold0/config.yaml").write_text("")
    (study / "jobs/arcface/run1/fold1/metrics.csv").unlink()
    assert main(["study", "report", str(toy_file), "--output", str(study)]) == 0
    lines = capsys.readouterr().out.splitlines()
    page = (study / "report" / "index.html").read_text()
    for path, what in lost.items():
        assert any(f"jobs/{path} {what}" in line for line in lines)
        assert f"jobs/{path} {what}" in page


def test_an_unfinished_study_has_a_page_too(study: Path) -> None:
    (study / "ledger.jsonl").unlink()
    for path in [*study.glob("jobs/*/run*/test/result.json"), *study.glob("jobs/arcface/run1/fold1/result.json")]:
        path.unlink()
    _, pieces = written(study)
    # 2 baseline jobs, 2 methods x (3 trials + 2 runs) x 2 folds.
    assert "Unfinished: 21 of 22 jobs are done." in pieces
    assert "The test classes have not been evaluated." in pieces
    assert "Comparisons" not in pieces
    assert list(study.glob("jobs/*/run*/fold*/tested.safetensors")), "of the evaluation that the ledger has lost"
    assert "Retrieved neighbours" not in pieces


def test_a_run_that_failed_is_listed(study: Path) -> None:
    for path in study.glob("jobs/*/run1/test/result.json"):
        path.unlink()
    path = study / "jobs/arcface/run1/fold0/result.json"
    broken = json.loads(path.read_text())
    del broken["validation"], broken["checkpoint"]
    path.write_text(json.dumps({**broken, "failure": "out of memory"}))
    _, pieces = written(study)
    assert "arcface run 1 fold 0 failed, and its run is left out: out of memory" in pieces


def program_of(page: str) -> dict:
    found = re.search(r'id="samples">(.*?)</script>', page)
    assert found is not None
    return json.loads(found.group(1))


def test_the_page_shows_what_the_stored_embeddings_retrieve(study: Path) -> None:
    page, _pieces = written(study)
    told = program_of(page)
    stored = load_file(study / "jobs/contrastive/run0/fold0/tested.safetensors")
    unit = torch.nn.functional.normalize(stored["embeddings"].double())
    for query in told["gallery"]:
        similar = unit @ unit[query["sample"]]
        similar[query["sample"]] = -2
        assert query["neighbours"]["contrastive"] == similar.argsort(descending=True)[:8].tolist()
    assert [query["group"] for query in told["gallery"]] == ["best"] * 3 + ["median"] * 3 + ["worst"] * 3
    assert set(told["methods"]) == {"pretrained", "contrastive", "arcface"}
    assert told["shown"][-1] == "pretrained"
    shown = {query["sample"] for query in told["gallery"]}
    shown |= {each for query in told["gallery"] for nearest in query["neighbours"].values() for each in nearest}
    shown |= {each for pair in told["confusions"] for example in pair["examples"] for each in example}
    assert {int(number) for number in re.findall(r"\.s(\d+)\{background", page)} == shown
    assert {int(number) for number in told["labels"]} == shown
    assert "levelfield study verify outputs/study" in page


def test_samples_that_are_not_those_that_were_scored_are_not_shown(study: Path) -> None:
    record = StudyFolder.begun(study)
    (data,) = {record.tests()["arcface", run]["data"]["fingerprint"] for run in (0, 1)}
    assert isinstance(scored_samples(record, data), ScoredSamples)
    assert scored_samples(record, "another") == OTHER_SAMPLES
    config = record.spec.methods["contrastive"]
    config["data"]["dataset"] = {"class_path": "Omniglot", "init_args": {"root": str(study / "nowhere")}}
    assert scored_samples(record, data) == NOT_HERE


def test_an_archived_study_says_that_it_shows_no_samples(study: Path, tmp_path: Path) -> None:
    archive = write_archive(StudyFolder.begun(study), tmp_path / "toy.tar.xz")
    unpack_study(archive, tmp_path / "unpacked")
    _, pieces = written(tmp_path / "unpacked")
    assert any("no embeddings: arcface, contrastive, pretrained" in piece for piece in pieces)


def test_the_page_opens_with_the_conclusion_one_figure_and_ten_rows_and_folds_the_rest(study: Path) -> None:
    page, _ = written(study)
    opening, folded = page.split("<details>", 1)
    assert opening.count("<figure") == 1
    assert 'class="verdict"' in opening
    assert opening.count("<tr><th") - 1 == 3  # its rows, without the head
    assert "<details open" not in folded
    assert folded.count("<h2>") == page.count("<h2>") > 6
