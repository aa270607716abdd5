"""A regularizer beside the loss: what is minimised, logged, kept in checkpoints and studies, and refused."""

import csv
import re

import pytest
import torch
from refused import refused
from torch import nn

from levelfield.analysis.conditions import differing_conditions
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.regularizers import AntiCollapse, CenterInvariance, KoLeo
from levelfield.study.rows import load_spec
from levelfield.training.checks import check_parts
from levelfield.training.learner import MetricLearner

STUDY = """
base:
  - model: {trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}}
  - data: {dataset: levelfield.data.datasets.Glyphs}
methods:
  plain: {model: {loss: {class_path: levelfield.losses.NTXentLoss}}}
  spread:
    model:
      loss: {class_path: levelfield.losses.NTXentLoss}
      regularizer: {class_path: levelfield.regularizers.KoLeo, init_args: {weight: 0.1}}
    search: {model.regularizer.init_args.weight: {low: 0.01, high: 1.0, scale: log}}
spaces: {plain: {}}
search: {trials: 2}
"""


class Flat(nn.Module):
    num_features = 6

    def forward(self, samples):
        return samples


def learner_of(loss, **arguments) -> MetricLearner:
    torch.manual_seed(0)
    learner = MetricLearner(Flat(), loss, embedding_size=4, **arguments)
    learner.build_loss(5)
    return learner


def test_minimises_the_loss_and_the_weighted_penalty_of_the_embeddings_or_class_weights():
    samples, labels = torch.randn(10, 6), torch.arange(10) // 2
    for loss, regularizer in [
        (ContrastiveLoss(), KoLeo(0.1)),
        (ArcFaceLoss, CenterInvariance(0.3)),
        (ArcFaceLoss, AntiCollapse(0.2, of="class_weights")),
    ]:
        learner = learner_of(loss, regularizer=regularizer)
        check_parts(learner)
        embeddings = learner(samples)
        found = learner.objective(embeddings, labels)
        points = embeddings if regularizer.of == "embeddings" else learner.loss.class_weights
        penalty = regularizer(points)
        torch.testing.assert_close(found["regularizer"], penalty)
        expected = learner.loss(embeddings, labels) + regularizer.weight * penalty
        torch.testing.assert_close(found["loss"], expected)
        weight = learner.embedder.linear.weight if points is embeddings else points
        both = [torch.autograd.grad(value, weight, retain_graph=True)[0] for value in (found["loss"], expected)]
        torch.testing.assert_close(*both)
    assert list(learner_of(ContrastiveLoss()).objective(embeddings, labels)) == ["loss"]


def test_a_fit_logs_the_penalty_by_itself_and_its_checkpoint_has_it(tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "NTXentLoss", "--trainer.log_every_n_steps", "1", "--output", tmp_path]
    words += ["--data.dataset.num_classes", "24", "--trainer.max_epochs", "1"]
    code, _, complaint = run(*words, "--model.regularizer", "KoLeo", "--model.regularizer.weight", "0.1", "--name", "a")
    assert code == 0, complaint
    folder = tmp_path / "fit" / "a" / "0"
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/regularizer"]]
    assert rows
    assert all(float(row["train/loss"]) > 0.1 * float(row["train/regularizer"]) for row in rows)
    learner = MetricLearner.load_from_checkpoint(folder / "best.ckpt")
    assert isinstance(learner.regularizer, KoLeo)
    assert learner.regularizer.weight == 0.1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("KoLoe", "'KoLeo'"),
        ("KoLeo --model.regularizer.weight -0.1", "KoLeo: weight=-0.1"),
        ("SphericalConstraint", "--model.normalize false"),
        ("CenterInvariance", "--model.loss ContrastiveLoss"),
        ("torch.nn.Identity", "--model.regularizer"),
    ],
)
def test_a_mistake_is_one_line(options, key, tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path, "--model.regularizer"]
    refused(run(*words, *options.split()), key)


def test_is_the_method_in_a_study(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    spec = load_spec(tmp_path / "study.yaml")
    (line,) = differing_conditions(spec)
    assert re.match(r"plain: .*\b2 trials", line)
    assert list(spec.space("spread"))
