"""The study file: stacking, overrides, identity, and what a user can get wrong in it."""

from pathlib import Path

import pytest

from levelfield.core.configuration import first_difference, merge, parse_value, set_dotted
from levelfield.errors import UserError
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec

STUDY = """
name: toy
base: [data.yaml, {trainer: {max_epochs: 3}}]
overrides: {data: {dataset: {init_args: {num_classes: 40}}}}
methods:
  contrastive: loss/contrastive.yaml
  arcface: [loss/arcface.yaml, {data: {samples_per_class: 1}}]
folds: 2
runs: 3
seed: 7
threads: 1
"""
SEARCHED = f"{STUDY}search: {{trials: 2}}\n"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "loss").mkdir()
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "data.yaml").write_text(
        "data: {root: /some, samples_per_class: 4, dataset: {class_path: Glyphs, init_args: {num_classes: 9, a: 1}}}"
    )
    (tmp_path / "loss" / "contrastive.yaml").write_text("model: {loss: {class_path: ContrastiveLoss}}")
    (tmp_path / "loss" / "arcface.yaml").write_text("model: {loss: ArcFaceLoss, loss_lr: 1e-2}")
    return tmp_path / "study.yaml"


def test_layers_stack_in_order(study: Path) -> None:
    spec = load_spec(study)
    assert (spec.name, spec.folds, spec.runs, spec.seed, spec.threads) == ("toy", 2, 3, 7, 1)
    arcface, contrastive = spec.methods["arcface"], spec.methods["contrastive"]
    assert arcface["data"]["samples_per_class"] == 1
    assert contrastive["data"]["samples_per_class"] == 4
    assert arcface["model"] == {"loss": "ArcFaceLoss", "loss_lr": 0.01}
    assert arcface["data"]["dataset"] == {"class_path": "Glyphs", "init_args": {"num_classes": 40, "a": 1}}
    assert contrastive["trainer"]["max_epochs"] == 3


def test_dotted_overrides_reach_all_methods_and_class_arguments(study: Path) -> None:
    spec = load_spec(study, {"data.dataset.num_classes": 5, "trainer.max_epochs": 2, "runs": 1})
    for config in spec.methods.values():
        assert config["data"]["dataset"]["init_args"] == {"num_classes": 5, "a": 1}
        assert config["trainer"]["max_epochs"] == 2
    assert spec.runs == 1


def test_another_class_drops_the_arguments_of_the_old_one() -> None:
    old = {"dataset": {"class_path": "levelfield.data.Glyphs", "init_args": {"num_classes": 9}}}
    assert merge(old, {"dataset": "ImageTable"}) == {"dataset": {"class_path": "ImageTable"}}
    assert merge(old, {"dataset": {"class_path": "Glyphs"}})["dataset"]["init_args"] == {"num_classes": 9}
    assert set_dotted({"loss": "ArcFaceLoss"}, "loss.margin", 20) == {
        "loss": {"class_path": "ArcFaceLoss", "init_args": {"margin": 20}}
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("a/b.csv", "a/b.csv"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_values_are_read_as_the_command_line_reads_them(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_identity_leaves_out_roots_and_name(study: Path) -> None:
    spec = load_spec(study)
    moved = load_spec(study, {"data.root": "/elsewhere", "data.num_workers": 4})
    other = load_spec(study, {"trainer.max_epochs": 2})
    assert moved.configuration_hash() == spec.configuration_hash()
    assert other.configuration_hash() != spec.configuration_hash()
    assert other.row_hashes["arcface"] != spec.row_hashes["arcface"]
    assert load_spec(study, {"model.layer_decay": 0.5}).row_hashes["arcface"] != spec.row_hashes["arcface"]
    assert other.row_hashes["pretrained"] == spec.row_hashes["pretrained"], "training does not touch the baseline"


def test_resolved_study_reads_back(study: Path, tmp_path: Path) -> None:
    spec = load_spec(study)
    (tmp_path / "resolved.yaml").write_text(spec.to_yaml())
    assert StudySpec.read(tmp_path / "resolved.yaml") == spec


@pytest.mark.parametrize(
    ("asked", "second"),
    [
        ("all", ["contrastive@2", "arcface@2"]),
        ("[arcface]", ["arcface@2"]),
        ("{all: 2, arcface: 0}", ["contrastive@2", "contrastive@3"]),
        ("{arcface: 2}", ["arcface@2", "arcface@3"]),
    ],
)
def test_methods_are_searched_again(study: Path, asked: str, second: list[str]) -> None:
    once = load_spec(study)
    study.write_text(f"{SEARCHED}second_searches: {asked}\n")
    spec = load_spec(study)
    assert [*spec.methods] == [*once.methods, *second]
    assert all(spec.methods[name] == once.methods[name.partition("@")[0]] for name in second)
    study.write_text(SEARCHED)
    assert [*load_spec(study, {"second_searches.all": 1}).methods] == [*once.methods, "contrastive@2", "arcface@2"]


def test_second_searches_of_options_are_beside_those_of_the_file(study: Path) -> None:
    once = load_spec(study)
    study.write_text(f"{SEARCHED}second_searches: [contrastive]\n")

    def seconds(**options: int) -> list[str]:
        named = {f"second_searches.{name}": number for name, number in options.items()}
        return [*load_spec(study, named).methods][len(once.methods) :]

    assert seconds(arcface=1) == ["contrastive@2", "arcface@2"]
    assert seconds(contrastive=0, arcface=1) == ["arcface@2"]
    assert seconds(all=0) == []


def test_first_difference_names_missing_keys() -> None:
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 1}}) is None
    assert first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}) == ("a.c", 2, "nothing")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("folds:", "fold:", "'folds'"),
        ("runs: 3", "runs: many", "runs .*'many'"),
        ("folds: 2", "folds: 0", "folds "),
        ("data.yaml,", "dat.yaml,", r"study\.yaml.*'dat\.yaml'.*'data\.yaml'"),
        ("contrastive: ", "pretrained: ", "'pretrained'"),
        ("methods:", "methods: []\nname: [", r"study\.yaml"),
        ("methods:", "second_searches: [al]\nmethods:", "second_searches: .*'all'"),
        ("methods:", "second_searches: {all: x}\nmethods:", r"second_searches\.all"),
        ("methods:", "second_searches: [[all]]\nmethods:", r"second_searches: .*\['all'\]"),
        ("seed: 7", "seed: 7\nruns: 4", r"study\.yaml.* line \d+: 'runs'"),
        ("folds: 2", "  arcface: {}\nfolds: 2", "'arcface'"),
        ("name: toy", "name:", r"study\.yaml: name "),
        ("contrastive: ", "2: ", r"\b2\b"),
        ("contrastive: ", "yes: ", "True"),
        ("seed: 7", "search: many", r"study\.yaml: search .*'many'"),
        ("overrides: {data", "overrides: [{data: {}}, 5]\nsearch: {data", r"study\.yaml: overrides "),
        ("{trainer: {max_epochs: 3}}", "{trainer: 3}", "'contrastive': trainer "),
        ("seed: 7", "7: seed", r"\b7\b"),
        ("name: toy", "extends: other.yaml", r"other\.yaml .*study\.yaml"),
        ("name: toy", "extends: study.yaml", r"extends study\.yaml"),
        (STUDY, "methods: {contrastive: null}", "'methods'"),
    ],
)
def test_mistakes_in_the_file_are_named(study: Path, old: str, new: str, key: str) -> None:
    study.write_text(STUDY.replace(old, new))
    with pytest.raises(UserError, match=key):
        load_spec(study)


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("data.fold", r"data\.fold"),
        ("model.loss", "--add-method"),
        ("dta.root", "'data'"),
        ("run", "'runs'"),
        ("second_searches.arcfase", "'arcface'"),
    ],
)
def test_mistaken_overrides_are_refused(study: Path, option: str, key: str) -> None:
    with pytest.raises(UserError, match=key):
        load_spec(study, {option: 1})


def test_a_study_extends_another_in_another_folder(study: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "more.yaml").write_text("data: {dataset: {init_args: {a: 2}}}")
    mine = tmp_path / "mine" / "study.yaml"
    mine.write_text(
        "name: mine\nextends: ../study.yaml\nbase+: more.yaml\nruns: 5\noverrides: {trainer: {max_epochs: 9}}\n"
        "methods: {contrastive: {model: {loss: Other}}}\n"
    )
    spec = load_spec(mine)
    assert (spec.name, spec.runs, spec.folds, spec.seed) == ("mine", 5, 2, 7)
    assert list(spec.methods) == ["contrastive", "arcface"]
    assert spec.methods["contrastive"]["model"] == {"loss": {"class_path": "Other"}}
    assert spec.methods["arcface"]["model"]["loss_lr"] == 0.01
    assert spec.methods["arcface"]["data"]["dataset"]["init_args"] == {"num_classes": 40, "a": 2}
    assert spec.methods["arcface"]["trainer"]["max_epochs"] == 9


def test_overrides_of_an_extending_study_append_to_the_base(study: Path, tmp_path: Path) -> None:
    stop, first = "lightning.pytorch.callbacks.EarlyStopping", "levelfield.training.callbacks.ValidateFirst"
    (tmp_path / "stops.yaml").write_text(f"trainer: {{callbacks: [{stop}]}}\n")
    appended = f"{{trainer: {{callbacks+: [{first}]}}}}"
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: study.yaml\nbase+: stops.yaml\noverrides: {appended}\n")
    whole = load_spec(mine)
    assert whole.methods["contrastive"]["trainer"]["callbacks"] == [stop, first]
    assert whole.methods["contrastive"]["data"]["dataset"]["init_args"]["num_classes"] == 40
    (tmp_path / "yours.yaml").write_text("extends: mine.yaml\noverrides: {trainer: {max_epochs: 9}}\n")
    yours = load_spec(tmp_path / "yours.yaml").methods["contrastive"]["trainer"]
    assert (yours["callbacks"], yours["max_epochs"]) == ([stop, first], 9)
