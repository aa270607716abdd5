"""A test writes a card beside the checkpoint, with its scores and the way to them; an export takes them over."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from refused import succeeded

from levelfield.training.checkpoint import read_checkpoint
from levelfield.use.card import NOT_TESTED, write_card

NOT_HERE = "\n\nCHECKPOINTS is the folder of the checkpoint, which is not here."


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_a_test_writes_its_scores_and_the_card(fitted: Path, tmp_path: Path, run, ranked_on: list[str]) -> None:
    best = fitted / "best.ckpt"
    before = write_card(tmp_path, [best], [read_checkpoint(best)], "image").read_text()
    assert NOT_TESTED in before
    printed = succeeded(run("test", "--ckpt_path", best, "--trainer.enable_progress_bar", "false"))
    assert ranked_on == ["cpu"], "once, for what it prints and for the card"
    card = (fitted / "README.md").read_text()
    _, head, text = card.split("---\n", 2)
    assert yaml.safe_load(head)["pipeline_tag"] == "image-feature-extraction"
    (shown,) = [line.split() for line in printed.splitlines() if "test/map_at_r" in line]
    score = float(shown[3] if shown[0] != "test/map_at_r" else shown[1])
    assert f"| MAP@R | {100 * score:.1f} ± " in text
    found = json.loads((fitted / "test_scores.json").read_text())
    assert torch.tensor(found["scores"]["map_at_r"]["value"]).item() == score
    assert f"{found['classes']} classes, {found['samples']} samples" in text
    evaluated = json.loads((fitted / "ledger.jsonl").read_text().splitlines()[0])
    assert f"on {evaluated['time']}: evaluation {found['evaluation']['number']}." in text
    assert f"evaluation {found['evaluation']['number']} on these test classes" in printed
    for said in ("TimmTrunk (name test_resnet", "ArcFaceLoss (margin 20", "Glyphs", "fold 2 of 4", "trained on | 15 |"):
        assert said in text
    exported = write_card(tmp_path, [best], [read_checkpoint(best)], "image").read_text()
    assert exported.replace("CHECKPOINTS/", "").replace(NOT_HERE, "") == card
    content = torch.load(best, weights_only=True)
    content["state_dict"]["embedder.linear.bias"] += 1
    torch.save(content, best)
    assert NOT_TESTED in write_card(tmp_path, [best], [read_checkpoint(best)], "image").read_text()


def test_a_card_trusts_your_own_class_and_no_word_of_a_checkpoint_is_html(fitted: Path, tmp_path: Path) -> None:
    best, content = fitted / "best.ckpt", read_checkpoint(fitted / "best.ckpt")
    content["hyper_parameters"]["loss"] = {"class_path": "my_loss.MyLoss", "init_args": {}}
    for folder, place in ((fitted, ""), (tmp_path, "CHECKPOINTS/")):  # an export does not have the checkpoint
        text = write_card(folder, [best], [content], "image").read_text()
        assert text.count(f"--ckpt_path {place}best.ckpt --trust my_loss ") == 2
        assert (NOT_HERE in text) == bool(place)
    content["levelfield"] |= {"licence": "<script>", "weights": "<img src=x>"}
    content["hyper_parameters"]["trunk"] = {"class_path": "<b>", "init_args": {"<i>": "<u>"}}
    assert "<" not in write_card(tmp_path, [best], [content], "image").read_text()


def test_a_runs_card_names_the_table_of_its_study(copy: Path, tmp_path: Path) -> None:
    folds = [copy / f"jobs/arcface/run1/fold{fold}/best.ckpt" for fold in (0, 1)]
    card = write_card(tmp_path, folds, [read_checkpoint(fold) for fold in folds], "image").read_text()
    for said in ("into 32 numbers, concatenated from 2 models", "ArcFaceLoss", "Glyphs", "fold 0, 1 of 2", "Licence"):
        assert said in card
    assert "`results.csv`" in card
