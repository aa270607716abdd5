"""The evaluation on the test classes: its line is durable before a test label is read."""

import json
import shutil
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from pretended_gpu import pretended_gpu
from refused import refuses
from study_engine import PLAIN, run_file, run_study, small_study, tables
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.ledger import LEDGER
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ContrastiveLoss
from levelfield.models import LoRA, TimmTrunk
from levelfield.study.folder import ARCHIVED, StudyFolder, scores_hash
from levelfield.study.jobs import Job, folds_of
from levelfield.study.seal import _embed, _unit, score_run
from levelfield.study.spec import StudySpec
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]


@pytest.mark.slow
def test_the_line_is_written_before_a_test_half_is_set_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(here / "cache"))
    places = (here / "out" / LEDGER, here / "cache" / "evaluations" / LEDGER)
    seen: dict[str, set[tuple[int, ...]]] = {"fit": set(), "validate": set(), "test": set()}
    setup = MetricDataModule.setup

    def watched(self: MetricDataModule, stage: str) -> None:
        seen[stage].add(tuple(file.exists() and file.read_text().count('"evaluated"') for file in places))
        setup(self, stage)

    monkeypatch.setattr(MetricDataModule, "setup", watched)
    study = run_file(small_study(here, text=PLAIN), here / "out")
    assert (seen["fit"], seen["validate"] <= {(0, 0), (1, 1)}, seen["test"]) == ({(0, 0)}, True, {(1, 1)})
    evaluated, finished = lines(study.folder)
    scores = {study.test_file(row, 0): scores_hash(study.tests()[row, 0]) for row in study.spec.rows}
    assert finished["scores"] == {str(file.relative_to(study.folder)): each for file, each in scores.items()}
    assert evaluated["num_samples"] == 16 * 16  # half of 32 letters, in 16 typefaces
    jobs = (job for row in study.spec.rows for job in folds_of(study.spec, row, 0))
    assert {*evaluated["checkpoints"]} == {str(job.path) for job in jobs}
    refuses(str(study.folder), score_run, **(arguments_of(study, "contrastive") | {"evaluation": "another"}))


@pytest.mark.slow
def test_lost_scores_are_another_evaluation_and_so_is_a_reason(archived, here: Path) -> None:
    file, folder = small_study(here, text=PLAIN), Path(shutil.copytree(archived[0], here / "out"))
    before = tables(folder)
    StudyFolder.begun(folder).test_file("contrastive", 0).unlink()
    for evaluations, reason in ((2, ""), (3, "two images were restored"), (3, "two images were restored")):
        run_file(file, folder, reopen_test=reason or None)  # the last one is a resumed command
        assert [line["event"] for line in lines(folder)] == ["evaluated", "finished"] * evaluations
        assert tables(folder) == before, "the count is in no table"
    assert lines(folder)[4]["reason"] == reason
    (folder / LEDGER).write_bytes(b"")
    refuses(r"ledger\.jsonl", run_file, file, folder)


def change(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | content))


def arguments_of(study: StudyFolder, row: str) -> dict[str, Any]:
    """Those of `score_run` that score the first run of a row again, in the study's first evaluation."""
    samples = {half: study.tests()[row, 0]["data"]["fingerprint"] for half in study.spec.halves.values()}
    given = _unit(study, row, 0, samples, lines(study.folder)[0]["id"]).arguments
    return dict(zip(signature(score_run).parameters, given, strict=False))


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
    refuses(r"arcface.*--stop-here", run_study, copy, spec)
    assert not (copy / LEDGER).exists()


def test_a_run_is_scored_again_to_the_same_numbers_unless_its_files_have_changed(copy: Path, spec: StudySpec) -> None:
    study = StudyFolder(copy, spec)
    before, arguments = study.tests()["contrastive", 0], arguments_of(study, "contrastive")
    found = score_run(**arguments)
    assert all(found[key] == before[key] for key in ("separated", "concatenated", "data"))
    refuses("test samples", score_run, **(arguments | {"samples": "of others"}))
    checkpoint = study.checkpoint(Job("contrastive", "run", 0, 1))
    checkpoint.write_bytes(checkpoint.read_bytes() + b"0")
    refuses(r"contrastive/run0/fold1/best\.ckpt", score_run, **arguments)


@pytest.mark.filterwarnings("ignore:'pin_memory'")  # no GPU is here
def test_a_run_is_scored_on_the_device_of_its_training(copy, spec, ranked_on, monkeypatch):
    """k-means gets the numbers of the CPU."""
    arguments = arguments_of(StudyFolder(copy, spec), "contrastive")
    arguments |= {"study": StudyFolder(copy, replace(spec, metrics=["nmi", "map"]))}
    expected = score_run(**arguments)
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", torch.device("cuda", 0))
    with pretended_gpu():
        found = score_run(**arguments)
    assert ranked_on == ["cpu"] * 3 + ["cuda"] * 3, "two folds and the concatenated embeddings"
    for scores, there in zip(*([*each["separated"], each["concatenated"]] for each in (expected, found)), strict=True):
        assert there == pytest.approx(scores, abs=1e-6)


@pytest.mark.slow
def test_scores_that_are_kept_are_of_the_samples_that_are_here(copy: Path, spec: StudySpec) -> None:
    (copy / ARCHIVED).write_text('{"rows": {"contrastive": {}}}')
    study = StudyFolder(copy, spec)
    before = study.tests()
    files = {each: study.test_file(*each) for each in before}
    for each in before:
        change(files[each], was="here")
    run_study(copy, spec, reopen_test="again")
    assert study.tests().keys() == before.keys()
    for each, test in study.tests().items():
        assert test["evaluation"] == lines(copy)[-1]["id"]
        assert ("was" in test) == (each[0] == "contrastive"), "the other rows have embeddings"
    change(file := files["contrastive", 0], data={"fingerprint": "of others"})
    for _ in range(2):
        refuses(f"{file}.*--output", run_study, copy, spec, reopen_test="once more")
        assert len(lines(copy)) == 4, "no line for what cannot be scored"
        file.unlink(missing_ok=True)


def test_all_runs_of_an_evaluation_are_of_the_same_samples(copy: Path, spec: StudySpec) -> None:
    change(StudyFolder(copy, spec).test_file("contrastive", 0), data={"fingerprint": "of others"})
    (copy / LEDGER).write_text((copy / LEDGER).read_text().splitlines(keepends=True)[0])  # stopped before its end
    refuses("--reopen-test", run_study, copy, spec)
    assert len(lines(copy)) == 1, "it has not finished"


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
    data = SimpleNamespace(features=False, test_subset=None, eval_dataloader=lambda _: loader)
    training = SimpleNamespace(model=learners[0], datamodule=data, trainer=here, config_dump={})
    found = _embed([(path, "") for path in paths], training)  # type: ignore[arg-type]
    torch.testing.assert_close([samples.embeddings for samples in found], alone)
