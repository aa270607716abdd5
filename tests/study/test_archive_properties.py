"""What must hold for any archive of a study: it gives back what was written, and one changed byte is refused."""

import json
import random
import shutil
from pathlib import Path

import pytest
from toy_study import assert_same_bytes

from levelfield.analysis.results import write_tables
from levelfield.errors import UserError
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder

KINDS = ("validation", "concatenated", "one_pca")


def with_other_scores(folder: Path, drawn: random.Random) -> StudyFolder:
    """The study, with scores drawn for each job and test: of few digits and of many, zero, one and very small ones."""

    def score() -> float:
        return drawn.choice([0.0, 1.0, 5e-324, 0.1, drawn.random(), drawn.random() * 1e-9])

    for path in folder.glob("jobs/*/*/*/result.json"):
        content = json.loads(path.read_text())
        for scores in (*(content.get(kind, {}) for kind in KINDS), *content.get("separated", [])):
            scores.update({name: score() for name in scores})
        path.write_text(json.dumps(content))
    study = StudyFolder.begun(folder)
    write_tables(study)
    return study


@pytest.mark.parametrize("seed", range(2))
def test_any_scores_come_back_from_an_archive(seed: int, finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "study")
    archive = write_archive(with_other_scores(folder, random.Random(seed)), tmp_path / "it.tar.xz")
    unpack_study(archive, tmp_path / "out")
    assert_same_bytes(tmp_path / "out", folder)
    before = (tmp_path / "out/summary.csv").read_bytes()
    write_tables(StudyFolder.begun(tmp_path / "out"))
    assert_same_bytes(tmp_path / "out", folder)
    assert before != (finished / "summary.csv").read_bytes()


def test_an_archive_with_one_changed_byte_is_refused(finished: Path, tmp_path: Path) -> None:
    content = write_archive(StudyFolder.begun(finished), tmp_path / "it.tar.xz").read_bytes()
    drawn, file = random.Random(0), tmp_path / "changed.tar.xz"
    last = [*range(len(content) - 48, len(content))]
    for place in (0, *last, *(drawn.randrange(len(content)) for _ in range(20))):
        changed = bytearray(content)
        changed[place] ^= 1 << drawn.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(UserError, match=file.name):
            unpack_study(file, tmp_path / "out")
        assert not (tmp_path / "out").exists()
