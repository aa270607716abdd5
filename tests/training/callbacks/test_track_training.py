"""What trackers get of a training, as whose run, and the refusal of a tracker whose package is missing."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
import wandb
import yaml
from forked import levelfield, torchrun
from jsonargparse import Namespace
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from refused import refused
from small_fit import small_config, small_learner, small_trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_fit import TINY
from torch.utils.data import DataLoader, TensorDataset
from wandb_files import offline_runs

from levelfield.errors import UserError
from levelfield.metrics import embedding_health
from levelfield.models.trunks import ModuleTrunk
from levelfield.training import trackers
from levelfield.training.build import build
from levelfield.training.callbacks import KeepInWandb, TrackTraining
from levelfield.training.embed import embed
from levelfield.training.trackers import place_trackers

WANDB = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True, "project": "p"}}
BOARD = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}}
OF_EACH_FIT = {
    *("train/loss", "train/samples_per_second", "train/active_samples"),
    *("train/embedding_norm_mean", "train/embedding_norm_std"),
    *("train/intra_class_similarity", "train/inter_class_similarity"),
    *("lr/trunk", "lr/embedder", "grad_norm/trunk", "grad_norm/embedder"),
    *("val/map_at_r", "val/r_precision", "val/precision_at_1"),
    *("val/intra_class_similarity", "val/inter_class_similarity", "val/effective_rank"),
    "best/map_at_r",
}


def config_of(loss: str, *loggers: dict, **tracking: float) -> dict:
    callbacks = [{"class_path": "TrackTraining", "init_args": tracking}]
    callbacks += [{"class_path": "KeepInWandb", "init_args": {"queries": 3}}]
    trainer = {"logger": list(loggers) or None, "callbacks": callbacks if tracking else None}
    return small_config(model={"loss": loss}, trainer=trainer, data={"num_workers": 0})


class Gradients(Callback):
    """The norm of the loss' gradients at each step, as torch computes it."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(pl_module.loss.parameters(), math.inf)))


@pytest.mark.processes  # of W&B
def test_both_trackers_hold_the_same_numbers_and_the_training_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    gradients = Gradients()
    for name, config in (
        ("plain", config_of("ArcFaceLoss")),
        ("tracked", config_of("ArcFaceLoss", WANDB, BOARD, every_n_steps=1)),
    ):
        training = build(config, tmp_path / name, progress=False)
        training.trainer.callbacks += [gradients] * (name == "tracked")
        training.trainer.fit(training.model, datamodule=training.datamodule)
    for file in ("metrics.csv", "best.ckpt"):
        assert (tmp_path / "tracked" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()

    [found] = offline_runs(tmp_path)
    scalars = {key for key in found.keys if not key.startswith("val/neighbours")} - {"epoch", "trainer/global_step"}
    assert scalars == OF_EACH_FIT | {"lr/loss", "grad_norm/loss"}
    assert found.series("lr/loss") == dict.fromkeys(range(4), 0.01)
    assert found.series("grad_norm/loss") == pytest.approx(dict(enumerate(gradients.norms)), rel=1e-5)
    assert_shows_neighbours(found, training)

    [events] = (tmp_path / "tracked").glob("events.out.tfevents.*")
    board = EventAccumulator(str(events)).Reload()
    assert scalars <= set(board.Tags()["scalars"])
    assert [event.value for event in board.Scalars("grad_norm/loss")] == pytest.approx(gradients.norms, rel=1e-5)


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


@pytest.mark.full
@pytest.mark.usefixtures("quiet")
def test_the_best_epoch_is_kept_and_logged_next_to_other_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    added, add_file = [], wandb.Artifact.add_file
    monkeypatch.setattr(
        wandb.Artifact, "add_file", lambda *args, **how: added.append(args[1]) or add_file(*args, **how)
    )
    last = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": str(tmp_path), "filename": "mine"}}
    for name, fold in (("best", 0), ("last", "none")):
        config = config_of("ContrastiveLoss", WANDB, every_n_steps=1)
        config["trainer"]["callbacks"] = [last, {"class_path": "KeepInWandb", "init_args": {"queries": 0}}]
        config["data"]["fold"] = fold
        training = build(config, tmp_path / name, progress=False)
        training.trainer.fit(training.model, datamodule=training.datamodule)
        assert added.pop() == str(tmp_path / name / "best.ckpt")
        [found] = offline_runs(tmp_path / name)
        scores = [*found.series("best/map_at_r").values()]
        assert scores == ([training.best_score] if fold == 0 else [])


class Notes(Logger):
    """Keeps the last value of each name."""

    name = version = "notes"

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}

    def log_metrics(self, metrics, step=None) -> None:
        self.values |= metrics

    def log_hyperparams(self, *args, **kwargs) -> None:
        pass


@pytest.mark.usefixtures("quiet")
def test_the_statistics_are_those_of_the_first_validation_loader():
    learner = small_learner(trunk=ModuleTrunk(torch.nn.Identity(), 8))
    first, other = (TensorDataset(torch.randn(12, 8), torch.arange(12) % 4) for _ in range(2))
    notes = Notes()
    loaders = [DataLoader(each, batch_size=12) for each in (first, other)]
    small_trainer(TrackTraining(), logger=notes).validate(learner, loaders, verbose=False)
    expected = embedding_health(learner.eval()(first.tensors[0]).detach(), first.tensors[1])
    assert notes.values["val/effective_rank"] == pytest.approx(expected.effective_rank)


def test_each_process_can_show_neighbours_among_all_samples_and_no_fewer_than_none(tmp_path, monkeypatch):
    training = build(config_of("ContrastiveLoss"), tmp_path, progress=False)
    data = training.datamodule
    data.setup("fit")
    tables = []
    with pytest.raises(UserError, match="every_n_steps 0"):
        TrackTraining(every_n_steps=0)
    with pytest.raises(UserError, match="queries -1"):
        KeepInWandb(queries=-1)
    for processes in (1, 2):
        monkeypatch.setattr(type(data), "_world_size", processes)
        columns, rows = KeepInWandb(queries=4)._neighbours(training.model, data, "cpu")
        tables.append([[row[1], *(row[at]._caption for at in (0, *range(2, len(columns))))] for row in rows])
    assert tables[0] == tables[1]


@pytest.mark.full
@pytest.mark.processes
def test_of_two_processes_the_first_tells_of_the_whole_batch(tmp_path):
    words = [*TINY, "--model.loss", "ContrastiveLoss", "--config", "logger/wandb.yaml", "--output", str(tmp_path)]
    words += ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    words += ["--trainer.callbacks+", "TrackTraining", "--trainer.callbacks.every_n_steps", "1"]
    assert [done.returncode for done in torchrun(*levelfield("fit", *words))] == [0, 0]
    [found] = offline_runs(tmp_path)
    assert found.keys >= OF_EACH_FIT - {"train/loss"}  # it has fewer steps than a log of the loss


STOPPED = """
from pathlib import Path
from lightning.pytorch import Callback


class Stopped(Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1 and not Path("again").exists():
            Path("again").touch()
            raise KeyboardInterrupt
"""
OURS = {"name": "it-0", "group": "it", "job_type": "fit"}


@pytest.mark.full
def test_an_offline_run_holds_a_fit(tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--output", tmp_path, "--name", "named"]
    keep = ["--trainer.callbacks+", "KeepInWandb", "--trainer.callbacks.queries", "2"]
    code, _, complaint = run(*words, "--config", "logger/wandb.yaml", "--trainer.log_every_n_steps", "1", *keep)
    assert code == 0, complaint

    folder = tmp_path / "fit" / "named" / "0"
    [found] = offline_runs(tmp_path)
    assert (found.run.display_name, found.run.run_group, found.run.job_type) == ("named-0", "named", "fit")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: value for key, value in found.config.items() if key != "_wandb"} == settings
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = set(rows[0]) - {"epoch", "step"}
    assert columns >= {"train/loss", "val/map_at_r", "val/r_precision", "val/precision_at_1"}
    for column in columns:
        series = {int(row["step"]): float(row[column]) for row in rows if row[column]}
        assert found.series(column) == pytest.approx(series), column
    assert found.summary["best/map_at_r"] == pytest.approx(max(found.series("val/map_at_r").values()))
    assert len(found.table("val/neighbours")) == 2
    [best] = [artifact for artifact in found.artifacts if artifact.type == "model"]
    assert [content.path for content in best.manifest.contents] == ["best.ckpt"]
    assert best.manifest.contents[0].size == (folder / "best.ckpt").stat().st_size


@pytest.mark.parametrize("logger", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_one_line(logger, tiny, run, tmp_path, monkeypatch):
    # Not by sys.modules: the parser would forget the arguments of wandb.init for the tests that follow.
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "fit"]
    refused(run(*words, "--config", f"logger/{logger}"), f"levelfield[{logger}]")
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("kind", "given", "variables", "ours", "expected"),
    [
        ("WandbLogger", {"job_type": "j"}, {"WANDB_RUN_GROUP": "g"}, OURS, {"job_type": "j", "group": None}),
        ("WandbLogger", {}, {"WANDB_NAME": "n", "WANDB_RESUME": "must"}, OURS, {"name": None, "resume": None}),
        # The jobs of a study are runs of their own.
        ("WandbLogger", {"version": "v"}, {"WANDB_RUN_ID": "i"}, {"id": "own"}, {"id": "own", "version": None}),
        ("TensorBoardLogger", {"name": "lightning_logs"}, {}, OURS, {"name": "", "version": ""}),
    ],
)
def test_what_the_user_gives_to_a_tracker_is_kept(kind, given, variables, ours, expected, tmp_path, monkeypatch):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    empty = dict.fromkeys(("name", "version", "id", "group", "job_type", "resume"))
    logger = Namespace(class_path=f"loggers.{kind}", init_args=Namespace(**{**empty, **given}))
    place_trackers([logger], tmp_path, ours)
    built = {**vars(logger.init_args), **(logger.get("dict_kwargs") or {})}
    assert {key: built[key] for key in expected} == expected
    assert logger.init_args.save_dir == str(tmp_path)


@pytest.mark.full
def test_a_resumed_fit_continues_its_run(tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stopping.py").write_text(STOPPED)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--name", "it", "--output", tmp_path]
    words += ["--config", "logger/wandb.yaml", "--trainer.logger.group", "mine"]
    words += ["--trainer.callbacks+", "stopping.Stopped", "--checkpoint_seconds", "0"]
    code, _, complaint = run(*words)
    assert code == 130, complaint
    code, printed, complaint = run(*words, "--resume")
    assert code == 0, complaint
    assert "resuming" in printed
    first, second = offline_runs(tmp_path)
    assert first.run.run_id == second.run.run_id
    assert {first.run.run_group, second.run.run_group} == {"mine"}
    assert sorted({*first.series("val/map_at_r"), *second.series("val/map_at_r")}) == [3, 7]
    code, _, complaint = run(*words)
    assert code == 0, complaint
    assert len({each.run.run_id for each in offline_runs(tmp_path)}) == 2  # a new fit is a new run
