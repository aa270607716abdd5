"""Scores on another set, with intervals over classes; how `compare` fills its time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from own_images import own_images
from refused import refused
from scipy import stats

import levelfield
from levelfield.compare import plan
from levelfield.compare.plan import HEAD_SECONDS, SIZES, Costs, Counts, Lengths, choose, seconds
from levelfield.core import ledger
from levelfield.data.datasets import Glyphs, ImageTable
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.use.transfer import class_interval, scores_of


def test_the_command_scores_another_set_and_keeps_a_ledger(fitted, tmp_path, run, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    best, table = fitted / "best.ckpt", own_images(tmp_path)
    embedded = levelfield.embed(best, table)
    code, printed, complaint = run("score", "--ckpt_path", best, "--data", table)
    assert code == 0, complaint
    assert "16 classes, 64 samples" in printed
    assert "other names than these 16" in printed
    labels = torch.tensor([int(label.removeprefix("class ")) for label in embedded.labels])
    expected = retrieval_metrics(embedded.embeddings, labels)
    (line,) = [line for line in printed.splitlines() if line.startswith("  MAP@R")]
    assert float(line.split()[1]) == pytest.approx(100 * expected["map_at_r"], abs=0.051)
    assert "±" in line
    assert "evaluation 2 on this set" in printed  # levelfield.embed gave embeddings with labels
    lines = [json.loads(line) for line in (fitted / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["evaluated", "finished"]
    assert [lines[0][key] for key in ("data", "num_samples", "by")] == ["image_table", 64, "levelfield score"]
    assert run("test", "--ckpt_path", best, "--trainer.enable_progress_bar", "false")[0] == 0
    scored = ImageTable(table)
    assert len(ledger.evaluations_of(list(scored.contents_of(scored.read_index().keys)))) == 2, "the test is of letters"


def test_mistakes_end_in_a_line(fitted: Path, tmp_path: Path, run) -> None:
    asked = ("score", "--ckpt_path", fitted / "best.ckpt")
    refused(run(*asked), "needs --data")
    refused(run(*asked, "--data", "grocery_stroe"), "no data set 'grocery_stroe'", "grocery_store")
    (tmp_path / "one.csv").write_text("path,label\na.png,a\nb.png,a\n")
    refused(run(*asked, "--data", tmp_path / "one.csv"), "1 classes have 2 or more samples, 2 must")
    for role, found in (("gallery", 1), ("query", 0)):
        (tmp_path / "roles.csv").write_text(
            f"path,label,role\n0.png,a,query\n1.png,a,query\n2.png,b,{role}\n3.png,b,{role}\n"
        )
        refused(run(*asked, "--data", tmp_path / "roles.csv"), f"the gallery has {found} classes", "role")
    (tmp_path / "t.csv").write_text("text,label\nhello,a\n")
    refused(run(*asked, "--data", tmp_path / "t.csv"), "holds texts", "takes images")
    refused(run(*asked, "--data", tmp_path, "--output", "x"), "--output is an option of")


@pytest.mark.parametrize("num_classes", [3, 12])
def test_the_interval_is_that_of_pairs_of_one_class(num_classes: int) -> None:
    """The variance of a mean whose errors are correlated within classes alone: the sum of all pairs' products."""
    draw = np.random.default_rng(num_classes)
    labels = np.repeat(np.arange(num_classes), draw.integers(1, 9, num_classes))
    scores = draw.normal(size=num_classes)[labels] + draw.normal(size=len(labels))
    errors = scores - scores.mean()
    pairs = sum(errors[i] * errors[j] for i, j in np.argwhere(labels[:, None] == labels))
    variance = pairs / len(scores) ** 2 * num_classes / (num_classes - 1)
    half = stats.t(num_classes - 1).ppf(0.975) * variance**0.5
    assert class_interval(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(half)
    assert class_interval(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([5, 5, 9])) is None, "two classes have none"


def test_it_covers_the_mean_of_all_classes_in_95_of_100_draws() -> None:
    draw, covered = np.random.default_rng(0), 0
    for _ in range(400):
        labels = np.repeat(np.arange(20), 5)
        scores = draw.normal(size=20)[labels] + draw.normal(size=100)
        covered += abs(scores.mean()) < class_interval(torch.tensor(scores), torch.tensor(labels))
    assert 0.92 < covered / 400 < 0.98


def test_the_scores_are_those_of_the_metrics() -> None:
    embeddings, labels = torch.randn(60, 8), torch.arange(60) % 7
    scores, skipped = scores_of(embeddings, labels)
    expected = retrieval_metrics(embeddings, labels) | clustering_metrics(embeddings, labels)
    assert skipped == expected.pop("num_skipped") == 0
    assert {metric: score.value for metric, score in scores.items()} == pytest.approx(expected)
    is_query = torch.arange(60) < 20
    scores, _ = scores_of(embeddings, labels, is_query, "euclidean")
    asked = embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query]
    assert scores["map_at_r"].value == pytest.approx(retrieval_metrics(*asked, distance="euclidean")["map_at_r"])


COUNTS = Counts(train=3000, validated=1000, tested=4000)
CARS = Costs(step=2.0, sample=0.02)  # at 224 px


def test_seconds_of_the_whole_ladder() -> None:
    """Counted by hand: features of all samples; per fold two losses with a head each, and the trunk."""
    trunk = 600 * 2.0 + 0.02 * (4 * 1000 + 4 * 1000 + 2 * 1000 + 3000 + 3 * 4000)
    assert seconds(CARS, COUNTS, 3, 600) == pytest.approx(0.02 * 8000 + 3 * 2 * (HEAD_SECONDS + trunk))
    for workers, rounds in ((4, 2), (6, 1), (64, 1)):  # six trainings, each on one core
        assert seconds(CARS, COUNTS, 3, 600, workers) == pytest.approx(0.02 * 8000 + rounds * (HEAD_SECONDS + trunk))
    assert seconds(CARS, COUNTS, 3, 0) == pytest.approx(0.02 * 8000 + 3 * 2 * HEAD_SECONDS)


def test_costs_grow_with_the_number_of_pixels() -> None:
    assert CARS.at(112, 224) == Costs(step=0.5, sample=0.005)


def test_more_time_is_spent_on_folds_then_larger_images_then_steps() -> None:
    assert choose(Costs(0.3, 0.005), COUNTS, 3, 400, 3600.0, (), 1).size is None, "texts have no size"
    found = [choose(CARS, COUNTS, 4, 600, 60.0 * minutes, SIZES, 224) for minutes in (1, 5, 15, 30, 60, 120, 240, 2000)]
    assert found[0] == Lengths(64, 4, 0)
    assert found[-1] == Lengths(224, 4, 2400)
    order = [(each.folds, each.size, each.steps) for each in found if each.steps]
    assert order == sorted(order)
    sizes = {each.size for each in found if 0 < each.folds < 4 and each.steps == 600}
    assert max(sizes) < 224, "a fold more comes before a larger image"
    for workers in (2, 5, 16, 64):
        lengths = choose(CARS, COUNTS, 4, 600, 1800.0, SIZES, 224, workers)
        assert seconds(CARS.at(lengths.size, 224), COUNTS, lengths.folds, lengths.steps, workers) <= 1800
    for minutes, lengths in zip((5, 15, 30, 60, 120, 240, 2000), found[1:], strict=True):
        if lengths.steps:
            spent = seconds(CARS.at(lengths.size, 224), COUNTS, lengths.folds, lengths.steps)
            assert spent <= 60 * minutes
            assert lengths.steps >= 100


def test_the_lengths_are_those_of_the_trunk_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small and a slow trunk with better features: its steps, and its size, which its file sets."""
    costs, quality = {"small": Costs(0.01, 0.0001), "slow": Costs(5.0, 0.05)}, {"small": 0.2, "slow": 0.6}
    own = {"data": {"transforms": {"crop_size": 518}}}
    trunks = {"small": {"model": {"trunk": "small"}}, "slow": {"model": {"trunk": "slow"}, **own}}
    monkeypatch.setattr(plan, "_measure", lambda config, *_: costs[config["model"]["trunk"]])
    starts = dict.fromkeys(plan.STARTS, 0.1)
    of = {name: ({"features": score, **starts}, 384, 128) for name, score in quality.items()}
    monkeypatch.setattr(plan, "_scores", lambda config, *_: of[config["model"]["trunk"]])
    dataset = Glyphs(num_classes=40)
    made = plan.make_plan(dataset, dataset.read_index(), 100, {"data": {}}, trunks, 4, 3600.0)
    assert (made.trunk, made.lengths.size) == ("slow", None)
    trained = len(dataset.read_index().keys) - 100
    counts = Counts(round(0.75 * trained), round(0.25 * trained), 100)
    assert 0 <= made.lengths.steps < 600, "the small trunk has time for 2,400"
    assert seconds(costs["slow"], counts, made.lengths.folds, made.lengths.steps) <= 3600
