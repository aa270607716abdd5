"""`study verify`: whatever is changed in a finished study is found and named."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from pretended_gpu import pretended_gpu

from levelfield.analysis.verify import verify_study
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.study.folder import StudyFolder

RUN = Path("jobs/arcface/run1")


def verify(study: Path) -> list[str]:
    return verify_study(StudyFolder.begun(study))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_finished_study_matches_and_nothing_is_written(copy: Path) -> None:
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in copy.rglob("*") if path.is_file()}
    assert verify(copy) == []
    assert files == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in copy.rglob("*") if p.is_file()}


def test_what_a_gpu_has_scored_is_scored_there_again(copy: Path, ranked_on: list[str], monkeypatch) -> None:
    scores = copy / RUN / "test" / "result.json"
    edit_json(scores, provenance={**json.loads(scores.read_text())["provenance"], "device": "cuda:0"})
    assert verify(copy) == []
    with pretended_gpu():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert verify(copy) == []
    assert (ranked_on.count("cuda"), len(ranked_on) % 2) == (3, 0), "two folds and the concatenated embeddings"


def test_changed_embeddings_change_the_scores_and_both_tables(copy: Path) -> None:
    path = copy / RUN / "fold1" / "tested.safetensors"
    with safetensors.safe_open(path, framework="pt") as file:
        origin = file.metadata()
    tensors = safetensors.torch.load_file(path)
    # Every sample at the place of its class: all scores are 1.
    tensors["embeddings"] = tensors["labels"][:, None].eq(tensors["labels"].unique()).float()
    stored = json.loads((copy / RUN / "test" / "result.json").read_text())["separated"][1]["map_at_r"]
    safetensors.torch.save_file(tensors, path, metadata=origin)
    problems = verify(copy)
    line = f"arcface,test,,1,1,separated,map_at_r,{stored}"
    [found] = [p for p in problems if line in p]
    assert found.startswith("results.csv line ")
    assert found.endswith("'arcface,test,,1,1,separated,map_at_r,1.0' recomputed")
    assert any(p.startswith("summary.csv line ") for p in problems)
    assert not any("contrastive" in p for p in problems)


def test_what_the_ledger_does_not_know_is_named(copy: Path) -> None:
    """A checkpoint that was not tested, changed scores, a lost result, scores that name no evaluation."""
    checkpoint, scores = copy / RUN / "fold0" / "best.ckpt", copy / RUN / "test" / "result.json"
    tested = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    checkpoint.write_bytes(checkpoint.read_bytes() + b"!")
    now = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    edit_json(copy / RUN / "fold0" / "result.json", checkpoint=now)
    edit_json(scores, concatenated={**json.loads(scores.read_text())["concatenated"], "an_own_metric": 0.5})
    problems = verify(copy)
    assert f"{RUN}/fold0: checkpoint {now} is in result.json, {tested} in ledger.jsonl" in problems
    assert any(each.startswith(f"{RUN}/test/result.json: the scores are not those") for each in problems)
    (copy / RUN / "fold0" / "result.json").unlink()
    assert any(each.startswith(f"{RUN}/fold0/result.json: missing") for each in verify(copy))
    edit_json(scores, evaluation=None)
    with pytest.raises(UserError, match=str(scores)):
        verify(copy)


def test_a_method_that_waits_for_its_evaluation_is_no_fault(copy: Path) -> None:
    """As after `--add-method` and a stop before the test: the last evaluation was of the study without it."""
    jobs = copy / "jobs/arcface"
    for tested in [*jobs.glob("run*/test"), *jobs.glob("run*/fold*/tested.safetensors")]:
        shutil.rmtree(tested) if tested.is_dir() else tested.unlink()
    lines = [json.loads(line) for line in (copy / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"configuration": "of a study without arcface"} if line["event"] == "evaluated" else {}
        for part in ("checkpoints", "results", "scores"):
            line |= {part: {k: v for k, v in line[part].items() if "arcface" not in k}} if part in line else {}
    (copy / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [each for each in verify(copy) if not each.startswith(("results.csv", "summary.csv"))] == []


def test_a_changed_table_is_shown_line_by_line(copy: Path) -> None:
    path = copy / "summary.csv"
    lines = path.read_text().split("\n")
    right, lines[3] = lines[3], "arcface,concatenated,r_precision,0.99,,2"
    path.write_text("\n".join(lines))
    assert verify(copy) == [f"summary.csv line 4: {lines[3]!r} is stored, {right!r} recomputed"]
    path.unlink()
    assert verify(copy) == ["summary.csv: missing; `levelfield study report` writes it"]


def test_a_missing_ledger_is_found_by_everything_that_reads_the_study(
    copy: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = copy / "ledger.jsonl"
    ledger.unlink()
    before = files_of(copy)
    for command in ("run", "resume", "status", "report", "verify"):
        assert main(["study", command, str(toy_file), "--output", str(copy)]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert str(ledger) in error
    assert files_of(copy) == before
    for file in copy.rglob("test/result.json"):
        file.unlink()
    assert any(p.startswith("ledger.jsonl ") and "embeddings" in p for p in verify(copy))


def files_of(study: Path) -> dict[Path, bytes]:
    found = {path: path.read_bytes() for path in study.rglob("*") if path.is_file() and "locks" not in path.parts}
    return {path: content for path, content in found.items() if path.name not in (".lock", "study.yaml")}


def test_a_run_with_another_setting_or_seed_than_the_searchs_is_named(copy: Path) -> None:
    trials = [json.loads(path.read_text()) for path in copy.glob("jobs/arcface/trial*/fold*/result.json")]
    means = {n: sum(t["validation"]["map_at_r"] for t in trials if t["number"] == n) for n in range(3)}
    best = max(means, key=lambda n: means[n])
    edit_json(copy / RUN / "fold0" / "result.json", parameters={"model.loss_lr": 1.0})
    edit_json(copy / RUN / "fold1" / "result.json", seed=1)
    setting, seed, ledger = verify(copy)
    assert ledger == "arcface: a result.json of its jobs has changed since the last evaluation in ledger.jsonl"
    assert setting.startswith(f"{RUN}/fold0: parameters {{'model.loss_lr': 1.0}} are stored, ")
    assert setting.endswith(f"follow from trial {best}, the best")
    assert seed.startswith(f"{RUN}/fold1: seed 1 is stored, ")


@pytest.mark.parametrize("job", ["contrastive/trial2/fold1", "pretrained/run0/fold1"])
def test_an_edited_validation_score_is_named_also_with_its_curve(job: str, copy: Path) -> None:
    if (curve := copy / "jobs" / job / "metrics.csv").exists():
        (stored,) = json.loads(curve.with_name("result.json").read_text())["validation"].values()
        curve.write_text(curve.read_text().replace(str(stored), "0.99"))
    edit_json(copy / "jobs" / job / "result.json", validation={"map_at_r": 0.99})
    problems = verify(copy)
    changed = "a result.json of its jobs has changed since the last evaluation in ledger.jsonl"
    assert f"{job.split('/')[0]}: {changed}" in problems
    assert (f"jobs/{job}/metrics.csv: has changed since its job finished" in problems) == curve.exists()


def test_changed_and_missing_files_of_jobs_are_named(copy: Path) -> None:
    name, contrastive = "tested.safetensors", Path("jobs/contrastive")
    (copy / RUN / "fold0" / "config.yaml").write_text("")
    (copy / RUN / "fold1" / "metrics.csv").unlink()
    (copy / contrastive / "run1/fold0/best.ckpt").write_bytes(b"!")
    (copy / RUN / "fold0" / name).unlink()
    (copy / contrastive / "run0/fold0" / name).write_bytes(b"not a tensor")
    shutil.copy(copy / contrastive / "run1/fold1" / name, copy / contrastive / "run1/fold0" / name)
    problems = verify(copy)
    begins = [
        *(f"{RUN}/fold0/config.yaml: is empty", f"{RUN}/fold1/metrics.csv: is missing", f"{RUN}/fold0/{name}: missing"),
        *(f"{contrastive}/run0/fold0/{name}: damaged", f"{contrastive}/run1/fold0/best.ckpt: SHA-256 "),
        f"{contrastive}/run1/fold0/{name}: damaged, or of another checkpoint or evaluation",
    ]
    assert len(problems) == len(begins)
    assert [begin for begin in begins if not any(problem.startswith(begin) for problem in problems)] == []
