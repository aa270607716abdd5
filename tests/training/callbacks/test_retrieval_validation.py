"""Validation by a plain Trainer and any loader: the scores, and one line where there can be none."""

import warnings

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from small_fit import small_learner, small_trainer
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from levelfield.errors import TrainingFailed, UserError
from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.study.test_scores import score_samples
from levelfield.training.callbacks import KeepEmbeddings, RetrievalValidation
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import adapted

pytestmark = pytest.mark.usefixtures("quiet")
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(40, 3, 32, 32, generator=GENERATOR)
LABELS = torch.arange(40) // 4
PAIRS = TensorDataset(IMAGES, LABELS)
TRIPLES = TensorDataset(IMAGES, LABELS, torch.arange(40))


class Dictionaries(Dataset):
    """Samples as dictionaries, with or without their index."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, position: int) -> dict:
        whole = {"samples": IMAGES[position], "labels": LABELS[position], "index": position}
        return {key: whole[key] for key in self.keys}


class Stream(IterableDataset):
    """Pairs, without a length."""

    def __iter__(self):
        return iter(PAIRS)


def learner(kind: type[MetricLearner] = MetricLearner, **arguments) -> MetricLearner:
    return small_learner(kind=kind, embedding_size=8, **arguments)


LOADERS = {
    "pairs": lambda: DataLoader(PAIRS, batch_size=16),
    "triples": lambda: DataLoader(TRIPLES, batch_size=16),
    "a dictionary": lambda: DataLoader(Dictionaries("samples", "labels", "index"), batch_size=16),
    "a stream": lambda: DataLoader(Stream(), batch_size=16),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_trains_validates_tests_and_embeds(kind: str, tmp_path) -> None:
    it, plain = learner(), small_trainer(default_root_dir=tmp_path)
    plain.fit(it, LOADERS[kind](), [LOADERS[kind]()])
    it.eval()
    expected = retrieval_metrics(it(IMAGES).detach(), LABELS, metrics=("map_at_r", "r_precision", "precision_at_1"))
    for stage, scores in {
        "val": plain.callback_metrics,
        "test": plain.test(it, LOADERS[kind](), verbose=False)[0],
    }.items():
        found = {name: float(scores[f"{stage}/{name}"]) for name in expected if name != "num_skipped"}
        assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-6)
    parts = plain.predict(it, LOADERS[kind]())
    assert sum(len(part["embeddings"]) for part in parts) == 40


class OneArgument(MetricLearner):
    def validation_step(self, batch):
        return super().validation_step(batch)


class Plain(LightningModule):
    """Not a MetricLearner; notes whether each kind of step runs under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.has_autocast = torch.nn.Linear(3 * 32 * 32, 8), {}

    def training_step(self, batch, batch_idx):
        self.has_autocast["train"] = torch.is_autocast_enabled("cpu")
        return self.network(batch[0].flatten(1)).square().mean()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.has_autocast["val"] = torch.is_autocast_enabled("cpu")
        return self.network(batch[0].flatten(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class PlainOneArgument(Plain):
    def validation_step(self, batch):
        return super().validation_step(batch, 0)


class Asks(TensorDataset):
    """Samples with roles: the first of each class is a query."""

    is_query = (torch.arange(40) % 4 == 0).numpy()


OTHER = TensorDataset(IMAGES.flip(0)[:24], LABELS[:24])


@pytest.mark.parametrize("form", [lambda first, other: [first, other], lambda first, other: {"b": first, "a": [other]}])
def test_each_of_several_loaders_has_its_score_and_the_first_is_monitored(form, tmp_path) -> None:
    it = adapted(Plain())
    loaders = form(DataLoader(PAIRS, batch_size=16), DataLoader(OTHER, batch_size=16))
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val/map_at_r", mode="max")
    plain = small_trainer(best, default_root_dir=tmp_path, enable_checkpointing=True)
    plain.fit(it, DataLoader(PAIRS, batch_size=20), loaders)
    with torch.no_grad():
        embedded = [it.validation_step((each, None, None), 0) for each in (IMAGES, OTHER.tensors[0])]
    expected = [retrieval_metrics(*each)["map_at_r"] for each in zip(embedded, (LABELS, LABELS[:24]), strict=True)]
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)
    assert float(best.best_model_score) == pytest.approx(expected[0], abs=1e-6)
    keys = ["test/map_at_r", "test/map_at_r/dataloader_idx_1"]
    found = plain.test(it, loaders, verbose=False)
    assert [found[place][key] for place, key in enumerate(keys)] == pytest.approx(expected, abs=1e-6)
    assert [sum(len(part["embeddings"]) for part in parts) for parts in plain.predict(it, loaders)] == [40, 24]


def test_each_test_loader_has_its_roles(tmp_path) -> None:
    loaders = [DataLoader(kind(*TRIPLES.tensors), batch_size=16) for kind in (TensorDataset, Asks)]
    it = learner().eval()
    found = small_trainer(default_root_dir=tmp_path).test(it, loaders, verbose=False)
    asks = torch.from_numpy(Asks.is_query)
    gallery = {"gallery": it(IMAGES[~asks]).detach(), "gallery_labels": LABELS[~asks]}
    expected = [
        retrieval_metrics(it(IMAGES).detach(), LABELS),
        retrieval_metrics(it(IMAGES[asks]).detach(), LABELS[asks], **gallery),
    ]
    for number, scores in enumerate(expected):
        key = "test/map_at_r" + (f"/dataloader_idx_{number}" if number else "")
        assert found[number][key] == pytest.approx(scores["map_at_r"], abs=1e-6)


@pytest.mark.parametrize("kind", [OneArgument, Plain, PlainOneArgument])
def test_a_test_takes_the_arguments_of_your_validation_step(kind, tmp_path) -> None:
    it = learner(kind) if issubclass(kind, MetricLearner) else adapted(kind())
    plain = small_trainer(default_root_dir=tmp_path)
    tested = plain.test(it, LOADERS["triples"](), verbose=False)[0]["test/map_at_r"]
    assert tested == plain.validate(it, LOADERS["triples"](), verbose=False)[0]["val/map_at_r"]
    (embedded,) = plain.predict(it, DataLoader(TRIPLES, batch_size=40))
    assert torch.equal(embedded["embeddings"], it(IMAGES))


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_mixed_precision_is_for_training_only(stage: str, tmp_path) -> None:
    """So a score in a fit is that of `embed`, and of a baseline, which no Trainer embeds."""
    it, kept = learner(), KeepEmbeddings()
    mixed = small_trainer(kept, precision="bf16-mixed", default_root_dir=tmp_path)
    scores = getattr(mixed, stage)(it, [LOADERS["triples"](), LOADERS["pairs"]()], verbose=False)[0]
    embedded = embed(it, LOADERS["triples"]())
    assert torch.equal(kept.samples.embeddings, embedded.embeddings), "of the first loader"
    (score,) = (value for key, value in scores.items() if key.endswith("/map_at_r"))
    assert score == torch.tensor(retrieval_metrics(*embedded[:2])["map_at_r"]).item()
    predicted = torch.cat([part["embeddings"] for part in mixed.predict(it, LOADERS["triples"]())])
    assert torch.equal(predicted, embedded.embeddings)
    plain = adapted(Plain())
    small_trainer(precision="bf16-mixed").fit(plain, LOADERS["triples"](), LOADERS["triples"]())
    assert plain.has_autocast == {"train": True, "val": False}


@pytest.mark.parametrize(
    ("callback", "is_warned"),
    [
        (EarlyStopping("val/recall_at_4/dataloader_idx_1", strict=False), True),
        (EarlyStopping("val/map_at_r", mode="max"), False),
        (EarlyStopping("train/loss"), False),
    ],
)
def test_a_callback_that_prefers_small_scores_is_named(callback, is_warned: bool, tmp_path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plain = small_trainer(callback, enable_checkpointing=True, default_root_dir=tmp_path)
        plain.fit(learner(), *[LOADERS["pairs"]()] * 2)
    lines = [str(each.message) for each in found if "mode='max'" in str(each.message)]
    assert len(lines) == is_warned
    assert all(type(callback).__name__ in line and callback.monitor in line for line in lines)


@pytest.mark.parametrize("batch", [(IMAGES,), {"image": IMAGES}])
def test_another_batch_is_named(batch) -> None:
    loader = DataLoader([0], collate_fn=lambda _: batch)
    with pytest.raises(UserError, match=r"\(samples, labels, index\)"):
        small_trainer().validate(learner(), loader, verbose=False)


def test_samples_alone_are_embedded() -> None:
    (part,) = small_trainer().predict(learner(), DataLoader([0], collate_fn=lambda _: IMAGES))
    assert part["embeddings"].shape == (40, 8)


def test_a_callback_that_is_given_stays_the_only_one() -> None:
    given = RetrievalValidation(metrics=("recall", "mrr"), selected_by="mrr")
    plain = small_trainer(given)
    logged = plain.validate(learner(), DataLoader(PAIRS, batch_size=40), verbose=False)[0]
    assert [callback for callback in plain.callbacks if isinstance(callback, RetrievalValidation)] == [given]
    assert logged.keys() == {"val/recall_at_1", "val/recall_at_2", "val/recall_at_4", "val/recall_at_8", "val/mrr"}


def test_a_part_of_the_samples_is_not_scored(tmp_path) -> None:
    loader = DataLoader(PAIRS, batch_size=10)
    with pytest.raises(UserError, match=r"limit_val_batches .*\b2 of 4\b"):
        small_trainer(limit_val_batches=2).validate(
            learner(), [DataLoader(PAIRS, batch_size=20), loader], verbose=False
        )
    with pytest.raises(UserError, match=r"overfit_batches .*\b3 of 4\b.* limit_train_batches"):
        small_trainer(overfit_batches=1, default_root_dir=tmp_path).fit(learner(), loader, loader)
    with pytest.raises(UserError, match=r"limit_test_batches .*\b3 of 4\b"):
        small_trainer(limit_test_batches=1, default_root_dir=tmp_path).test(learner(), loader, verbose=False)
    assert not (tmp_path / "ledger.jsonl").exists(), "refused before anything was opened"
    plain = small_trainer(fast_dev_run=True, default_root_dir=tmp_path)
    plain.fit(learner(), loader, loader)
    plain.test(learner(), loader, verbose=False)
    assert "val/map_at_r" not in plain.callback_metrics


def test_embeddings_that_are_not_finite_end_the_validation() -> None:
    broken = learner()
    broken.embedder.linear.weight.data[0, 0] = float("nan")
    with pytest.raises(TrainingFailed, match=r"--model\.trunk_lr"):
        small_trainer().validate(broken, DataLoader(PAIRS, batch_size=10), verbose=False)
    images = IMAGES.clone()
    images[[13, 17], 0, 0, 0] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(TrainingFailed, match=r"^(?!.*_lr).*\b13, 17\b"):
        small_trainer().validate(learner(), DataLoader(TensorDataset(images, LABELS), batch_size=10), verbose=False)


@pytest.mark.parametrize("distance", ["cosine", "hamming"])
def test_collapsed_embeddings_are_told_once_in_a_fit(distance: str, tmp_path) -> None:
    collapsed = learner(distance=distance, embedder_lr=0.0, trunk_lr=0.0)
    torch.nn.init.zeros_(collapsed.embedder.linear.weight)
    torch.nn.init.ones_(collapsed.embedder.linear.bias)
    loader = DataLoader(PAIRS, batch_size=10)
    with pytest.warns(UserWarning, match="collapsed") as told:
        small_trainer(max_epochs=2, default_root_dir=tmp_path).fit(collapsed, loader, loader)
    assert len([each for each in told if "collapsed" in str(each.message)]) == 1


@pytest.mark.parametrize("queries", [False, True])
def test_bits_rank_as_the_cosine_of_signs_does(queries: bool) -> None:
    """Of unit vectors of signs the cosine is 1 - 2 x share of differing signs.

    In 16 dimensions their entries are 1/4, and equal cosines are equal numbers on any processor.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (60, 16), generator=generator).float().mul(2).sub(1)
    embeddings = signs * torch.rand(60, 16, generator=generator).add(0.1)
    labels = torch.arange(60) % 12
    is_query = torch.arange(60) % 5 == 0 if queries else None
    found = score_samples(embeddings, labels, is_query, "hamming")
    if is_query is None:
        expected = retrieval_metrics(normalize(signs), labels)
    else:
        expected = retrieval_metrics(normalize(signs[is_query]), labels[is_query], signs[~is_query], labels[~is_query])
    assert found["map_at_r"] == pytest.approx(expected["map_at_r"])
    assert found["map_at_r"] != pytest.approx(score_samples(embeddings, labels, is_query)["map_at_r"], abs=1e-3)

    it = learner(distance="hamming")
    metric = RetrievalMetrics(
        num_samples=60, distance=it.distance, is_query=None if is_query is None else is_query.numpy()
    )
    metric.update(embeddings, labels, torch.arange(60))
    assert metric.compute()["map_at_r"] == pytest.approx(expected["map_at_r"])
