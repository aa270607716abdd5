"""A row whose embeddings have collapsed says so, in the terminal's table and on the page."""

import json
import re
from pathlib import Path

import pytest
import torch

from levelfield.report.page import write_report
from levelfield.report.table import study_table
from levelfield.study.folder import StudyFolder
from levelfield.study.test_scores import EmbeddedTest, score_folds
from levelfield.training.embed import EmbeddedSet


def test_scores_hold_the_effective_rank_of_each_fold() -> None:
    labels = torch.arange(24) % 6
    sets = (torch.eye(8).repeat(3, 1), torch.ones(24, 8), torch.zeros(24, 8))
    folds = [EmbeddedTest(EmbeddedSet(each, labels, torch.arange(24)), None, "") for each in sets]
    assert score_folds(folds, "cosine", [])["effective_rank"] == [8.0, 1.0, 1.0]


@pytest.mark.parametrize(("ranks", "number"), [([1.49, 6.0], 1), ([1.0, 1.0], 2), ([1.5, 6.0], 0)])
def test_its_row_and_a_note_name_it(copy: Path, ranks: list[float], number: int) -> None:
    path = StudyFolder.begun(copy).test_file("contrastive", 0)
    test = json.loads(path.read_text())
    assert len(test["effective_rank"]) == 2
    path.write_text(json.dumps({**test, "effective_rank": ranks}))
    record = StudyFolder.begun(copy)
    table, page = str(study_table(record)), re.sub("</?a[^>]*>", "", write_report(record).read_text())
    for text in (table, page):
        assert ("Contrastive (collapsed)" in text) == (number > 0)
        assert "ArcFace (collapsed)" not in text
        assert bool(re.search(rf"contrastive collapsed: .*\b{number} of 4\b", text)) == (number > 0)
    assert "collapsed" not in (copy / "results.csv").read_text() + (copy / "summary.csv").read_text()
