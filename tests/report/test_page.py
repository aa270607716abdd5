"""The page: from the folder alone, the same bytes twice, with everything a reader needs to judge the numbers."""

import base64
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
import torch
from by_sorting import cosines, ranked, scores_by_sorting
from own_images import square_folders
from refused import succeeded
from safetensors.torch import load_file
from toy_study import evaluated

from levelfield.analysis.results import collect_rows
from levelfield.analysis.verdict import conclusion, verdict
from levelfield.core.ledger import read_lines
from levelfield.report.facts import commands
from levelfield.report.page import write_report
from levelfield.report.retrieval import NOT_HERE, OTHER_SAMPLES, Retrieval, retrieval_of, scored_samples
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import find_study, load_spec
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet

FIGURES = ("scores", "differences", "search_1", "search_2")  # in the page's order


@pytest.fixture(scope="module", autouse=True)
def of_a_user_who_has_evaluated_nothing_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def written(study: Path) -> tuple[str, list[str]]:
    """The page of a study, whose tags match, and the pieces of its visible text."""
    page = write_report(StudyFolder.begun(study)).read_text()
    begun, ended = (Counter(re.findall(tag, page)) for tag in (r"<(?!meta|br|img)(\w+)", r"</(\w+)"))
    assert begun == ended
    pieces = (" ".join(unescape(piece).split()) for piece in re.split("<[^>]*>", page[page.index("<body>") :]))
    return page, [piece for piece in pieces if piece]


@pytest.fixture(scope="module")
def whole(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A study that nobody changes, its page and the page's text."""
    study = Path(shutil.copytree(finished, tmp_path_factory.mktemp("read") / "study"))
    return study, *written(study)


@pytest.mark.slow
def test_the_page_holds_the_study(whole: tuple[Path, str, list[str]]) -> None:
    study, page, pieces = whole
    text = "\n".join(pieces)
    files = {path.name: path.read_bytes() for path in (study / "report").iterdir()}
    assert set(files) == {"index.html", *(f"{name}.svg" for name in FIGURES)}
    embedded = [base64.b64decode(content) for content in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert embedded == [files[f"{name}.svg"] for name in FIGURES]
    assert str(study) not in page
    assert pieces[:2] == ["toy", "Glyphs · test_resnet, trained · 2 runs × 2 folds · at most 4 steps per training"]
    assert "Glyphs(num_classes: 32, image_size: 32)" in text
    assert re.search(r"\b16 classes .* 2 class-disjoint folds, 16 test classes with 256 samples", text)
    assert "3 trials of each method (gp), each on 2 folds" in text
    assert "The test classes were evaluated once." in text
    assert "ArcFace <code>arcface</code>" in page
    result = json.loads((study / "jobs/arcface/run0/fold0/result.json").read_text())
    libraries = result["provenance"]["libraries"]
    for known in (result["data"]["fingerprint"], result["provenance"]["weights"], f"torch {libraries['torch']}"):
        assert known in text
    opening = page.partition("<details>")[0]
    assert (opening.count("<figure"), opening.count("<h2>")) == (1, 0)
    assert 'class="verdict"' in opening
    assert opening.count("<tr><th") - 1 == 3  # its rows, without the head
    assert written(study)[0] == page
    assert {path.name: path.read_bytes() for path in (study / "report").iterdir()} == files
    assert "levelfield study report FOLDER levelfield study verify FOLDER" in pieces, "no folder of the machine"
    assert any("FOLDER is the study's folder" in piece for piece in pieces)
    record = StudyFolder.begun(study)
    for each in record.state.results.values():
        each["provenance"]["libraries"]["torch"] = "2.9.0+cpu"  # which no registry has
    assert "torch==2.9.0 " in commands(record, [])[0][1]


def test_the_numbers_are_those_of_the_results(whole: tuple[Path, str, list[str]]) -> None:
    study, _, pieces = whole
    means = pd.read_csv(study / "summary.csv", index_col=["method", "embedding", "metric"])["mean"]
    place = pieces.index("concatenated", pieces.index("All scores"))
    place = pieces.index("arcface", place)  # the row's own name, after the shown one
    scores = [means["arcface", "concatenated", metric] for metric in ("map_at_r", "r_precision")]
    assert pieces[place + 1 : place + 3] == [f"{100 * score:.1f}" for score in scores]
    difference = means["arcface", "separated", "map_at_r"] - means["contrastive", "separated", "map_at_r"]
    better, worse = ("ArcFace", "Contrastive") if difference >= 0 else ("Contrastive", "ArcFace")
    sentence = f"{better} over {worse}: {abs(100 * difference):+.1f} points MAP@R, too few runs for an interval"
    assert sentence in pieces


def test_the_page_shows_what_the_stored_embeddings_retrieve(whole: tuple[Path, str, list[str]]) -> None:
    study, page, _ = whole
    record = StudyFolder.begun(study)
    found = retrieval_of(record, collect_rows(record))
    _, index = scored_samples(record, record.tests()["arcface", 0]["data"]["fingerprint"])
    keys = [str(key) for key in index.keys]
    stored = load_file(study / "jobs/contrastive/run0/fold0/tested.safetensors")
    ranking = ranked(cosines(stored["embeddings"]), excludes_self=True)
    for query in (query for queries in found["groups"].values() for query in queries):
        assert set(query["answers"]) == {"contrastive", "arcface", "pretrained"}
        assert list(query["answers"])[-1] == "pretrained"
        place = keys.index(query["key"])
        nearest, answers = ranking[place][:8].tolist(), query["answers"]["contrastive"]
        assert [answer["key"] for answer in answers] == [keys[each] for each in nearest]
        assert [answer["hit"] for answer in answers] == (stored["labels"][nearest] == stored["labels"][place]).tolist()
        for sample in (query, *answers):
            assert f'<img src="{sample["shown"]}" alt' in page


def test_nearest_is_what_sorting_finds_and_the_best_are_better_than_the_median_and_these_than_the_worst() -> None:
    """Of queries of their own."""
    labels, is_query = torch.arange(120) % 6, torch.arange(120) < 60
    points = torch.randn(6, 8)[labels] + 0.8 * torch.randn(120, 8)
    found = Retrieval(EmbeddedTest(EmbeddedSet(points, labels, torch.arange(120)), is_query, "data"))
    similarities = cosines(points[:60], points[60:])
    expected = 60 + ranked(similarities, excludes_self=False)[[0, 8, 44], :5]
    assert found.nearest([0, 8, 44], 5).tolist() == expected.tolist()
    scores = scores_by_sorting(similarities, labels[:60], labels[60:], per_query=True)["map_at_r"]
    groups = found.examples(3)
    best, median, worst = (scores[queries] for queries in groups.values())
    assert [*groups] == ["best", "median", "worst"]
    assert (max(best), min(worst)) == (scores.max(), scores.min())
    assert max(worst) < min(median) < min(best)
    assert all(len({*labels[queries].tolist()}) == 3 for queries in groups.values()), "of three classes"
    assert len({query for queries in found.examples(6).values() for query in queries}) == 18, "each is shown once"


def test_what_failed_and_who_evaluated_is_listed_as_text(copy: Path) -> None:
    trials = pd.read_csv(copy / "results.csv").query("method == 'contrastive' and stage == 'trial'")
    values = trials.groupby("trial")["value"].mean()
    worst, best = int(values.idxmin()), int(values.idxmax())
    for job, why in ((f"contrastive/trial{worst}/fold1", "loss is <nan> at step 3"), ("arcface/run1/fold0", "a fault")):
        result = json.loads((copy / f"jobs/{job}/result.json").read_text())
        del result["validation"], result["checkpoint"]
        (copy / f"jobs/{job}/result.json").write_text(json.dumps({**result, "failure": why}))
    (copy / "jobs/arcface/run1/test/result.json").unlink()
    evaluated(copy, by="levelfield test", reason="a bug in <our> loss")
    page, pieces = written(copy)
    trial = json.loads((copy / f"jobs/contrastive/trial{best}/fold0/result.json").read_text())
    margin = trial["parameters"]["model.loss.init_args.neg_margin"]
    row = ["Contrastive", f"loss.neg_margin {margin:.4g}", str(best), f"{100 * values[best]:.1f}"]
    place = pieces.index(row[1])
    assert pieces[place - 1 : place + 3] == row
    assert f"Contrastive: trial {worst} fold 1: loss is <nan> at step 3" in pieces
    assert "arcface run 1 fold 0 failed, and its run is left out: a fault" in pieces
    assert not {"<nan>", "<our>"} & set(re.findall("<...>", page)), "what stands in the results is text, not HTML"
    assert "The test classes were evaluated 2 times." in pieces
    first, *_, last = (line["time"].replace("T", " ") for line in read_lines(copy / "ledger.jsonl"))
    listed = {*pieces[pieces.index("Evaluations of the test classes") :]}
    assert {first, last, "levelfield test", "a bug in <our> loss"} <= listed


def test_an_unfinished_study_has_a_page_too(copy: Path) -> None:
    gone = (copy.glob(each) for each in ("ledger.jsonl", "jobs/*/run*/test/result.json", "jobs/arcface/run1/fold1/r*"))
    for path in (path for paths in gone for path in paths):
        path.unlink()
    _, pieces = written(copy)
    # 3 untrained jobs, 2 methods x (3 trials + 2 runs) x 2 folds.
    assert "Unfinished: 22 of 23 jobs are done." in pieces
    assert "The test classes have not been evaluated." in pieces
    assert "Comparisons" not in pieces
    assert list(copy.glob("jobs/*/run*/fold*/tested.safetensors")), "of the evaluation that the ledger has lost"
    assert "Retrieved neighbours" not in pieces


def test_samples_that_are_not_those_that_were_scored_are_not_shown(copy: Path, tmp_path: Path) -> None:
    record = StudyFolder.begun(copy)
    data = record.tests()["arcface", 0]["data"]["fingerprint"]
    assert scored_samples(record, "another") == OTHER_SAMPLES
    unpack_study(write_archive(record, tmp_path / "toy.tar.xz"), tmp_path / "unpacked")
    _, pieces = written(tmp_path / "unpacked")
    assert any("no embeddings: arcface, contrastive, pretrained" in piece for piece in pieces)
    assert not [piece for piece in pieces if piece.startswith("levelfield search")], "an archive has no checkpoint"
    config = record.spec.methods["contrastive"]
    config["data"]["dataset"] = {"class_path": "Omniglot", "init_args": {"root": str(copy / "nowhere")}}
    assert scored_samples(record, data) == NOT_HERE


@pytest.mark.slow
def test_every_command_of_the_page_works_as_printed(finished: Path, tmp_path: Path, run, monkeypatch) -> None:
    study = Path(shutil.copytree(finished, tmp_path / "outputs/toy"))
    monkeypatch.chdir(tmp_path)
    square_folders(tmp_path / "images")
    _, pieces = written(study)
    lines = [line for piece in pieces for line in re.split(" (?=levelfield study verify)", piece)]
    lines = [line for line in lines if re.match("levelfield [a-z]+ .*outputs/toy", line)]
    assert [line.split()[1] for line in lines] == ["study", "study", "fit", "search"]
    for line in lines:
        words = line.replace("IMAGES_OR_TEXTS", "images").replace("ONE", "images/class_00/0.png").split()
        succeeded(run(*words[1:]))


def test_the_page_of_a_comparison_has_its_decision_and_not_the_best_test_score(copy: Path) -> None:
    record = StudyFolder.begun(copy)
    rows = collect_rows(record)
    best = verdict(rows, record.spec)
    other = "contrastive" if best[-1].startswith("ArcFace") else "arcface"
    decision = ["Use it.", "Of 2 rows the best."]
    for row in (other, "pretrained"):
        found_by = {"of": record.spec.configuration_hash(), "row": row, "sentences": decision}
        (copy / "decision.json").write_text(json.dumps(found_by))
        assert conclusion(record, rows) == [*decision, "The test classes were evaluated once."]
        found = [words for _, words in commands(record, rows) if words.startswith("levelfield search")]
        assert [re.search(r"FOLDER/(\S+)", words)[1] for words in found] == [f"jobs/{row}/run0/fold0/best.ckpt"]
    # Of a copy with another method, and somebody's file of another shape.
    for content in (json.dumps({**found_by, "of": "another"}), '{"row": 5}'):
        (copy / "decision.json").write_text(content)
        assert conclusion(record, rows)[:-1] == best


def test_the_command_of_a_shipped_study_reads_nothing_here_and_asks_for_its_data(monkeypatch, tmp_path: Path) -> None:
    """A stranger's study of this name in the working directory would import what it names."""
    for name in ("study/smoke.yaml", "data/glyphs.yaml", "method/multi_similarity_miner.yaml"):
        planted = tmp_path / "configs" / name
        planted.parent.mkdir(parents=True)
        planted.write_text("name: smoke\nmodel: {learner: no_such_module.Learner}\n")
    smoke, laptop = load_spec(find_study("smoke")), load_spec(find_study("laptop/banking77"))
    monkeypatch.chdir(tmp_path)
    for spec, words in ((smoke, "smoke.yaml"), (laptop, "laptop/banking77.yaml --data.root DIR")):
        assert f"levelfield study run {words}" in dict(commands(StudyFolder(tmp_path, spec), [])).values()
