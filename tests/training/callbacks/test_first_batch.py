"""Images that are standardised before the trunk standardises them are noticed at the first batch of a fit."""

import warnings

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.v2.functional import normalize

from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.learner import MetricLearner

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]
IMAGES = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) // 4
FLAT = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))


class Views(MetricLearner):
    """Has its own form of batches."""

    def training_step(self, batch, batch_idx):
        view, other, labels, _ = batch
        return self.objective(self(torch.cat([view, other])), labels.repeat(2))


def said(*batch: torch.Tensor, kind: type = MetricLearner, trunk: torch.nn.Module | None = None) -> list[str]:
    """The warnings about images in a fit of two epochs."""
    learner = kind(trunk or TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loader = DataLoader(TensorDataset(*batch), batch_size=8)
        Trainer(max_epochs=2, enable_model_summary=False, **quiet).fit(learner, loader)
    return [str(each.message) for each in found if "standardise" in str(each.message)]


@pytest.mark.parametrize(
    ("images", "range_"),
    [
        (IMAGES, None),
        (IMAGES + 0.3 * (IMAGES.flip(0) - 0.5), None),  # noise, or the overshoot of an interpolation
        ((IMAGES * 255).to(torch.uint8), None),
        (normalize(IMAGES, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "-2.12 to 2.64"),
        (IMAGES * 255, "to 255"),
    ],
)
def test_images_that_the_trunk_does_not_expect_are_warned_of_once(images, range_) -> None:
    lines = said(images, LABELS)
    assert len(lines) == (range_ is not None)
    assert all(range_ in line and "Normalize" in line for line in lines)


def test_no_other_batch_is_looked_at() -> None:
    assert said(255 * IMAGES, LABELS, trunk=ModuleTrunk(FLAT, 4)) == []  # does not standardise
    assert said(255 * IMAGES, 255 * IMAGES, LABELS, LABELS, kind=Views) == []
