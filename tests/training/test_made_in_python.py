"""A learner made in Python: its checkpoint with all settings, a fit that goes on, and other classes."""

import inspect
import warnings
from functools import partial

import numpy as np
import pytest
import pytorch_metric_learning.losses
import pytorch_metric_learning.miners
import torch
from lightning.pytorch import LightningModule, seed_everything
from small_fit import small_data, small_learner, small_trainer
from torch import nn

from levelfield import losses, miners
from levelfield.data.samplers import MPerClassBatchSampler
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, CrossBatchMemory, MarginLoss, WeightedSum
from levelfield.training import fit_start
from levelfield.training.learner import MetricLearner
from levelfield.training.make_loss import supplied_arguments
from levelfield.training.plain_module import adapted

pytestmark = pytest.mark.usefixtures("quiet")


def step(learner, **data):
    trainer = small_trainer(limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(**{"batch_size": 8, "steps_per_epoch": 1, **data}))
    return trainer


@pytest.fixture
def stored(tmp_path):
    """A function that fits a learner for one step and returns its checkpoint."""

    def store(learner):
        trainer = step(learner)
        trainer.save_checkpoint(tmp_path / "it.ckpt")
        return tmp_path / "it.ckpt"

    return store


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        (CrossBatchMemory(ContrastiveLoss(neg_margin=0.7), 16, 64), lambda loss: loss.loss.neg_margin),
        (WeightedSum({"a": ContrastiveLoss(neg_margin=0.7)}, {"a": 0.5}), lambda loss: loss.losses["a"].neg_margin),
        (
            partial(WeightedSum, losses={"a": ContrastiveLoss(neg_margin=0.7), "b": ArcFaceLoss}),
            lambda loss: loss.losses["a"].neg_margin,
        ),
        (ArcFaceLoss(15, 16, margin=0.7), lambda loss: loss.margin),
    ],
)
def test_a_loss_with_parts_comes_back_with_its_arguments(loss, value, stored):
    loaded = MetricLearner.load_from_checkpoint(stored(small_learner(loss)))
    assert value(loaded.loss) == 0.7
    assert type(loaded.loss) is (loss.func if isinstance(loss, partial) else type(loss))


@pytest.mark.parametrize("name", [*losses.__all__, *miners.__all__])
def test_every_loss_and_miner_is_built_again_from_its_arguments(name):
    kind = getattr(losses if name in losses.__all__ else miners, name)
    given = {
        "CrossBatchMemory": {"loss": ContrastiveLoss(), "embedding_size": 4},
        "WeightedSum": {"losses": {"a": ContrastiveLoss()}},
        "RankedListLoss": {"margin": 0.4, "Tn": 10.0},
    }.get(name, {})
    if "num_classes" in supplied_arguments(kind):
        given = {"num_classes": 3, "embedding_size": 4}
    made = kind(**given)
    assert given.items() <= made.init_args.items()
    taken = inspect.signature(kind.__init__).parameters
    assert {each for each in taken if taken[each].default is not inspect.Parameter.empty} <= made.init_args.keys()
    again = kind(**made.init_args)
    assert again.init_args == made.init_args
    assert [*again.state_dict()] == [*made.state_dict()]


def test_an_argument_given_at_loading_replaces_the_stored_one(stored):
    path = stored(small_learner(trunk_lr=7e-7))
    loaded = MetricLearner.load_from_checkpoint(path, trunk_lr=1e-5, loss=ArcFaceLoss)
    assert (loaded.optimization.trunk_lr, loaded.hparams["trunk_lr"]) == (1e-5, 1e-5)
    with pytest.warns(UserWarning, match="was trained on 5 classes"):
        step(loaded, fold=1)
    assert loaded.loss.class_weights.shape == (15, 16)
    with pytest.raises(UserError, match="trunk_lrr"):
        MetricLearner.load_from_checkpoint(path, trunk_lrr=1e-5)


def test_parts_without_a_path_are_named_when_the_fit_goes_on(stored):
    miner = pytorch_metric_learning.miners.MultiSimilarityMiner()
    learner = small_learner(miner=miner, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))
    assert learner.hparams["miner"]["class_path"].endswith("MultiSimilarityMiner")
    path = stored(learner)
    loaded = MetricLearner.load_from_checkpoint(path)  # nobody needs them to embed
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step(loaded)
    lines = "\n".join(str(each.message) for each in told)
    named = [f"its {name}" in lines for name in ("miner", "optimizer", "loss", "regularizer")]
    assert named == [True, True, False, False]
    whole = MetricLearner.load_from_checkpoint(path, miner=miner, optimizer=torch.optim.SGD)
    assert whole.miner is miner
    step(whole)  # no warning


class Dropping(LightningModule):
    """Somebody's module: notes which numbers its dropout drops."""

    def __init__(self):
        super().__init__()
        self.net, self.dropped = nn.Linear(4, 4), []

    def training_step(self, batch, batch_idx):
        mask = nn.functional.dropout(torch.ones(64))
        self.dropped.append(mask)
        return self.net(mask[:4]).sum()

    def validation_step(self, batch, batch_idx):
        return self.net(batch[0].flatten(1)[:, :4])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_runs_of_a_plain_module_differ_in_their_dropout(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    dropped = []
    for seed in (1, 2, 1):
        seed_everything(seed, verbose=False)
        module = adapted(Dropping())
        step(module)
        dropped += module.dropped
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropped[0], dropped[2])


def test_a_resumed_fit_embeds_nothing_to_start_and_a_used_trainer_starts_a_new_learner(stored, monkeypatch):
    started = []
    real = fit_start.start_embedder
    monkeypatch.setattr(fit_start, "start_embedder", lambda *given: (started.append(1), real(*given)))
    new = partial(small_learner, embedder_init="pca", trunk_lr=0.0, embedder_lr=0.0)
    first = new()
    path = stored(first)
    assert len(started) == 1
    small_trainer(max_epochs=2).fit(new(), datamodule=small_data(), ckpt_path=path)
    assert len(started) == 1
    trainer = small_trainer(limit_train_batches=1)
    trainer.validate(first, datamodule=small_data(), ckpt_path=path, verbose=False)
    second = new()
    trainer.fit(second, datamodule=small_data())
    assert len(started) == 2
    torch.testing.assert_close(second.embedder.linear.weight, first.embedder.linear.weight)


SEEN = pytest.mark.filterwarnings("ignore:.*was trained on 5 classes of the validation fold")


@SEEN
@pytest.mark.parametrize(
    ("loss", "loaded"),
    [(ArcFaceLoss, True), (partial(MarginLoss, learn_beta=True), False), (ArcFaceLoss(15, 16), True)],
)
def test_on_other_classes_the_loss_starts_from_scratch(loss, loaded, stored):
    learner = small_learner(loss, loss_lr=0.5)
    path = stored(learner)
    before = {name: value.clone() for name, value in learner.loss.state_dict().items()}
    learner = MetricLearner.load_from_checkpoint(path) if loaded else learner
    learner.optimization.loss_lr = 0.0
    with pytest.warns(UserWarning, match="its loss starts from scratch"):
        step(learner, fold=1)
    for name, value in learner.loss.state_dict().items():
        assert not torch.equal(value, before[name]), name
    step(learner, fold=1)  # the same classes: no warning


@SEEN
def test_what_cannot_go_on_with_other_classes_is_refused(stored):
    learner = small_learner(pytorch_metric_learning.losses.ArcFaceLoss(15, 16))
    path = stored(learner)
    with pytest.raises(UserError, match="ArcFaceLoss"):
        step(learner, fold=1)
    with pytest.raises(UserError, match="test classes"):
        step(learner, split="random", split_seed=1)
    trainer = small_trainer(max_epochs=2)
    with pytest.raises(UserError, match="load_from_checkpoint"):
        trainer.fit(small_learner(ArcFaceLoss), datamodule=small_data(fold=1), ckpt_path=path)


def test_validation_on_classes_that_were_trained_on_is_warned_of(stored):
    learner = MetricLearner.load_from_checkpoint(stored(small_learner()))
    small_trainer().validate(learner, datamodule=small_data(), verbose=False)  # its own fold: no warning
    with pytest.warns(UserWarning, match="trained on 5 classes of the validation fold"):
        small_trainer().validate(learner, datamodule=small_data(fold=1), verbose=False)


def test_seed_everything_reaches_a_sampler_in_your_own_loader(monkeypatch):
    drawn = {}
    for seed in ("1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        drawn[seed] = [[*map(int, batch)] for batch in MPerClassBatchSampler([0, 1, 2] * 8, 4, 2, 3)]
    assert drawn["1"] != drawn["2"]
    given = MPerClassBatchSampler([0, 1, 2] * 8, 4, 2, 3, seed=1)
    assert [[*map(int, batch)] for batch in given] == drawn["1"]


def test_every_step_can_be_replaced_as_a_compiled_learner_does():
    learner = small_learner()
    for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
        setattr(learner, name, partial(getattr(learner, name)))  # by Lightning, for torch.compile(learner)
        assert isinstance(getattr(learner, name), partial)


class Starting(MetricLearner):
    """Somebody's learner, with a hook of its own."""

    def on_fit_start(self):
        self.began = True


def test_a_hook_of_a_subclass_leaves_the_start_at_the_data(monkeypatch):
    started = []
    monkeypatch.setattr(fit_start, "start_embedder", lambda *given: started.append(given[1]))
    learner = small_learner(kind=Starting, embedder_init="pca")
    step(learner)
    assert (learner.began, started) == (True, ["pca"])


def test_numbers_of_numpy_are_plain_and_a_local_function_is_named(stored):
    def sgd(groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1)

    learner = small_learner(trunk_lr=np.logspace(-4, -2, 3)[0], optimizer=sgd)
    assert (learner.hparams["trunk_lr"], type(learner.hparams["trunk_lr"])) == (1e-4, float)
    loaded = MetricLearner.load_from_checkpoint(stored(learner))
    assert loaded.optimization.trunk_lr == 1e-4
    with pytest.warns(UserWarning, match="its optimizer: it was an object .*sgd"):
        step(loaded)


def test_one_loss_has_two_paths_and_keeps_its_class_weights_at_both_doors(fitted):
    path = fitted / "best.ckpt"
    weights = torch.load(path, weights_only=True)["state_dict"]["loss.class_weights"]
    for loss in (ArcFaceLoss, partial(ArcFaceLoss, margin=10.0)):
        assert torch.equal(MetricLearner.load_from_checkpoint(path, loss=loss).loss.class_weights, weights)
    assert MetricLearner.load_from_checkpoint(path, loss=losses.CosFaceLoss).loss is None, "it is built in a fit"


class Told(losses.MetricLoss):
    """Counts how often it hears the number of classes."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def set_num_classes(self, num_classes):
        self.heard.append(num_classes)


def test_each_inner_loss_hears_the_number_of_classes_once():
    told = Told()
    held = nn.ModuleDict({"module": nn.Sequential(WeightedSum({"a": WeightedSum({"b": told})}))})
    learner = small_learner()
    learner.loss = held
    learner.build_loss(7)
    assert told.heard == [7]
