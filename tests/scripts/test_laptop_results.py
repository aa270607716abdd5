"""What is kept of a study: all that its tables follow from, and nothing of one that has not ended."""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from levelfield.analysis.verify import verify_study
from levelfield.errors import UserError
from levelfield.study.archive import unpack_study
from levelfield.study.folder import StudyFolder


@pytest.fixture(scope="module")
def scripts() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
        yield __import__("laptop_results")
    for name in [name for name in sys.modules if name.startswith("laptop_")]:
        del sys.modules[name]


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "toy"))


def test_tables_and_trials_can_be_made_again_from_what_is_kept(
    scripts: ModuleType, study: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    scripts.collect(study, kept)
    for name in ("results.csv", "summary.csv", "ledger.jsonl"):
        assert (kept / name).read_bytes() == (study / name).read_bytes()
    unpack_study(kept / "study.tar.xz", tmp_path / "unpacked")
    assert verify_study(StudyFolder.begun(tmp_path / "unpacked")) == []
    with open(kept / "trials.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], int(line["trial"])) for line in lines] == [
        (method, trial) for method in ("contrastive", "arcface") for trial in range(3)
    ]
    for line in lines:
        folder = study / "jobs" / line["method"] / f"trial{line['trial']}"
        results = [json.loads((folder / f"fold{fold}" / "result.json").read_text()) for fold in range(2)]
        assert json.loads(line["settings"]) == results[0]["parameters"]
        mean = sum(result["validation"]["map_at_r"] for result in results) / 2
        assert float(line["map_at_r"]) == pytest.approx(mean)
    for method in ("contrastive", "arcface"):
        values = {int(line["trial"]): float(line["map_at_r"]) for line in lines if line["method"] == method}
        (best,) = (int(line["trial"]) for line in lines if line["method"] == method and line["chosen"] == "1")
        assert values[best] == max(values.values())


def test_an_unfinished_or_damaged_study_is_refused_and_leaves_nothing(
    scripts: ModuleType, study: Path, tmp_path: Path
) -> None:
    summary = (study / "summary.csv").read_bytes()
    (study / "summary.csv").unlink()
    with pytest.raises(UserError, match="has not ended"):
        scripts.collect(study, tmp_path / "kept")
    (study / "summary.csv").write_bytes(summary.replace(b"0.", b"1.", 1))
    for scores_again in (True, False):
        with pytest.raises(UserError, match=r"problems, the first: summary\.csv"):
            scripts.collect(study, tmp_path / "kept", scores_again)
    (study / "summary.csv").write_bytes(summary)
    (study / "jobs" / "arcface" / "trial1" / "fold0" / "result.json").unlink()
    with pytest.raises(UserError):
        scripts.collect(study, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
