"""Scores on another set, with intervals over classes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from own_images import own_images
from refused import refused, succeeded
from statsmodels.api import OLS

import levelfield
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.use.transfer import class_interval, scores_of


def test_the_command_scores_another_set_and_keeps_a_ledger(fitted, tmp_path, run, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    best, table = fitted / "best.ckpt", own_images(tmp_path)
    embedded = levelfield.embed(best, table)
    printed = succeeded(run("score", "--ckpt_path", best, "--data", table))
    for said in ("16 classes, 64 samples", "other names than these 16", "evaluation 2 on this set"):
        assert said in printed  # levelfield.embed gave embeddings with labels
    labels = torch.tensor([int(label.removeprefix("class ")) for label in embedded.labels])
    expected = retrieval_metrics(embedded.embeddings, labels)
    (line,) = [line for line in printed.splitlines() if line.startswith("  MAP@R")]
    assert float(line.split()[1]) == pytest.approx(100 * expected["map_at_r"], abs=0.051)
    assert "±" in line
    lines = [json.loads(line) for line in (fitted / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["evaluated", "finished"]
    assert [lines[0][key] for key in ("data", "num_samples", "by")] == ["image_table", 64, "levelfield score"]


def test_mistakes_end_in_a_line(fitted: Path, tmp_path: Path, run) -> None:
    asked = ("score", "--ckpt_path", fitted / "best.ckpt")
    refused(run(*asked), "needs --data")
    refused(run(*asked, "--data", "grocery_stroe"), "no data set 'grocery_stroe'", "grocery_store")
    (tmp_path / "one.csv").write_text("path,label\na.png,a\nb.png,a\n")
    refused(run(*asked, "--data", tmp_path / "one.csv"), "1 classes have 2 or more samples, 2 must")
    groups = [f"{n}.png,c{n // 2},g{n // 2}" for n in range(8)]
    (tmp_path / "groups.csv").write_text("\n".join(["path,label,group", *groups]))
    refused(run(*asked, "--data", tmp_path / "groups.csv"), "0 classes", "in at least 2 groups")
    for role, found in (("gallery", 1), ("query", 0)):
        rows = f"0.png,a,query\n1.png,a,query\n2.png,b,{role}\n3.png,b,{role}\n"
        (tmp_path / "roles.csv").write_text(f"path,label,role\n{rows}")
        refused(run(*asked, "--data", tmp_path / "roles.csv"), f"the gallery has {found} classes", "role")
    (tmp_path / "t.csv").write_text("text,label\nhello,a\n")
    refused(run(*asked, "--data", tmp_path / "t.csv"), "holds texts", "takes images")
    refused(run(*asked, "--data", tmp_path, "--output", "x"), "--output is an option of", "predict --data")


@pytest.mark.parametrize("num_classes", [3, 12])
def test_the_interval_is_that_of_a_regression_with_clusters(num_classes: int) -> None:
    """A regression on a constant, whose errors are correlated within classes alone."""
    draw = np.random.default_rng(num_classes)
    labels = np.repeat(np.arange(num_classes), draw.integers(1, 9, num_classes))
    scores = draw.normal(size=num_classes)[labels] + draw.normal(size=len(labels))
    fit = OLS(scores, np.ones(len(scores))).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    found = class_interval(torch.tensor(scores), torch.tensor(labels))
    assert fit.params[0] - found == pytest.approx(fit.conf_int()[0, 0])
    assert class_interval(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([5, 5, 9])) is None, "two classes have none"


def test_the_scores_are_those_of_the_metrics() -> None:
    embeddings, labels, is_query = torch.randn(60, 8), torch.arange(60) % 7, torch.arange(60) < 20
    scores, skipped = scores_of(embeddings, labels, is_query, "euclidean")
    asked = embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query]
    expected = retrieval_metrics(*asked, distance="euclidean") | clustering_metrics(embeddings, labels)
    assert skipped == expected.pop("num_skipped") == 0
    assert {metric: score.value for metric, score in scores.items()} == pytest.approx(expected)
