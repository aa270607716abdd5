"""What an opening of the test classes costs: each method is built once, and one at a time."""

import gc
import json
import re
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from toy_study import TOY, run_study

from levelfield.analysis.verify import verify_study
from levelfield.cli.main import main
from levelfield.study.spec import StudySpec
from levelfield.study.definition.study_file import load_spec
from levelfield.study.record import StudyRecord
from levelfield.study.sealed_test import opening
from levelfield.training.build import TrainingCLI


def test_each_method_is_built_once_and_one_is_held(
    copy: Path, spec: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    held: weakref.WeakSet[object] = weakref.WeakSet()
    most = 0
    really_built = opening._built

    def counted(of: StudyRecord, method: str) -> TrainingCLI:
        nonlocal most
        training = really_built(of, method)
        built.append(method)
        held.add(training.model.trunk)
        gc.collect()
        most = max(most, len(held))
        return training

    monkeypatch.setattr(opening, "_built", counted)
    run_study(copy, spec, reopen="to count")
    _first, *scored = built  # the first looks at the data, before the opening
    assert scored == ["pretrained", "contrastive", "arcface", "pretrained"], "the last compares the samples once more"
    assert most <= 2, "the trunk of the first, and of one method"


def test_a_study_of_many_methods_is_identified_in_their_number(
    spec: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = 0
    really = StudySpec.to_dict

    def counted(self: StudySpec) -> dict[str, object]:
        nonlocal resolved
        resolved += 1
        return really(self)

    monkeypatch.setattr(StudySpec, "to_dict", counted)
    many = replace(spec, methods={f"contrastive{i}": spec.methods["contrastive"] for i in range(20)})
    hashes = {many.method_hash(method) for method in many.methods}
    assert len(hashes) == 1, "the name of a method is not part of what it is"
    assert resolved == 1, "not once a method"
    plain = many.identity()
    plain["methods"].clear()
    assert many.method_hash("contrastive0") in hashes, "what identity() gives may be changed"


def test_the_test_has_what_the_search_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A searched crop and distance: the runs' own, as `levelfield test` reads them in their checkpoints."""
    study = tmp_path / "searched.yaml"
    study.write_text(
        TOY.partition("  arcface: {")[0] + "spaces: {contrastive: {data.transforms.crop_size: {values: [16, 24]}, "
        "model.distance: {values: [euclidean, hamming]}}}\n"
        "search: {trials: 2, sampler: random}\nfolds: 2\nruns: 1\nthreads: 1\n"
    )
    record = StudyRecord(tmp_path / "study", load_spec(study))
    run_study(record.folder, record.spec)
    stored = json.loads((record.folder / "jobs/contrastive/run0/test/result.json").read_text())
    checkpoint = record.folder / "jobs/contrastive/run0/fold1/best.ckpt"
    assert main(["test", "--ckpt_path", str(checkpoint), "--trainer.enable_progress_bar", "false"]) == 0
    printed = re.search(r"test/map_at_r\W+([\d.]+)", capsys.readouterr().out)
    assert printed is not None
    assert stored["separated"][1]["map_at_r"] == pytest.approx(float(printed[1]), abs=1e-6)
    assert verify_study(StudyRecord.begun(record.folder)) == []
