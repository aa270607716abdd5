"""Scores on another set: the library's metrics, with intervals over classes, and a line in the ledger."""

import json
from pathlib import Path

import pytest
import torch
from own_images import own_images
from refused import refused

import levelfield
from levelfield.core import ledger
from levelfield.data.datasets import ImageTable
from levelfield.metrics import retrieval_metrics


def test_the_command_scores_another_set_and_keeps_a_ledger(
    fitted: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_classes_of_the_same_name_are_told(fitted: Path, tmp_path: Path, run) -> None:
    content = torch.load(fitted / "best.ckpt", weights_only=True)
    known = content["levelfield"]["data"]["train_classes"][0]
    table = own_images(tmp_path)
    table.write_text(table.read_text().replace("class 03", known))
    code, printed, complaint = run("score", "--ckpt_path", fitted / "best.ckpt", "--data", table)
    assert code == 0, complaint
    assert "1 of the 16 classes have the name" in printed
    assert f"not be new to it: {known}\n" in printed


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
    refused(run(*asked, "--data", tmp_path, "--output", "x"), "--output is an option of predict")
