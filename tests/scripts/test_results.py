"""What `scripts/results.py` keeps of a study verifies, and a changed number in it is found."""

import json
import re
import runpy
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deletable import RESULTS, needs
from tiny_fit import REPOSITORY

from levelfield.core.errors import UserError
from levelfield.study.archive import write_archive
from levelfield.study.folder import StudyFolder


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "scripts" / "results.py"))


def next_digit(file: Path) -> None:
    """Change a table's last digit."""
    text = file.read_text().rstrip("\n")
    file.write_text(f"{text[:-1]}{(int(text[-1]) + 1) % 10}\n")


def test_keep_writes_an_archive_and_a_summary_and_check_finds_a_change(copy: Path, tmp_path: Path, script, capsys):
    results = tmp_path / "results"
    script["keep"]("group", copy, results=results)
    kept = results / "group/copy"
    assert sorted(path.name for path in kept.iterdir()) == ["archive.tar.xz", "summary.csv"]
    assert (kept / "summary.csv").read_bytes() == (copy / "summary.csv").read_bytes()
    with tarfile.open(kept / "archive.tar.xz") as archive:
        for name in ("results.csv", "ledger.jsonl"):
            assert archive.extractfile(name).read() == (copy / name).read_bytes()
        # 2 methods x (3 trials + 2 runs), and the baseline, each on 2 folds.
        jobs = [name for name in archive.getnames() if re.search(r"/fold\d/result\.json$", name)]
        assert len(jobs) == (2 * (3 + 2) + 1) * 2 + 1
    shutil.copytree(kept, kept.with_name("sound"))
    next_digit(kept / "summary.csv")
    capsys.readouterr()
    assert script["check"](results=results)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("copy: summary.csv")
    assert (second, last) == ("sound: verified", "1 of 2 studies verified")
    # tests/analysis/test_study_verify.py has each change in an archive that is found.
    result = copy / "jobs/arcface/run1/test/result.json"
    scored = json.loads(result.read_text())
    scored["concatenated"]["map_at_r"] += 1e-6
    result.write_text(json.dumps(scored))
    write_archive(StudyFolder.begun(copy), kept / "archive.tar.xz")
    assert any("arcface/run1/test/result.json" in problem for problem in script["problems_of"](kept))


def test_an_unfinished_or_changed_study_is_refused_and_nothing_is_written(copy: Path, tmp_path: Path, script) -> None:
    summary = (copy / "summary.csv").read_bytes()
    next_digit(copy / "summary.csv")
    with pytest.raises(UserError, match=r"summary\.csv"):
        script["keep"]("group", copy, results=tmp_path / "results")
    (copy / "summary.csv").write_bytes(summary)
    (copy / "jobs/arcface/trial1/fold0/result.json").unlink()
    with pytest.raises(UserError, match="arcface trial 1 fold 0"):
        script["keep"]("group", copy, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


@needs(RESULTS)
@pytest.mark.full
@pytest.mark.slow
def test_every_kept_study_verifies(script: dict[str, Any], capsys: pytest.CaptureFixture) -> None:
    assert not script["check"](), capsys.readouterr().out
