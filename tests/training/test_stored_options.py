"""The stored options of `levelfield fit`: the signatures, the parser's words, and nothing against a right key."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from levelfield import losses
from levelfield.cli.fit import FitCLI
from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.runtime.shipped import shipped_files
from levelfield.training import parser, stored_options
from levelfield.training.learner import MetricLearner
from levelfield.training.stored_options import StoredOptions, answered, read

SECTIONS = {"model": MetricLearner, "data": MetricDataModule, "trainer": Trainer}
LETTERS = ["--data.dataset", "Glyphs", "--model.loss", "ArcFaceLoss"]
FILES = {
    "top.yaml": "modle:\n  loss: ArcFaceLoss\n",
    "section.yaml": "model:\n  los: ArcFaceLoss\n",
    "trainer.yaml": "seed_everything: 1\ntrainer:\n  max_epoch: 2\n",
    "nested.yaml": "model:\n  los:\n    class_path: ArcFaceLoss\n",
    "dotted.yaml": "model.loss.margin: 20\ntrainer.callbacks+: []\nmodel: {loss.margin: 20}\n",
    "arcface.yaml": "model:\n  loss:\n    class_path: levelfield.losses.ArcFaceLoss\n    init_args: {margin: 20}\n",
}


@pytest.fixture(scope="module", autouse=True)
def a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def stored(capsys: pytest.CaptureFixture[str]) -> StoredOptions:
    if read() is None:
        with pytest.raises(SystemExit):
            FitCLI(["fit", "--help"])
        assert capsys.readouterr().out == _read().help
    return _read()


def _read() -> StoredOptions:
    found = read()
    assert found is not None
    return found


def _parameters(kind: type) -> set[str]:
    return {name for name in inspect.signature(kind).parameters if name != "self"}


@pytest.mark.parametrize(
    ("section", "kind"), [("model", MetricLearner), ("data", MetricDataModule), ("trainer", Trainer)]
)
def test_the_options_are_the_signatures(stored: StoredOptions, section: str, kind: type) -> None:
    linked = {"model": {"seed"}, "data": {"seed"}, "trainer": set()}[section]  # to --seed_everything
    named = {option.split(".")[1].rstrip("+") for option in stored.options if option.startswith(f"--{section}.")}
    assert named - {"learner"} == _parameters(kind) - linked


@pytest.mark.parametrize("name", ["ArcFaceLoss", "ContrastiveLoss", "TripletMarginLoss", "ProxyNCALoss"])
def test_the_arguments_of_a_loss_are_its_signature(stored: StoredOptions, name: str) -> None:
    taken = set(stored.arguments["model.loss"][name]) - {"help", "help-all"}
    assert taken == _parameters(getattr(losses, name)) - {"num_classes", "embedding_size"}


@pytest.mark.parametrize(
    "words",
    [
        ["--modle.loss", "x"],
        ["--modle.loss=x"],
        [*LETTERS, "--model.embedding_sise", "4"],
        [*LETTERS, "--trainer.max_epoch", "4"],
        [*LETTERS, "--resume", "--nmae", "x"],
        [*LETTERS, "--nothing_like_it", "x"],
        [*LETTERS, "--model.loss.magin", "20"],
        ["--config", "arcface.yaml", "--model.loss.magin", "20"],
        [*LETTERS, "--data.dataset.imagesize", "20"],
        ["--config", "top.yaml"],
        ["--config=section.yaml"],
        ["--config", "trainer.yaml"],
        ["--config", "nested.yaml"],
        ["--config", "arcfac.yaml"],
    ],
)
def test_a_misspelt_key_is_refused_in_the_parsers_words(
    stored: StoredOptions, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as of_the_parser:
        FitCLI(["fit", *words])
    with pytest.raises(UserError) as of_the_store:
        answered(words)
    assert str(of_the_store.value) == str(of_the_parser.value)


@pytest.mark.parametrize(
    "words",
    [
        [*LETTERS, "--model.loss.margin", "20", "--trainer.max_epochs=2", "--resume", "--name", "a"],
        [*LETTERS, "--model.loss", "my_loss.MyLoss", "--model.loss.anything", "20"],  # for the parser to know
        [*LETTERS, "--model.loss.init_args.margin", "20", "--trainer.callbacks+=EarlyStopping"],
        ["--model.optimizer", "torch.optim.SGD", "--model.optimizer.momentum", "0.9"],
        ["--model.learner", "my_learner.MyLearner", "--model.anything", "1"],
        ["--print_config", "--model", "some.yaml"],
        ["--config", "dotted.yaml"],
        ["--name", "a value with --two words"],
    ],
)
def test_a_right_key_is_left_to_the_parser(
    stored: StoredOptions, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dotted.yaml").write_text(FILES["dotted.yaml"])
    monkeypatch.chdir(tmp_path)
    assert not answered(words)


def test_what_a_fit_has_written_is_left_to_the_parser(stored: StoredOptions, fitted: Path) -> None:
    assert not answered(["--config", str(fitted / "config.yaml"), "--resume"])
    with pytest.raises(UserError, match=r"no such option '--model\.seed'"):
        answered(["--model.seed", "3"])


def test_no_shipped_configuration_is_refused(stored: StoredOptions) -> None:
    for kind in ("data", "trunk", "method", "trainer", "logger"):
        for file in shipped_files(kind).values():
            stored.refuse(["--config", str(file)])


def test_a_mistake_in_a_value_stores_nothing_again(stored: StoredOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "store", lambda *_: pytest.fail("it is stored already"))
    with pytest.raises(UserError, match=r"^--data.batch_size x: give int"):
        FitCLI(["fit", *LETTERS, "--data.batch_size", "x"])


def test_other_code_or_another_version_asks_the_parser(stored: StoredOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(["--help"])
    monkeypatch.setattr(stored_options, "version", lambda library: "0.0")
    assert read() is None
    assert not answered(["--modle.loss", "x"])
    monkeypatch.undo()
    monkeypatch.setattr(stored_options, "PACKAGE", stored_options.PACKAGE / "losses")
    assert read() is None
