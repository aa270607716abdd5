"""The evaluation on the test classes: its line is durable before a test label is read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from pretended_gpu import pretended_gpu
from study_engine import PLAIN, run_file, run_study, small_study, tables
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.configuration import set_dotted
from levelfield.core.errors import UserError
from levelfield.core.ledger import LEDGER
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ContrastiveLoss
from levelfield.models import LoRA, TimmTrunk
from levelfield.study import seal
from levelfield.study.folder import ARCHIVED, StudyFolder, scores_hash
from levelfield.study.jobs import folds_of
from levelfield.study.seal import score_run
from levelfield.study.spec import StudySpec
from levelfield.study.test_scores import EmbeddedTest, score_folds
from levelfield.study.workers import Unit
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]


@pytest.mark.slow
def test_the_line_is_written_before_a_test_half_is_set_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(here / "cache"))
    places = (here / "out" / LEDGER, here / "cache" / "evaluations" / LEDGER)
    seen: set[tuple[str, int, int]] = set()
    setup = MetricDataModule.setup

    def watched(self: MetricDataModule, stage: str) -> None:
        seen.add((stage, *(file.exists() and file.read_text().count('"evaluated"') for file in places)))
        setup(self, stage)

    monkeypatch.setattr(MetricDataModule, "setup", watched)
    study = run_file(small_study(here, text=PLAIN), here / "out")
    assert {each for each in seen if each[0] != "test"} <= {("fit", 0, 0), ("validate", 0, 0), ("validate", 1, 1)}
    assert {each for each in seen if each[0] == "test"} == {("test", 1, 1)}
    evaluated, finished = lines(study.folder)
    files = {row: str(study.test_file(row, 0).relative_to(study.folder)) for row in study.spec.rows}
    assert finished["scores"] == {file: scores_hash(study.tests()[row, 0]) for row, file in files.items()}
    assert evaluated["num_samples"] == 16 * 16  # half of 32 letters, in 16 typefaces
    expected = {str(job.path) for row in study.spec.rows for job in folds_of(study.spec, row, 0)}
    assert set(evaluated["checkpoints"]) == expected
    with pytest.raises(UserError, match=str(study.folder)):
        score_run(replace(left_to_test(study, study.test_file("contrastive", 0))[1].arguments[0], evaluation="another"))


@pytest.mark.slow
def test_lost_scores_are_another_evaluation_and_so_is_a_reason(archived, here: Path) -> None:
    file, folder = small_study(here, text=PLAIN), Path(shutil.copytree(archived[0], here / "out"))
    study = StudyFolder.begun(folder)
    before = tables(folder)
    score = study.test_file("contrastive", 0)
    score.unlink()
    run_file(file, folder)
    assert tables(folder) == before
    assert [line["event"] for line in lines(folder)] == ["evaluated", "finished"] * 2
    run_file(file, folder, reopen_test="two images were restored")
    run_file(file, folder, reopen_test="two images were restored")  # a resumed command
    assert [line["event"] for line in lines(folder)] == ["evaluated", "finished"] * 3
    assert lines(folder)[4]["reason"] == "two images were restored"
    assert tables(folder) == before  # the count is in no table
    content = (folder / LEDGER).read_bytes()
    (folder / LEDGER).write_bytes(b"")
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        run_file(file, folder)
    (folder / LEDGER).write_bytes(content)
    checkpoint = folder / "jobs/contrastive/run0/fold0/best.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes() + b"0")
    with pytest.raises(UserError, match=r"contrastive/run0/fold0/best\.ckpt"):
        run_file(file, folder)


def change(file: Path, **content: Any) -> dict[str, Any]:
    result = json.loads(file.read_text()) | content
    file.write_text(json.dumps(result))
    return result


def left_to_test(study: StudyFolder, file: Path) -> tuple[seal._Tests, Unit]:
    """The tests of a study's evaluation when the scores in `file` are lost."""
    content = file.read_bytes()
    file.unlink()
    tests = seal._Tests(study, lines(study.folder)[0]["id"])
    file.write_bytes(content)
    (unit,) = tests.ready()
    return tests, unit


@pytest.mark.parametrize("stage", ["trial", "run"])
def test_a_method_without_scores_keeps_the_test_classes_closed(stage: str, copy: Path, spec: StudySpec) -> None:
    (copy / LEDGER).unlink()
    for path in copy.glob("jobs/*/run*/test/result.json"):
        path.unlink()
    for path in copy.glob(f"jobs/arcface/{stage}*/fold*/result.json"):
        change(path, failure="nan at step 1")
    if stage == "trial":
        for path in copy.glob("jobs/arcface/run*/fold*/result.json"):
            path.unlink()
    with pytest.raises(UserError, match=r"arcface.*--stop-here"):
        run_study(copy, spec)
    assert not (copy / LEDGER).exists()


@pytest.mark.parametrize("damage", ["of other data", "torn"])
def test_embeddings_that_are_not_those_of_the_test_are_computed_again(damage: str, copy: Path, spec: StudySpec) -> None:
    study = StudyFolder(copy, spec)
    file = study.test_file("contrastive", 0)
    before = json.loads(file.read_text())
    task = left_to_test(study, file)[1].arguments[0]
    (place, origin), _ = task.stored()
    stored = EmbeddedTest.load(place, origin)
    others = stored.samples._replace(embeddings=stored.samples.embeddings.flip(0))
    EmbeddedTest(others, stored.is_query, "other data").save(place, origin)
    if damage == "torn":
        place.write_bytes(place.read_bytes()[:-20])
    found = score_run(task)
    parts = ("separated", "concatenated", "data")
    assert {key: found[key] for key in parts} == {key: before[key] for key in parts}


def test_a_run_is_scored_on_the_device_of_its_training(
    copy: Path, spec: StudySpec, ranked_on: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """k-means gets the numbers of the CPU."""
    study = StudyFolder(copy, spec)
    task = left_to_test(study, study.test_file("contrastive", 0))[1].arguments[0]
    task = replace(task, study=StudyFolder(copy, replace(spec, metrics=["nmi", "map"])))
    expected = score_folds([EmbeddedTest.load(*each) for each in task.stored()], "cosine", ["nmi", "map"])
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", torch.device("cuda", 0))
    monkeypatch.setattr(seal, "_built", [])
    with pretended_gpu():
        found = score_run(task)
    assert ranked_on == ["cpu"] * 3 + ["cuda"] * 3, "two folds and the concatenated embeddings"
    for scores, there in zip(expected["separated"], found["separated"], strict=True):
        assert there == pytest.approx(scores, abs=1e-6)
    assert found["concatenated"] == pytest.approx(expected["concatenated"], abs=1e-6)


def test_each_row_is_embedded_with_its_own_settings(copy: Path, spec: StudySpec) -> None:
    study = StudyFolder(copy, spec)
    task = left_to_test(study, study.test_file("contrastive", 0))[1].arguments[0]
    for size in (5, 7):
        config = set_dotted(task.config, "data.eval_batch_size", size)
        assert seal._test_data(replace(task, config=config))[1].batch_size == size


def test_scores_that_are_kept_are_of_the_samples_that_are_here(copy: Path, spec: StudySpec) -> None:
    (copy / ARCHIVED).write_text('{"rows": {"contrastive": {}}}')
    study = StudyFolder(copy, spec)
    file, scores = study.test_file("contrastive", 0), study.read_test("contrastive", 0)
    (copy / LEDGER).write_text((copy / LEDGER).read_text().splitlines()[0] + "\n")
    tests = seal._Tests(study, "another")
    assert tests.scored.keys() == {study.test_file("contrastive", run) for run in range(2)}
    assert tests.scored[file] == json.loads(file.read_text()) == scores | {"evaluation": "another"}
    assert {unit.function for unit in tests.ready()} == {score_run}, "the other rows have embeddings"
    assert "contrastive" not in {unit.row for unit in tests.ready()}
    change(file, data={"fingerprint": "of others"}, evaluation=scores["evaluation"])
    with pytest.raises(UserError, match=str(file)):
        seal._halves(study)
    file.unlink()
    with pytest.raises(UserError, match=str(file)):
        seal._halves(StudyFolder(copy, spec))


def test_all_runs_of_an_evaluation_are_of_the_same_samples(copy: Path, spec: StudySpec) -> None:
    study = StudyFolder(copy, spec)
    file = study.test_file("contrastive", 0)
    tests, unit = left_to_test(study, file)
    with pytest.raises(UserError, match="--reopen-test"):
        tests.add(unit, json.loads(file.read_text()) | {"data": {"fingerprint": "of others"}})
    change(file, data={"fingerprint": "of others"})
    ledger_file = copy / LEDGER
    ledger_file.write_text(ledger_file.read_text().splitlines(keepends=True)[0])  # stopped after the last scores
    with pytest.raises(UserError, match="--reopen-test"):
        run_study(copy, spec)
    assert len(lines(copy)) == 1, "it has not finished"


class Halved(MetricLearner):
    """Embeds with a `forward` of its own."""

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return super().forward(samples / 2)


@pytest.mark.parametrize("made", [MetricLearner, Halved])
def test_folds_that_share_a_trunk_embed_as_each_alone(made: type[MetricLearner]) -> None:
    trunk, images = TimmTrunk("test_resnet", weights=None), torch.randn(5, 3, 32, 32)
    learners = [made(trunk, ContrastiveLoss(), embedding_size=4).eval() for _ in range(2)]
    with torch.no_grad():
        torch.testing.assert_close(seal.SideBySide(learners)(images), torch.stack([one(images) for one in learners], 1))


@pytest.mark.parametrize("adapter", [None, LoRA(rank=2, target_modules=["conv1.3"])], ids=["frozen", "adapted"])
def test_folds_with_trunks_of_their_own_embed_as_each_alone(adapter: LoRA | None, tmp_path: Path) -> None:
    """The built model has the trunk of the first fold, or the one below the adapters of both."""
    learners, paths = [], []
    for fold in range(2):
        trunk = TimmTrunk("test_resnet", weights=None, adapter=adapter)
        learner = MetricLearner(trunk, ContrastiveLoss, embedding_size=4, freeze_trunk=adapter is None).eval()
        if adapter is not None and learners:
            state = learners[0].trunk.state_dict()
            trunk.load_state_dict({name: value + ("lora" in name) for name, value in state.items()})
        content = {"hyper_parameters": dict(learner.hparams), "state_dict": learner.state_dict()}
        learner.on_save_checkpoint(content)
        torch.save(content, tmp_path / f"{fold}.ckpt")
        learners, paths = [*learners, learner], [*paths, tmp_path / f"{fold}.ckpt"]
    number = torch.arange(6)
    loader = DataLoader(TensorDataset(torch.randn(6, 3, 32, 32), number, number), batch_size=4)
    alone = [embed(learner, loader).embeddings for learner in learners]
    here = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    data = SimpleNamespace(features=False)
    training = SimpleNamespace(model=learners[0], datamodule=data, trainer=here, config_dump={})
    found = seal._embed(paths, training, loader)  # type: ignore[arg-type]
    torch.testing.assert_close([samples.embeddings for samples in found], alone)
