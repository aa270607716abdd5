"""`study verify`: whatever is changed in a finished study is found and named."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from pretended_gpu import pretended_gpu
from refused import refused, refuses

from levelfield.analysis.verify import verify_study
from levelfield.core.files import file_hash
from levelfield.study.folder import StudyFolder

RUN = Path("jobs/arcface/run1")
CHANGED = "a result.json of its jobs has changed since the last evaluation in ledger.jsonl"


def verify(study: Path) -> list[str]:
    return verify_study(StudyFolder.begun(study))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def files_of(study: Path) -> dict[Path, tuple[int, bytes]]:
    """When each was written, and its content."""
    found = (path for path in study.rglob("*") if path.is_file() and "locks" not in path.parts)
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found if path.name != ".lock"}


def test_a_finished_study_matches_and_nothing_is_written(copy: Path, ranked_on: list[str], monkeypatch) -> None:
    """What a GPU has scored is scored there again."""
    scores = copy / RUN / "test" / "result.json"
    edit_json(scores, provenance={**json.loads(scores.read_text())["provenance"], "device": "cuda:0"})
    files = files_of(copy)
    assert verify(copy) == []
    assert files_of(copy) == files
    with pretended_gpu():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert verify(copy) == []
    assert (ranked_on.count("cuda"), len(ranked_on) % 2) == (3, 0), "two folds and the concatenated embeddings"


def test_changed_embeddings_change_the_scores_and_both_tables(copy: Path) -> None:
    path = copy / RUN / "fold1" / "tested.safetensors"
    with safetensors.safe_open(path, framework="pt") as file:
        tensors, origin = safetensors.torch.load_file(path), file.metadata()
    # Every sample at the place of its class: all scores are 1.
    tensors["embeddings"] = tensors["labels"][:, None].eq(tensors["labels"].unique()).float()
    stored = json.loads((copy / RUN / "test" / "result.json").read_text())["separated"][1]["map_at_r"]
    safetensors.torch.save_file(tensors, path, metadata=origin)
    problems = verify(copy)
    [found] = [p for p in problems if f"arcface,test,,1,1,separated,map_at_r,{stored}" in p]
    assert found.startswith("results.csv line ")
    assert found.endswith("'arcface,test,,1,1,separated,map_at_r,1.0' recomputed")
    assert any(p.startswith("summary.csv line ") for p in problems)
    assert not any("contrastive" in p for p in problems)


def test_what_the_ledger_does_not_know_is_named(copy: Path) -> None:
    """A checkpoint that was not tested, changed scores, a lost result, scores that name no evaluation."""
    checkpoint, scores = copy / RUN / "fold0" / "best.ckpt", copy / RUN / "test" / "result.json"
    tested = file_hash(checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes() + b"!")
    edit_json(copy / RUN / "fold0" / "result.json", checkpoint=file_hash(checkpoint))
    edit_json(scores, concatenated={**json.loads(scores.read_text())["concatenated"], "an_own_metric": 0.5})
    problems = verify(copy)
    assert f"{RUN}/fold0: checkpoint {file_hash(checkpoint)} is in result.json, {tested} in ledger.jsonl" in problems
    assert any(each.startswith(f"{RUN}/test/result.json: the scores are not those") for each in problems)
    (copy / RUN / "fold0" / "result.json").unlink()
    assert any(each.startswith(f"{RUN}/fold0/result.json: missing") for each in verify(copy))
    edit_json(scores, evaluation=None)
    refuses(str(scores), verify, copy)


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


def test_a_missing_ledger_is_found_by_everything_that_reads_the_study(copy: Path, toy_file: Path, run) -> None:
    ledger = copy / "ledger.jsonl"
    ledger.unlink()
    before = files_of(copy).items()
    for command in ("run", "resume", "status", "report", "verify"):
        refused(run("study", command, toy_file, "--output", copy), str(ledger))
    assert {path for path, _ in before ^ files_of(copy).items()} <= {copy / "study.yaml"}
    for file in copy.rglob("test/result.json"):
        file.unlink()
    assert any(p.startswith("ledger.jsonl ") and "embeddings" in p for p in verify(copy))


def test_a_run_with_another_setting_or_seed_than_the_searchs_is_named(copy: Path) -> None:
    trials = [json.loads(path.read_text()) for path in copy.glob("jobs/arcface/trial*/fold*/result.json")]
    sums = [sum(t["validation"]["map_at_r"] for t in trials if t["number"] == n) for n in range(3)]
    edit_json(copy / RUN / "fold0" / "result.json", parameters={"model.loss_lr": 1.0})
    edit_json(copy / RUN / "fold1" / "result.json", seed=1)
    setting, seed, ledger = verify(copy)
    assert ledger == f"arcface: {CHANGED}"
    assert setting.startswith(f"{RUN}/fold0: parameters {{'model.loss_lr': 1.0}} are stored, ")
    assert setting.endswith(f"follow from trial {sums.index(max(sums))}, the best")
    assert seed.startswith(f"{RUN}/fold1: seed 1 is stored, ")


@pytest.mark.parametrize("job", ["contrastive/trial2/fold1", "pretrained/run0/fold1"])
def test_an_edited_validation_score_is_named_also_with_its_curve(job: str, copy: Path) -> None:
    if (curve := copy / "jobs" / job / "metrics.csv").exists():
        (stored,) = json.loads(curve.with_name("result.json").read_text())["validation"].values()
        curve.write_text(curve.read_text().replace(str(stored), "0.99"))
    edit_json(copy / "jobs" / job / "result.json", validation={"map_at_r": 0.99})
    problems = verify(copy)
    assert f"{job.split('/')[0]}: {CHANGED}" in problems
    assert (f"jobs/{job}/metrics.csv: has changed since its job finished" in problems) == curve.exists()


def test_changed_and_missing_files_of_jobs_are_named(copy: Path) -> None:
    of_another = (copy / "jobs/contrastive/run1/fold1/tested.safetensors").read_bytes()
    damages = {
        "arcface/run1/fold0/config.yaml": (b"", "is empty"),
        "arcface/run1/fold1/metrics.csv": (None, "is missing"),
        "arcface/run1/fold0/tested.safetensors": (None, "missing"),
        "contrastive/run0/fold0/tested.safetensors": (b"not a tensor", "damaged"),
        "contrastive/run1/fold0/best.ckpt": (b"!", "SHA-256 "),
        "contrastive/run1/fold0/tested.safetensors": (of_another, "damaged, or of another checkpoint or evaluation"),
    }
    for path, (content, _) in damages.items():
        (copy / "jobs" / path).write_bytes(content) if content is not None else (copy / "jobs" / path).unlink()
    problems = verify(copy)
    assert len(problems) == len(damages)
    for path, (_, begins) in damages.items():
        assert any(problem.startswith(f"jobs/{path}: {begins}") for problem in problems), path
