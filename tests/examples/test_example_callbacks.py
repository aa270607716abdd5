"""The callbacks in `examples`: neighbours in W&B, and a compiled trunk."""

import json
from pathlib import Path

import pytest
import torch
from pretended_gpu import pretended_gpu
from small_fit import small_config, small_learner
from torch import nn
from wandb_files import offline_runs

from examples.compile_trunk import CompileTrunk
from examples.wandb_neighbours import WandbNeighbours
from levelfield import MetricLearner
from levelfield.core.errors import UserError
from levelfield.models.trunks import Trunk
from levelfield.training.build import Training
from levelfield.training.embed import embed

WANDB = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True, "project": "p"}}


@pytest.mark.processes  # of W&B
def test_a_run_holds_the_neighbours_and_the_checkpoint_and_the_training_is_the_same(tmp_path, ranked_on, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    callback = {"class_path": "examples.wandb_neighbours.WandbNeighbours", "init_args": {"queries": 3}}
    for name, given in (("plain", {}), ("shown", {"logger": WANDB, "callbacks": [callback]})):
        config = small_config(model={"loss": "ArcFaceLoss"}, trainer=given, data={"num_workers": 0})
        training = Training(config, tmp_path / name).build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
    for file in ("metrics.csv", "best.ckpt"):
        assert (tmp_path / "shown" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    [found] = offline_runs(tmp_path)
    assert_shows_neighbours(found, training)
    [best] = [artifact for artifact in found.artifacts if artifact.type == "model"]
    assert [content.path for content in best.manifest.contents] == ["best.ckpt"]
    assert best.manifest.contents[0].size == (tmp_path / "shown/best.ckpt").stat().st_size
    with pretended_gpu() as gpu:
        _, rows = WandbNeighbours(3)._neighbours(training.model, training.datamodule, gpu)
    assert [row[1] for row in rows] == pytest.approx([row[1] for row in found.table("val/neighbours")])
    assert ranked_on[-1] == "cuda"
    with pytest.raises(UserError, match="queries -1"):
        WandbNeighbours(queries=-1)


def assert_shows_neighbours(found, training) -> None:
    """The table's queries and their neighbours are those of a float64 loop over the last epoch's embeddings."""
    embeddings, labels, _ = embed(training.model, training.datamodule.eval_dataloader(training.datamodule.val_subset))
    names = [training.datamodule.val_subset.class_names[label] for label in labels]
    units = torch.nn.functional.normalize(embeddings.double())
    expected = []
    for query in range(len(units)):
        order = [other for other in (units @ units[query]).argsort(descending=True).tolist() if other != query]
        right = [names[other] == names[query] for other in order]
        relevant = sum(right)
        precisions = [sum(right[: rank + 1]) / (rank + 1) for rank in range(relevant) if right[rank]]
        near = [f"{'right' if right[rank] else 'wrong'}: {names[order[rank]]}" for rank in range(5)]
        expected.append((sum(precisions) / relevant, [names[query], *near]))
    [table] = [artifact for artifact in found.artifacts if artifact.type == "run_table"]
    [file] = [content.local_path for content in table.manifest.contents if content.path.endswith(".table.json")]
    rows = json.loads(Path(file).read_text())["data"]
    shown = [(row[1], [cell["caption"] for cell in (row[0], *row[2:])]) for row in rows]
    scores = sorted(score for score, _ in expected)
    assert [score for score, _ in shown] == pytest.approx([scores[0], scores[len(scores) // 2], scores[-1]], abs=0.02)
    for score, captions in shown:
        assert any(captions == others and score == pytest.approx(found) for found, others in expected)


@pytest.mark.parametrize(("deterministic", "backend"), [(True, "inductor"), (False, "inductor"), (True, "eager")])
def test_a_note_says_what_determinism_costs_the_compiler(deterministic, backend, recwarn):
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        CompileTrunk(backend).on_train_start(None, small_learner())
    finally:
        torch.use_deterministic_algorithms(False)
    notes = [each for each in recwarn if "deterministic" in str(each.message)]
    assert len(notes) == (deterministic and backend == "inductor")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_the_weights_of_a_compiled_training_are_the_same_to_rounding(tmp_path, monkeypatch):
    compiled, compile_module = [], nn.Module.compile
    monkeypatch.setattr(Trunk, "compile", lambda self, **how: compiled.append(how) or compile_module(self, **how))
    states = []
    eager = {"class_path": "examples.compile_trunk.CompileTrunk", "init_args": {"backend": "eager"}}
    for name, callbacks in (("plain", []), ("other", [eager])):
        training = Training(small_config(trainer={"callbacks": callbacks}), tmp_path / name).build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        states.append(MetricLearner.load_from_checkpoint(tmp_path / name / "best.ckpt").state_dict())
    assert compiled == [{"backend": "eager", "mode": "default"}]
    torch.testing.assert_close(dict(states[1]), dict(states[0]), rtol=1e-5, atol=1e-5)
