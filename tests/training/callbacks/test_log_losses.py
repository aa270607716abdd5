"""What a step does beside its loss: it looks at no loss that nobody has asked for, and draws as torch's seed says."""

import warnings

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from small_fit import Looks, small_learner, small_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.v2.functional import normalize

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.learner import MetricLearner

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]
BATCHES = DataLoader([(torch.rand(8, 12), torch.arange(8) // 2)] * 20, batch_size=None)


def learner_of(loss: nn.Module) -> MetricLearner:
    given = {"embedding_size": 4, "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)}
    return MetricLearner(ModuleTrunk(nn.Identity(), 12), loss, **given)


@pytest.mark.parametrize(("trainer", "shows_a_bar"), [({}, True), ({"max_steps": 15}, False)])
def test_between_two_looks_at_the_loss_no_step_reads_it(trainer, shows_a_bar, capsys):
    with Looks() as looks:
        steps = LambdaCallback(on_train_batch_start=lambda *given: setattr(looks, "step", given[3]))
        given = {"limit_val_batches": 0, "log_every_n_steps": 10, "enable_progress_bar": shows_a_bar, **trainer}
        small_trainer(steps, **given).fit(learner_of(ContrastiveLoss()), BATCHES)
    assert [looks.counts[step] for step in (*range(1, 9), 11, 12)] == [0] * 10
    assert looks.counts[10] > 0
    assert not shows_a_bar or "train/loss" in capsys.readouterr().out


class Gives(nn.Module):
    """A loss of somebody's own."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, embeddings, labels):
        return self.given(embeddings)


NO_LOSS = [
    (lambda embeddings: embeddings.sum(1), r"\(8,\)"),
    (lambda embeddings: None, "NoneType"),
    (lambda embeddings: embeddings.detach().sum(), "gradient"),
]


@pytest.mark.parametrize(("given", "key"), NO_LOSS)
def test_what_is_no_loss_is_named(given, key):
    with pytest.raises(UserError, match=rf"--model\.loss Gives .*{key}"):
        small_trainer(max_steps=1, limit_val_batches=0).fit(learner_of(Gives(given)), BATCHES)


NAN, FINE = torch.tensor([[0.0], [torch.nan]]).expand(2, 12), torch.rand(8, 12)


@pytest.mark.parametrize(
    ("batch", "given", "key"),
    [
        ((NAN, torch.zeros(2), torch.tensor([4, 7])), torch.sum, r"\b1 of 2\b.*\b7 in the data set"),
        ((NAN, torch.zeros(2)), torch.sum, r"\b1 of 2\b.*\b1 in the batch"),
        ((FINE, torch.arange(8) // 2), lambda points: points.sum() * torch.inf, r"\binitial weights\b(?!.*_lr)"),
    ],
)
def test_no_learning_rate_is_blamed_for_the_first_loss(batch, given, key):
    often = 0 if given is not torch.sum else 50  # no logging is no division by zero
    trainer = small_trainer(max_steps=1, limit_val_batches=0, log_every_n_steps=often)
    with pytest.raises(TrainingFailed, match=f"step 0: .*{key}"):
        trainer.fit(learner_of(Gives(given)), DataLoader([batch], batch_size=None))


IMAGES = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) // 4


def said(*batch: torch.Tensor, **trunk: nn.Module) -> list[str]:
    """The warnings about images in a fit of two epochs."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        small_trainer(max_epochs=2).fit(small_learner(**trunk), DataLoader(TensorDataset(*batch), batch_size=8))
    return [str(each.message) for each in found if "standardise" in str(each.message)]


SEEN = [
    (IMAGES + 0.3 * (IMAGES.flip(0) - 0.5), None),  # noise, or the overshoot of an interpolation
    ((IMAGES * 255).to(torch.uint8), None),
    (normalize(IMAGES, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "-2.12 to 2.64"),
    (IMAGES * 255, "to 255"),
]


@pytest.mark.parametrize(("images", "range_"), SEEN)
def test_images_that_the_trunk_does_not_expect_are_warned_of_once(images, range_) -> None:
    lines = said(images, LABELS)
    assert len(lines) == (range_ is not None)
    assert all(range_ in line and "Normalize" in line for line in lines)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    assert said(images.float(), LABELS, trunk=ModuleTrunk(flat, 4)) == [], "it does not standardise"
