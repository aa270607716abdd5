"""Results of other versions, or of another kind of device, are not mixed without a word."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from levelfield.cli.main import main
from levelfield.storage.provenance import library_versions
from levelfield.study.environment import environment

RUN = "jobs/arcface/run1/fold1"


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    """The study as it was when one training and its test were left to do."""
    folder = Path(shutil.copytree(finished, tmp_path / "study"))
    (folder / RUN / "result.json").unlink()
    for path in (*folder.rglob("test/result.json"), *folder.rglob("embeddings.safetensors")):
        path.unlink()
    (folder / "ledger.jsonl").unlink()
    return folder


def edit(study: Path, **changes: Any) -> None:
    """What the results of the first run say of their origin."""
    for path in study.glob("jobs/*/run0/*/result.json"):
        result = json.loads(path.read_text())
        result["provenance"] = {**result["provenance"], **changes}
        path.write_text(json.dumps(result))


OTHERS = {
    "torch": {"libraries": {**library_versions(), "torch": "0.4.1"}},
    "levelfield's computing files": {"files": "0" * 64},
    "device": {"device": "cuda:0", "gpu": "NVIDIA A100-SXM4-80GB"},
    "pretrained's trunk weights": {"weights": "other.pth (sha256 0123456789abcdef)"},
}


@pytest.mark.parametrize("key", OTHERS)
def test_other_versions_are_refused_in_one_line(
    key: str, study: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(study, **OTHERS[key])
    assert main(["study", "run", str(toy_file), "--output", str(study)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"levelfield: {study}: {key}: ")
    assert error.endswith("choose another --output, or mix them, which will stand beside the table: --mixed-versions")
    assert not (study / RUN / "result.json").exists()
    assert not (study / "ledger.jsonl").exists()


def test_what_may_mix_stands_beside_the_table_and_on_the_page(
    study: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(study, **OTHERS["torch"])
    words = [str(toy_file), "--output", str(study)]
    assert main(["study", "verify", *words]) == 2
    assert "MIXED VERSIONS: torch: 0.4.1 in 6 results" in capsys.readouterr().out
    assert main(["study", "run", *words, "--mixed-versions"]) == 0
    # 6 jobs of the first runs; 16 others and 5 tests by this version.
    line = f"MIXED VERSIONS: torch: 0.4.1 in 6 results, {library_versions()['torch']} in 21 results."
    assert line in capsys.readouterr().out.splitlines()
    assert line in (study / "report" / "index.html").read_text()
    assert main(["study", "run", *words]) == 0, "it was allowed once, of these versions"
    assert main(["study", "verify", *words]) == 0
    assert line in capsys.readouterr().out.splitlines()
    archive = study.with_name("mixed.tar.xz")
    assert main(["study", "archive", str(study), "--to", str(archive)]) == 0
    assert main(["study", "verify", str(archive)]) == 0, "the archive holds that it was allowed"
    assert line in capsys.readouterr().out.splitlines()


def test_another_processor_is_recorded_and_no_more(
    study: Path, finished: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(study, processor="another one (AVX2)")
    words = [str(toy_file), "--output", str(study)]
    assert main(["study", "run", *words]) == 0
    assert "MIXED" not in capsys.readouterr().out
    assert "another one (AVX2) (" in (study / "report" / "index.html").read_text()
    assert (study / "results.csv").read_bytes() == (finished / "results.csv").read_bytes()
    assert main(["study", "verify", *words]) == 0


def test_a_result_says_what_it_was_computed_with(finished: Path) -> None:
    for path in (f"{RUN}/result.json", "jobs/arcface/run1/test/result.json", "jobs/pretrained/run0/fold0/result.json"):
        provenance = json.loads((finished / path).read_text())["provenance"]
        assert {"torch", "timm", "lightning", "numpy"} <= set(provenance["libraries"])
        assert len(provenance["files"]) == 64
        assert provenance["processor"]
        assert environment("arcface", provenance)["device"] == "cpu"
