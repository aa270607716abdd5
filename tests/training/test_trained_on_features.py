"""Training on features of a frozen trunk: the numbers of training through it, and the test classes stay sealed."""

from pathlib import Path

import pytest
import torch
import yaml
from own_images import noise_images
from refused import refused
from small_fit import small_data, small_learner, small_trainer
from tiny_text import own_texts, tiny_text_model
from toy_study import run_study

from levelfield.data import ImageTable, ImageTransforms, TextTable
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.models import MLPEmbedder, TimmTrunk, TransformersTrunk
from levelfield.study.rows import load_spec
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")

# A training image is what an evaluation image is.
FIXED = {"crop_size": 32, "resize": 32, "square": True, "random_crop": True, "horizontal_flip": False}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("features/*.npy"))


def learner_of(trunk=None, loss=ArcFaceLoss, **arguments) -> MetricLearner:
    settings = {"freeze_trunk": True, "embedder": MLPEmbedder, **({"trunk": trunk} if trunk else {}), **arguments}
    return small_learner(loss, **settings)


def changed(by: float) -> MetricLearner:
    learner = learner_of()
    with torch.no_grad():
        next(learner.trunk.parameters()).add_(by)
    return learner


def letters(features: bool, transforms=FIXED, **arguments) -> MetricDataModule:
    settings = {"batch_size": 16, "steps_per_epoch": 3, "transforms": ImageTransforms(**transforms), **arguments}
    return small_data(24, features=features, **settings)


def fit(learner: MetricLearner, data: MetricDataModule) -> float:
    trainer = small_trainer(max_epochs=2)
    torch.manual_seed(1)  # of class weights
    trainer.fit(learner, datamodule=data)
    return float(trainer.callback_metrics["val/map_at_r"])


def embedded(learner: MetricLearner, data: MetricDataModule):
    data.setup("validate")
    return embed(learner, data.eval_dataloader(data.val_subset))


def assert_same_head(one: MetricLearner, other: MetricLearner) -> None:
    for name, value in one.state_dict().items():
        if torch.is_tensor(value):
            torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=1e-5)


def test_the_features_of_images_are_training_through_the_trunk_and_its_learner_embeds_images():
    through, on_features, data = learner_of(), learner_of(), letters(True)
    score = fit(through, letters(False))
    assert fit(on_features, data) == pytest.approx(score, abs=1e-5)
    assert_same_head(through, on_features)
    assert not torch.allclose(learner_of().embedder.layers[0].weight, through.embedder.layers[0].weight)
    images, features = embedded(on_features, letters(False)), embedded(on_features, data)
    torch.testing.assert_close(features.embeddings, images.embeddings, atol=1e-5, rtol=0)
    assert torch.equal(features.labels, images.labels)
    assert torch.equal(features.index, images.index)
    found = on_features.embed_features(data.evaluated(data.val_subset))
    torch.testing.assert_close(found, images.embeddings, atol=1e-5, rtol=0)


def test_the_features_of_texts_are_training_through_the_trunk(tmp_path: Path):
    trunk = TransformersTrunk(str(tiny_text_model(tmp_path / "model")), weights=None, max_length=60)
    table = own_texts(tmp_path)
    outcomes = []
    for features in (False, True):
        learner = learner_of(trunk, ContrastiveLoss)
        data = MetricDataModule(TextTable(table), batch_size=8, steps_per_epoch=2, eval_batch_size=5, features=features)
        outcomes.append((learner, fit(learner, data)))
    (through, score), (on_features, found) = outcomes
    assert found == pytest.approx(score, abs=1e-5)
    assert_same_head(through, on_features)


def test_folds_seeds_augmentations_and_methods_share_a_file_and_open_no_image(cache: Path, monkeypatch):
    fit(learner_of(), letters(True))
    (made,) = files(cache)
    monkeypatch.setattr(Glyphs, "load", lambda *_: pytest.fail("opened an image"))
    monkeypatch.setattr(TimmTrunk, "forward", lambda *_: pytest.fail("ran the trunk"))
    other = {**FIXED, "scale": (0.5, 1.0), "horizontal_flip": True}
    fit(learner_of(loss=ContrastiveLoss), letters(True, other, fold=2, seed=5))
    assert files(cache) == [made]


def test_other_weights_or_images_have_another_file(cache: Path):
    fit(learner_of(), letters(True))
    fit(changed(1e-3), letters(True))
    assert len(files(cache)) == 2
    for number, other in ((3, {"crop_size": 28}), (4, {"eval_resize": 40}), (4, {"resize": 36, "eval_resize": 32})):
        fit(learner_of(), letters(True, {**FIXED, **other}))
        assert len(files(cache)) == number, other  # the last is evaluated as the first


def test_one_datamodule_follows_the_learner_that_it_is_given():
    data, other = letters(True), changed(0.1)
    fit(learner_of(), data)
    before = data.evaluated(data.val_subset).clone()
    fit(other, data)
    expected = embedded(other.trunk, letters(False)).embeddings
    assert not torch.allclose(before, expected, atol=1e-3)
    torch.testing.assert_close(data.evaluated(data.val_subset), expected, atol=1e-5, rtol=0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """16 classes of 4 pictures of noise."""
    return noise_images(tmp_path, 64, samples=4, height=32, width=32, suffix=".png")


def pictures(table: Path) -> MetricDataModule:
    return MetricDataModule(
        ImageTable(table), transforms=ImageTransforms(**FIXED), batch_size=8, steps_per_epoch=1, features=True
    )


def test_the_test_half_is_read_after_the_ledger_has_its_line(table: Path, cache: Path, monkeypatch):
    learner, data, trainer = learner_of(), pictures(table), small_trainer(default_root_dir=table.parent)
    trainer.fit(learner, datamodule=data)
    ledger, load, opened = table.parent / "ledger.jsonl", ImageTable.load, []
    half = files(cache)

    def watched(self, key):
        opened.append(ledger.exists())
        return load(self, key)

    monkeypatch.setattr(ImageTable, "load", watched)
    found = trainer.test(learner, datamodule=data, verbose=False)[0]["test/map_at_r"]
    assert opened == [True] * 32
    assert len(files(cache)) == len(half) + 1
    images = MetricDataModule(ImageTable(table), transforms=ImageTransforms(**FIXED))
    images.setup("test")
    other = small_trainer(default_root_dir=table.parent / "other")
    assert other.test(learner, datamodule=images, verbose=False)[0]["test/map_at_r"] == pytest.approx(found, abs=1e-6)


def test_a_changed_picture_is_embedded_again(table: Path, cache: Path):
    fit(learner_of(), pictures(table))
    picture = table.parent / "3.png"
    picture.write_bytes(picture.read_bytes() + b" ")
    fit(learner_of(), pictures(table))
    assert len(files(cache)) == 2


class OwnForward(MetricLearner):
    """Somebody's learner, which looks at the images."""

    def forward(self, samples):
        return super().forward(samples.flip(-1))


def test_what_cannot_be_trained_on_features_is_refused(tmp_path: Path, tiny, run):
    with pytest.raises(UserError, match="OwnForward"):
        fit(small_learner(ArcFaceLoss, OwnForward, freeze_trunk=True), letters(True))
    words = ["--model.loss", "ArcFaceLoss", "--data.features", "true", "--output", tmp_path]
    refused(run("fit", *tiny, *words), "--model.freeze_trunk true")


def test_the_commands_train_on_features_and_embed_images(tiny, run, cache: Path, tmp_path: Path):
    words = ["--model.loss", "ArcFaceLoss", "--model.freeze_trunk", "true", "--data.features", "true"]
    small = ["--data.dataset.num_classes", "24", "--output", tmp_path, "--name", "it"]
    code, _, complaint = run("fit", *tiny, *words, *small)
    assert code == 0, complaint
    checkpoint = tmp_path / "fit/it/0/best.ckpt"
    (made,) = files(cache)
    scores = []
    for more in ([], ["--data.features", "false"]):
        code, printed, complaint = run("validate", "--ckpt_path", checkpoint, *more)
        assert code == 0, complaint
        scores.append([line for line in printed.splitlines() if "map_at_r" in line])
    assert files(cache) == [made]
    assert scores[0] == scores[1]
    for command, count in (("predict", 1), ("test", 2)):
        code, _, complaint = run(command, "--ckpt_path", checkpoint)
        assert code == 0, complaint
        assert len(files(cache)) == count


@pytest.mark.full
def test_a_study_on_features_has_the_scores_of_one_through_the_trunk(toy_file: Path, trunk_file, tmp_path, cache):
    content = yaml.safe_load(toy_file.read_text())
    base = content["base"][0]
    base["model"] |= {"freeze_trunk": True}
    base["model"]["trunk"]["init_args"]["weights"] = str(trunk_file)
    base["data"]["transforms"] = FIXED
    del content["methods"]["contrastive"], content["spaces"], content["search"]
    content["runs"] = 1
    scores = []
    for features in (False, True):
        base["data"] |= {"features": features, "steps_per_epoch": 1}
        path = tmp_path / "on_features.yaml"
        path.write_text(yaml.safe_dump(content))
        spec = load_spec(path)
        folder = tmp_path / str(features)
        run_study(folder, spec)
        rows = [line.split(",") for line in (folder / "results.csv").read_text().splitlines()[1:]]
        scores.append({tuple(row[:-1]): float(row[-1]) for row in rows})
    through, on_features = scores
    assert on_features.keys() == through.keys()
    for key, value in through.items():
        assert on_features[key] == pytest.approx(value, abs=1e-3), key
    assert len(files(cache)) == 2  # the training half and the test half, for both folds and the baseline
    job = yaml.safe_load((folder / "jobs/arcface/run0/fold0/config.yaml").read_text())
    assert job["data"]["features"] is True
