"""Validation and test by a plain Trainer and any loader: the scores, a line of the ledger for each test, refusals."""

import hashlib
import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from small_fit import small_data, small_learner, small_trainer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.losses import ArcFaceLoss
from levelfield.metrics import retrieval_metrics
from levelfield.training.callbacks import RecordEvaluation, RetrievalValidation
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import adapted

pytestmark = pytest.mark.usefixtures("quiet")
IMAGES, LABELS = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(40) // 4
PAIRS, TRIPLES = TensorDataset(IMAGES, LABELS), TensorDataset(IMAGES, LABELS, torch.arange(40))
DICTIONARIES = [dict(zip(("samples", "labels", "index"), triple, strict=True)) for triple in TRIPLES]
Stream = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(PAIRS)})  # without a length
KINDS = {"pairs": PAIRS, "triples": TRIPLES, "a dictionary": DICTIONARIES, "a stream": Stream()}
METRICS = ("map_at_r", "r_precision", "precision_at_1")
LOADERS = {name: DataLoader(samples, batch_size=16) for name, samples in KINDS.items()}


def learner(kind: type[MetricLearner] = MetricLearner, **arguments) -> MetricLearner:
    return small_learner(kind=kind, embedding_size=8, **arguments)


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_trains_validates_tests_and_embeds(kind: str, tmp_path) -> None:
    it, plain = learner(), small_trainer(default_root_dir=tmp_path)
    plain.fit(it, LOADERS[kind], [LOADERS[kind]])
    expected = retrieval_metrics(it.eval()(IMAGES).detach(), LABELS, metrics=METRICS)
    validated = {name: float(plain.callback_metrics[f"val/{name}"]) for name in METRICS}
    (tested,) = plain.test(it, LOADERS[kind], verbose=False)
    for found in (validated, {name: tested[f"test/{name}"] for name in METRICS}):
        assert found == pytest.approx({name: expected[name] for name in METRICS}, abs=1e-6)
    for loader in (LOADERS[kind], DataLoader(IMAGES, batch_size=16)):
        parts = plain.predict(it, loader)
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


def test_each_test_loader_has_its_roles(tmp_path) -> None:
    it, asks = learner().eval(), torch.arange(40) % 4 == 0
    with_roles = TensorDataset(*TRIPLES.tensors)
    with_roles.is_query = asks.numpy()
    loaders = [DataLoader(samples, batch_size=16) for samples in (TRIPLES, with_roles)]
    tests = small_trainer(scored := RetrievalValidation(), default_root_dir=tmp_path)
    found = tests.test(it, loaders, verbose=False)
    points = it(IMAGES).detach()
    sets = (points, LABELS), (points[asks], LABELS[asks], points[~asks], LABELS[~asks])
    for number, (key, given) in enumerate(zip(("", "/dataloader_idx_1"), sets, strict=True)):
        expected = retrieval_metrics(*given, per_query=True)["map_at_r"]
        assert found[number][f"test/map_at_r{key}"] == pytest.approx(float(expected.mean()), abs=1e-6)
        scores, labels = scored.of_queries[number]
        torch.testing.assert_close(scores["map_at_r"], expected)
        assert torch.equal(labels, given[1])


@pytest.mark.parametrize("kind", [OneArgument, Plain])
def test_a_test_takes_the_arguments_of_your_validation_step(kind, tmp_path) -> None:
    it = learner(kind) if issubclass(kind, MetricLearner) else adapted(kind())
    plain = small_trainer(default_root_dir=tmp_path)
    tested = plain.test(it, LOADERS["triples"], verbose=False)[0]["test/map_at_r"]
    assert tested == plain.validate(it, LOADERS["triples"], verbose=False)[0]["val/map_at_r"]
    (embedded,) = plain.predict(it, DataLoader(TRIPLES, batch_size=40))
    assert torch.equal(embedded["embeddings"], it(IMAGES))


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_mixed_precision_is_for_training_only(stage: str, tmp_path) -> None:
    """So a score in a fit is that of `embed`, and of a baseline, which no Trainer embeds."""
    it, mixed = learner(), small_trainer(precision="bf16-mixed", default_root_dir=tmp_path)
    scores = getattr(mixed, stage)(it, [LOADERS["triples"], LOADERS["pairs"]], verbose=False)[0]
    embedded = embed(it, LOADERS["triples"])
    (score,) = (value for key, value in scores.items() if key.endswith("/map_at_r"))
    assert score == torch.tensor(retrieval_metrics(*embedded[:2])["map_at_r"]).item()
    predicted = torch.cat([part["embeddings"] for part in mixed.predict(it, LOADERS["triples"])])
    assert torch.equal(predicted, embedded.embeddings)
    plain = adapted(Plain())
    small_trainer(precision="bf16-mixed").fit(plain, LOADERS["triples"], LOADERS["triples"])
    assert plain.has_autocast == {"train": True, "val": False}


@pytest.mark.parametrize("batch", [(IMAGES,), {"image": IMAGES}])
def test_another_batch_is_named(batch) -> None:
    loader = DataLoader([0], collate_fn=lambda _: batch)
    with pytest.raises(UserError, match=r"\(samples, labels, index\)"):
        small_trainer().validate(learner(), loader, verbose=False)


def test_a_part_of_the_samples_is_not_scored(tmp_path) -> None:
    loader, other = DataLoader(PAIRS, batch_size=10), DataLoader(PAIRS, batch_size=20)
    with pytest.raises(UserError, match=r"limit_val_batches .*\b2 of 4\b"):
        small_trainer(limit_val_batches=2).validate(learner(), [other, loader], verbose=False)
    with pytest.raises(UserError, match=r"limit_test_batches .*\b3 of 4\b"):
        small_trainer(limit_test_batches=1, default_root_dir=tmp_path).test(learner(), loader, verbose=False)
    assert not (tmp_path / "ledger.jsonl").exists(), "refused before anything was opened"
    plain = small_trainer(fast_dev_run=True, default_root_dir=tmp_path)
    plain.fit(learner(), loader, loader)
    plain.test(learner(), loader, verbose=False)
    assert "val/map_at_r" not in plain.callback_metrics


def test_embeddings_that_are_not_finite_end_the_validation() -> None:
    images = IMAGES.clone()
    images[[13, 17], 0, 0, 0] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(TrainingFailed, match=r"^2 of 40 .*\b13, 17\b.*--model\.trunk_lr"):
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


def trainer(folder, *callbacks) -> Trainer:
    return small_trainer(*callbacks, default_root_dir=folder)


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_a_checkpoints_test_is_recorded_beside_it_unless_it_has_trained_since(tmp_path) -> None:
    tests, data = trainer(tmp_path), small_data(steps_per_epoch=1)
    tests.fit(it := small_learner(ArcFaceLoss, embedding_size=8), data)
    tests.save_checkpoint(copied := tmp_path / "run" / "it.ckpt")
    tests.test(it, data, verbose=False, ckpt_path=copied, weights_only=True)
    it = MetricLearner.load_from_checkpoint(copied)
    tests.test(it, data, verbose=False)
    evaluated, finished, again, _ = lines(copied.parent)
    assert evaluated["checkpoints"] == {"it.ckpt": hashlib.sha256(copied.read_bytes()).hexdigest()}
    assert (evaluated["event"], evaluated["num_samples"], evaluated["reason"]) == ("evaluated", 20 * 16, "")
    assert (finished["event"], finished["id"]) == ("finished", evaluated["id"])
    assert again["checkpoints"] == evaluated["checkpoints"]
    assert not (tmp_path / "ledger.jsonl").exists()
    tests.fit_loop.max_epochs = 2
    tests.fit(it, data)
    tests.test(it, data, verbose=False)
    assert len(lines(copied.parent)) == 4
    assert list(lines(tmp_path)[0]["checkpoints"]) == ["weights"]


def test_each_of_several_loaders_is_an_evaluation(tmp_path, monkeypatch) -> None:
    """Of two datamodules, and of tensors: the labels of each are recorded before a batch of the first."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    loaders = []
    for number in (40, 20):
        module = small_data(number, steps_per_epoch=1)
        module.setup("test")
        loaders.append(module.test_dataloader())
    images = DataLoader(TensorDataset(torch.rand(20, 3, 32, 32), torch.arange(20) // 4), batch_size=5)
    it, events = small_learner(embedding_size=8), []
    watch = LambdaCallback(on_test_batch_start=lambda *_: events.append([line["event"] for line in lines(tmp_path)]))
    trainer(tmp_path, watch).test(it, [*loaders, images], verbose=False)
    assert events[0] == events[-1] == ["evaluated"] * 3
    assert [line["num_samples"] for line in lines(tmp_path)[:3]] == [20 * 16, 10 * 16, 0]
    assert {line["id"] for line in lines(tmp_path)[:3]} == {line["id"] for line in lines(tmp_path)[3:]}
    assert [loader.evaluation for loader in loaders] == [None, None], "another pass is another evaluation"
    trainer(tmp_path, record := RecordEvaluation("a colleague asked")).test(it, images, verbose=False)
    *_, evaluated, finished = lines(tmp_path)
    assert (record.count, evaluated["reason"], finished["event"]) == (4, "a colleague asked", "finished"), (
        "in this folder"
    )
    assert len(lines(tmp_path)) == 8
