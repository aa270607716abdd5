"""Habits of Lightning users, one row each. What must come out is what bare Lightning gives, or the other door."""

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import plain_lightning as own
import pytest
import torch
from lightning.pytorch import seed_everything
from plain_lightning import MODEL, Habit, Pooled, Watch, fit, learner, letters, plain, quiet_trainer, spec, words
from refused import refused, succeeded
from torchvision.transforms import v2

from levelfield import MetricDataModule, MetricLearner
from levelfield.core.errors import UserError
from levelfield.losses import TripletMarginLoss
from levelfield.training.plain_module import adapted

OURS = "levelfield.training.callbacks"
BAREBONES = {"enable_progress_bar": None, "enable_model_summary": None}
PML, LOSSES = "pytorch_metric_learning", "levelfield.losses"
SCORE = {"monitor": "val/map_at_r", "mode": "max"}

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning's, of tiny fits; rows that must warn look for their warning
    pytest.mark.usefixtures("in_own_folder"),
]


def callback(path: str, trainer: dict[str, Any] | None = None, **arguments: Any) -> Habit:
    return Habit(trainer or {}, (spec(path, **arguments),))


def part(**model: Any) -> Habit:
    return Habit(model=model)


NO_NUMBER = {
    **{"deterministic": True, "detect_anomaly": True, "inference_mode": False, "use_distributed_sampler": False},
    **{"reload_dataloaders_every_n_epochs": 1, "profiler": "simple", "max_time": "00:01:00:00", "min_epochs": 2},
    **{"num_sanity_val_steps": -1, "log_every_n_steps": 1, "enable_model_summary": True, "benchmark": False},
}
ONLY_SHOW = (
    *map(spec, ("LearningRateMonitor", "RichProgressBar", "DeviceStatsMonitor", "LambdaCallback")),
    spec("Timer", duration={"hours": 1}, interval="step"),
    spec("ModelSummary", max_depth=3),
)
BY_STEPS = {"max_epochs": -1, "max_steps": 6, "check_val_every_n_epoch": None, "val_check_interval": 2}
PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"
RISING = {"lr_scheduler": spec(PLATEAU, mode="max", patience=0, threshold=1.0)}
STEP_LR = spec("torch.optim.lr_scheduler.StepLR", step_size=3, gamma=0.1)
SEMIHARD = spec(f"{PML}.miners.TripletMarginMiner", type_of_triplets="semihard")
ARCFACE = spec(f"{LOSSES}.ArcFaceLoss", margin=10.0)
CONTRASTIVE = spec(f"{LOSSES}.ContrastiveLoss", neg_margin=0.3)
SWEEP = ("--model.loss=ContrastiveLoss", "--model.loss.neg_margin=0.3")
RATES = {"logger": True, "max_epochs": 4, "log_every_n_steps": 1}
CLIPPED = {"gradient_clip_val": 0.05, "accumulate_grad_batches": 2}
EQUAL = {
    "defaults": Habit(),
    "options that change no number": Habit(NO_NUMBER),
    "callbacks that change no number": Habit({**RATES, "enable_progress_bar": True}, ONLY_SHOW),
    "accumulate": Habit({"accumulate_grad_batches": 3}),
    "GradientAccumulationScheduler": callback("GradientAccumulationScheduler", scheduling={0: 1, 1: 2}),
    "bf16-mixed": Habit({"precision": "bf16-mixed"}),
    "16-mixed and clip": Habit({"precision": "16-mixed", "gradient_clip_val": 0.05}),
    "64-true": Habit({"precision": "64-true"}),
    "limit_train_batches": Habit({"limit_train_batches": 2}),
    "limit_val_batches": Habit({"limit_val_batches": 0}),
    "val_check_interval": Habit({"val_check_interval": 0.5, "num_sanity_val_steps": 0}),
    "by steps": Habit(BY_STEPS),
    "check_val_every_n_epoch": Habit({"check_val_every_n_epoch": 2, "max_epochs": 4}),
    "fast_dev_run": Habit({"fast_dev_run": True}),
    "EarlyStopping": callback("EarlyStopping", {"max_epochs": 6}, **SCORE, patience=1),
    "ModelCheckpoint": callback("ModelCheckpoint", {"max_epochs": 3}, **SCORE, save_top_k=2, save_last=True),
    "ModelCheckpoint by steps": callback("ModelCheckpoint", every_n_train_steps=3, save_top_k=-1, filename="{step}"),
    "EMAWeightAveraging": callback("EMAWeightAveraging", decay=0.5),
    "SWA": callback("StochasticWeightAveraging", {"max_epochs": 4}, swa_lrs=0.01, swa_epoch_start=1),
    "ModelPruning": callback("ModelPruning", pruning_fn="l1_unstructured", amount=0.5),
    "BackboneFinetuning": Habit(
        callbacks=(spec("BackboneFinetuning", unfreeze_backbone_at_epoch=1),), kind=own.BackbonedLearner
    ),
    "GradientCaching": replace(callback(f"{OURS}.GradientCaching", CLIPPED, chunk_size=3), plain=Habit(CLIPPED)),
    "a step that returns a tensor": Habit(kind=own.TensoredLearner),
    "warm-up and cosine": Habit(RATES, (spec("LearningRateMonitor"),), kind=own.WarmedLearner),
    "manual optimisation": Habit(kind=own.ByHandLearner),
    "optimizer": part(optimizer=spec("torch.optim.SGD", momentum=0.9), weight_decay=0.1),
    "lr_scheduler": part(lr_scheduler=STEP_LR, lr_scheduler_interval="step"),
    "ReduceLROnPlateau": Habit({"max_epochs": 4}, model=RISING),
    "a sweep's words": Habit(model={"loss": CONTRASTIVE}, words=SWEEP),
    "regularizer": part(regularizer=spec("levelfield.regularizers.KoLeo", weight=0.5)),
    "PML loss and miner": part(loss=spec(f"{PML}.losses.TripletMarginLoss", margin=0.3), miner=SEMIHARD),
    "PML class weights": part(loss=spec(f"{PML}.losses.ArcFaceLoss", margin=10.0), loss_lr=0.1),
    "own loaders": Habit(loaders=own.own_loaders),
    "barebones": Habit({**BAREBONES, "barebones": True}, prepared=lambda it: it),
    "deepcopy": Habit(prepared=deepcopy),
    "pickle": Habit(prepared=lambda it: pickle.loads(pickle.dumps(it))),
    "moved": Habit(prepared=lambda it: it.double().to("cpu", torch.float32)),
    "freeze and unfreeze": Habit(prepared=lambda it: (it.freeze(), it.unfreeze(), it)[-1]),
    "validated before": Habit(prepared=lambda it: (quiet_trainer().validate(it, letters(), verbose=False), it)[-1]),
    "a second fit of the process": Habit(prepared=lambda it: (fit(Habit(), learner(), Path()), it)[-1]),
    "torch.compile": Habit(prepared=lambda it: torch.compile(it, backend="eager")),
}
COMPOSE = v2.Compose([v2.ToImage()])
REFUSED = {  # tests/cli/test_refusals.py has those of callbacks and schedules
    "overfit_batches": (Habit({"overfit_batches": 1}), ["overfit_batches"]),
    "class weights, own loaders": (Habit(model={"loss": ARCFACE}, loaders=own.own_loaders), ["build_loss"]),
    "a Compose": (Habit(loaders=lambda _: letters(transforms=COMPOSE)), ["transforms", "train()", "evaluate()"]),
}
BY_WORDS = [name for name, each in EQUAL.items() if each.loaders is each.prepared is None]
SLOW = pytest.param("torch.compile", marks=pytest.mark.full)  # its import takes six seconds


@pytest.fixture
def in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Watch, "last", None, raising=False)  # not that of an earlier fit


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory):
    """A habit, and what bare Lightning makes of it."""
    habit = EQUAL[request.param]
    begun = learner(habit.kind, **habit.model)
    begun.build_loss(9)
    return habit, fit(habit.plain or habit, plain(begun, **habit.model), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What bare Lightning makes of no habit at all."""
    return fit(Habit(), plain(learner()), tmp_path_factory.mktemp("usual"))


def equal(found: Watch, expected: Watch) -> None:
    assert found.counts == expected.counts
    assert found.losses == pytest.approx(expected.losses, rel=1e-3, abs=1e-5)
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    assert found.kept == pytest.approx(expected.kept, abs=1e-6)
    assert found.logged == pytest.approx(expected.logged, rel=1e-5)
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("expected", [*(name for name in EQUAL if name not in SLOW.values), SLOW], indirect=True)
def test_python_gives_what_bare_lightning_gives(expected, tmp_path):
    habit, found = expected
    module = learner(habit.kind, **habit.model)
    equal(fit(habit, module if habit.prepared is None else habit.prepared(module), tmp_path), found)


@pytest.mark.parametrize("expected", BY_WORDS, indirect=True)
def test_the_command_gives_what_bare_lightning_gives(expected, tmp_path, run):
    succeeded(run(*words(expected[0], tmp_path)))
    equal(Watch.last, expected[1])


@pytest.mark.processes
def test_processes_of_a_notebook_give_what_bare_lightning_gives(usual):
    trainer = quiet_trainer(devices=2, strategy="ddp_notebook")
    trainer.fit(learner(), letters())
    assert float(trainer.callback_metrics["val/map_at_r"]) == pytest.approx(usual.scores[-1], abs=1e-6)


def test_lightning_cli_gives_what_bare_lightning_gives(usual, tmp_path):
    from lightning.pytorch.cli import LightningCLI

    file = words(Habit(), tmp_path)[2]
    LightningCLI(MetricLearner, MetricDataModule, args=["fit", "--config", file], save_config_callback=None)
    jsonargparse.set_parsing_settings(config_read_mode_fsspec_enabled=False)  # as before that import
    equal(Watch.last, usual)


@pytest.mark.parametrize("name", REFUSED)
def test_python_refuses_in_one_line(name, tmp_path):
    habit, keys = REFUSED[name]
    with pytest.raises(UserError) as raised:
        fit(habit, learner(**habit.model), tmp_path)
    assert "\n" not in str(raised.value).strip()
    assert all(key in str(raised.value) for key in keys), raised.value


def test_an_output_folder_has_another_option(tmp_path, run):
    refused(run(*words(Habit({"default_root_dir": "here"}), tmp_path)), "default_root_dir", "--output")


@pytest.mark.parametrize("door", ["python", "command"])
def test_an_average_that_never_begins_is_named_and_until_then_the_trained_weights_stay(door, usual, tmp_path, run):
    habit = callback("EMAWeightAveraging", update_starting_at_step=100)
    with pytest.warns(UserWarning, match="EMAWeightAveraging averaged nothing in 8 steps"):
        run(*words(habit, tmp_path)) if door == "command" else fit(habit, learner(), tmp_path)
    equal(Watch.last, usual)
    late = fit(callback("EMAWeightAveraging", decay=0.5, update_starting_at_step=6), learner(), tmp_path)
    assert late.scores[0] == pytest.approx(usual.scores[0], abs=1e-6)
    assert not torch.allclose(late.weights, usual.weights, rtol=1e-3, atol=1e-4)


def test_a_callback_that_prefers_small_scores_is_named(tmp_path, recwarn):
    fit(callback("EarlyStopping", monitor="train/loss", strict=False), learner(), tmp_path)
    assert not [each for each in recwarn if "mode='max'" in str(each.message)]
    fit(callback("EarlyStopping", monitor="val/map_at_r/dataloader_idx_1", strict=False), learner(), tmp_path)
    (warned,) = [str(each.message) for each in recwarn if "mode='max'" in str(each.message)]
    assert "EarlyStopping" in warned


@pytest.mark.parametrize(("workers", "weights_only", "ours"), [(0, None, False), (2, True, False), (0, None, True)])
def test_a_resumed_fit_goes_on_as_one_that_went_through(workers, weights_only, ours, tmp_path):
    loaders = partial(own.own_loaders, ours=True) if ours else None
    whole = Habit({"max_epochs": 3}, loaders=loaders)
    expected = fit(whole, plain(learner()) if loaders is None else learner(), tmp_path)
    keep = callback("ModelCheckpoint", save_top_k=-1, filename="{epoch}")
    fit(replace(keep, loaders=loaders), learner(), tmp_path, letters(num_workers=workers))
    how = {"ckpt_path": tmp_path / "kept" / "epoch=1.ckpt", "weights_only": weights_only}
    found = fit(whole, learner(), tmp_path / "again", letters(num_workers=workers), **how)
    found.losses, found.scores = expected.losses[:8] + found.losses, expected.scores[:2] + found.scores
    equal(found, expected)


@pytest.mark.parametrize("door", ["learner", "plain module"])
def test_a_seed_has_draws_of_its_own(door, monkeypatch, tmp_path):
    drawn, start = {}, learner().state_dict()
    for seed in (None, 0, 1, 2, 1):
        monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored after the test
        monkeypatch.delenv("PL_GLOBAL_SEED") if seed is None else seed_everything(seed, verbose=False)
        module = MetricLearner(Pooled(), TripletMarginLoss(triplets_per_anchor=1), **MODEL)
        module.load_state_dict(start)
        module = module if door == "learner" else adapted(plain(module))
        found = fit(Habit({"limit_val_batches": 0}), module, tmp_path)
        assert drawn.setdefault(seed or 0, found.losses) == found.losses
    assert len({tuple(losses) for losses in drawn.values()}) == 3
