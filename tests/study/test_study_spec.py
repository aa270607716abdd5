"""The study file: stacking, overrides, rows, sweeps, added methods, and what a user can get wrong in it."""

import re
import sys
from pathlib import Path

import pytest
from refused import refuses
from tiny_fit import REPOSITORY

from levelfield.cli.main import run as command_line
from levelfield.core.configuration import parse_value, read_yaml
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.methods import added_methods
from levelfield.study.rows import load_spec, with_options
from levelfield.study.spec import StudySpec, named_rows, one_pca

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
MARGIN = "{model.loss.init_args.margin: {low: 0.0, high: 1.0}}"
SEARCHED = f"{STUDY}search: {{trials: 2}}\nspaces: {{contrastive: {MARGIN}, arcface: {MARGIN}}}\n"


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


def test_dotted_overrides_reach_all_methods_and_class_arguments(study: Path) -> None:
    spec = load_spec(study)
    assert (spec.name, spec.folds, spec.runs, spec.seed, spec.threads) == ("toy", 2, 3, 7, 1)
    dataset = {"class_path": "Glyphs", "init_args": {"num_classes": 40, "a": 1}}
    data = [{"root": "/some", "samples_per_class": number, "dataset": dataset} for number in (4, 1)]
    assert [config["data"] for config in spec.methods.values()] == data
    assert spec.methods["arcface"]["model"] == {"loss": "ArcFaceLoss", "loss_lr": 0.01}
    other = load_spec(study, {"data.dataset.num_classes": 5, "trainer.max_epochs": 2, "runs": 1})
    for before, config in zip(spec.methods.values(), other.methods.values(), strict=True):
        assert config["data"]["dataset"]["init_args"] == {"num_classes": 5, "a": 1}
        assert (before["trainer"]["max_epochs"], config["trainer"]["max_epochs"], other.runs) == (3, 2, 1)


@pytest.mark.parametrize(
    ("asked", "options", "second"),
    [
        ("2", {}, "contrastive@2 arcface@2"),
        ("{contrastive: 3}", {}, "contrastive@2 contrastive@3"),
        ("{}", {"searches": 2}, "contrastive@2 arcface@2"),
        ("{contrastive: 2}", {"searches": 1}, ""),
    ],
)
def test_methods_are_searched_again(study: Path, asked: str, options: dict[str, int], second: str) -> None:
    once = load_spec(study)
    study.write_text(f"{SEARCHED}searches: {asked}\n")
    spec = load_spec(study, options)
    assert [*spec.methods] == [*once.methods, *second.split()]
    assert all(spec.methods[name] == once.methods[name.partition("@")[0]] for name in second.split())


def test_trials_may_draw_their_folds_at_random(study: Path) -> None:
    study.write_text(SEARCHED)
    usual, drawn = load_spec(study), load_spec(study, {"search.random_folds": True})
    configs = [job_config(drawn, Job("arcface", stage, 0, 1), {})["data"] for stage in ("trial", "run")]
    assert [config.get("fold_seed") for config in configs] == [7, None]
    assert usual.row_hashes["arcface"] != drawn.row_hashes["arcface"]
    assert "random_folds" not in usual.settings("arcface")["search"], "archives keep their configuration"


# A text of the file, its replacement, and what the refusal names; or keys that are added, and what it names.
MISTAKES = r"""
folds: | fold: | 'folds'
runs: 3 | runs: many | runs .*'many'
data.yaml, | dat.yaml, | study\.yaml.*'dat\.yaml'.*'data\.yaml'
contrastive: | pretrained: | 'pretrained'
contrastive: | pretrained_one_pca: | study\.yaml: .*'pretrained_one_pca'
contrastive: | yes: | True
methods: | methods: []\nname: [ | study\.yaml
seed: 7 | seed: 7\nruns: 4 | study\.yaml.* line \d+: 'runs'
folds: 2 |   arcface: {}\nfolds: 2 | 'arcface'
overrides: {data | overrides: [{data: {}}, 5]\nsearch: {data | study\.yaml: overrides
{trainer: {max_epochs: 3}} | {trainer: 3} | contrastive: trainer
name: toy | extends: other.yaml | other\.yaml .*study\.yaml
name: toy | extends: study.yaml | extends study\.yaml
contrastive: loss/contrastive.yaml\n | contrastive: null\n  arcface: null\nspaces:\n | 'methods'
overrides: {data | overrides: {trainer: {max_epochs: 0}, data | trainer\.max_epochs
overrides: {data | overrides: {trainer: {devices: auto}, data | trainer\.devices
overrides: {data | overrides: {trained_as: arcface, data | trained_as
arcface: [ | arcface: [{data: {split: random}}, | split_seed
methods: | methods:\n  a: {sweep: {x.y: [1]}} | study\.yaml: method a: .*sweep
methods: | sweep: {x.z: [1]}\nmethods:\n  a: {sweep: {x.y: [1]}} | study\.yaml: .*x\.z.* x\.y
sweep: {model.trunk: [a b]} | study\.yaml: .*'a b'
sweep: {model.embedding_size: 3} | model.embedding_size
sweep: {model.embedding_size: [[1, 2]]} | model.embedding_size
sweep: {model.loss_lr: [1, 2]}\nsearch: {trials: 1}\nspaces: {arcface: {model.loss_lr: {low: 1, high: 2}}} | loss_lr
prune: true | prune
search: many | study\.yaml: search .*'many'
search: {trials: 3, final: 2} | final
search: {sampler: gpp, trials: 1} | gp
spaces: {arcfase: {}} | arcface
searches: {arcfase: 2} | searches: .*'arcface'
searches: {arcface: 2} | searches 2: arcface .*--search.trials
replicates: 0 | replicates
blocks: 1 | blocks
references: [lad] | 'lda'
references: [pca0] | pca0
metrics: map_at_r | 'map_at_r'
metrics: [recall_at_2, map_at_0] | 'map_at_0'
derived: {1: {of: arcface, alpha: 0.5}} | method name 1:
derived: {_avg: {of: arcface, alpha: 0.5}} | method name '_avg':
derived: {pretrained: {of: arcface, alpha: 0.5}} | derived.*pretrained
derived: {arcface: {of: contrastive, pca: 8}} | derived\.arcface
derived: {mean: {of: arcfase, alpha: 0.5}} | 'arcface'
derived: {mean: {of: arcface}} | derived\.mean
derived: {mean: {of: arcface, alpha: 2}} | alpha
derived: {mean: {of: arcface, pca: 0}} | pca
derived: {mean: {of: arcface, alfa: 1}} | 'alfa'
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_mistakes_in_the_file_are_named(study: Path, line: str) -> None:
    *change, key = line.replace(r"\n", "\n").split(" | ")
    text = STUDY.replace(*change) if change[1:] else f"{STUDY}{change[0]}\n"
    assert text != STUDY
    study.write_text(text)
    refuses(key, load_spec, study)


# An option, its value, and what the refusal names.
MISTAKEN = """
data.fold 1 data.fold, model.loss 1 --add-method, dta.root 1 'data', run 1 'runs', search.sampler tpe search.trials,
metrics [recal_at_5] 'recall_at_<k>', model.embedding_size 3 --model.embedding_size, runs 0 runs, folds true folds,
seed -1 seed, compare arcfase compare, selected_by nmi selected_by, search.trials 1.5 search.trials,
search.batch 0 search.batch, search.folds 1 search.folds, search.random_folds 2 search.random_folds
"""


@pytest.mark.parametrize("line", MISTAKEN.split(","))
def test_a_mistaken_option_is_named(study: Path, line: str) -> None:
    study.write_text(f"{STUDY}sweep: {{model.embedding_size: [2, 4]}}\n")
    option, value, key = line.split()
    refuses(key, load_spec, study, {option: parse_value(value)})


def test_a_study_extends_another_in_another_folder(study: Path, tmp_path: Path) -> None:
    study.write_text(SEARCHED)
    (mine := tmp_path / "mine").mkdir()
    (mine / "more.yaml").write_text("data: {dataset: {init_args: {a: 2}}}\ntrainer: {callbacks: [EarlyStopping]}\n")
    (mine / "study.yaml").write_text(
        "name: mine\nextends: ../study.yaml\nbase+: more.yaml\nruns: 5\n"
        "methods: {contrastive: {model: {loss: Other}, trainer: {callbacks+: [ModelSummary]}}}\n"
        "overrides: {trainer: {precision: 64, callbacks+: [ValidateFirst]}}\n"
    )
    spec = load_spec(mine / "study.yaml")
    assert (spec.name, spec.runs, spec.folds, [*spec.methods]) == ("mine", 5, 2, ["contrastive", "arcface"])
    arcface, trainer = spec.methods["arcface"], {"precision": 64, "callbacks": ["EarlyStopping", "ValidateFirst"]}
    assert spec.methods["contrastive"]["model"] == {"loss": {"class_path": "Other"}}
    assert spec.methods["contrastive"]["trainer"]["callbacks"] == [*trainer["callbacks"], "ModelSummary"]
    assert arcface["model"]["loss_lr"] == 0.01
    assert arcface["trainer"] == {"max_epochs": 3, **trainer}
    assert arcface["data"]["dataset"]["init_args"] == {"num_classes": 40, "a": 2}
    third = mine / "third.yaml"
    third.write_text("extends: study.yaml\noverrides: {trainer: {max_epochs: 9}}\n")
    assert load_spec(third).methods["arcface"]["trainer"] == {"max_epochs": 9, **trainer}
    methods = "{arcface: {model: {loss_lr: 0.5}}, contrastive: null}"
    third.write_text(f"extends: study.yaml\noverrides: {{}}\nmethods: {methods}\n")
    spec = load_spec(third)
    assert [*spec.methods] == [*spec.spaces] == ["arcface"]
    assert spec.methods["arcface"]["model"] == {"loss": "ArcFaceLoss", "loss_lr": 0.5}
    assert spec.methods["arcface"]["trainer"] == {"max_epochs": 3, "callbacks": ["EarlyStopping"]}
    assert spec.methods["arcface"]["data"]["dataset"]["init_args"] == {"num_classes": 9, "a": 2}


BASE = """
base:
  - model: {trunk: {class_path: TimmTrunk, init_args: {name: test_resnet, weights: null}}, embedding_size: 16}
    data: {dataset: Glyphs, batch_size: 8}
methods:
  contrastive: {model: {loss: ContrastiveLoss}}
  arcface: {model: {loss: ArcFaceLoss}, data: {samples_per_class: 1}}
runs: 1
"""


def read(folder: Path, more: str = "", base: str = BASE) -> StudySpec:
    file = folder / "mine.yaml"
    file.write_text(base + more)
    return load_spec(file)


# Keys, the untrained rows of the study, and a method with its baseline.
UNTRAINED = """
references: [] |  | contrastive
sweep: {data.split: [half, official]}; references: [lda, features] \
| pca-half pca-official lda-half features-half lda-official features-official | arcface[official] pca-official
sweep: {model.embedding_size: [2, 4]}; references: [features, pca8, lda] \
| pca-2 pca-4 features pca8 lda-2 lda-4 | arcface[4] pca-4
sweep: {data.batch_size: [8, 16], model.embedding_size: [2, 4]} | pca-2 pca-4 | contrastive[16,2] pca-2
sweep: {model.trunk: {a: RESNET18, b: RESNET50}} | pca-a pca-b | arcface[b] pca-b
"""
TRUNK = r"{model.trunk: {class_path: TimmTrunk, init_args: {name: resnet\1}}}"


@pytest.mark.parametrize("line", UNTRAINED.strip().splitlines())
def test_an_untrained_row_for_each_value_that_changes_it(tmp_path: Path, line: str) -> None:
    more, untrained, compared = line.split(" | ")
    method, _, baseline = compared.partition(" ")
    spec = read(tmp_path, re.sub(r"RESNET(\d+)", TRUNK, more.replace("; ", "\n")))
    rows = [f"pretrained[{kind}]" for kind in untrained.split()] or ["pretrained"]
    of_pca = [row for row in rows if row.startswith("pretrained[pca-")] or ["pretrained"]
    assert [row for row in spec.rows if row not in spec.methods] == [*rows, *map(one_pca, of_pca)]
    assert spec.baseline_of(method) == (f"pretrained[{baseline}]" if baseline else "pretrained")
    settings, trained = spec.settings(spec.baseline_of(method))["model"], spec.methods[method]["model"]
    assert all(settings[key] == trained[key] for key in ("trunk", "embedding_size"))


def test_an_untrained_row_is_a_learner_without_a_step(tmp_path: Path) -> None:
    lora = "trunk: {init_args: {adapter: LoRA}}"
    own = f"{{loss: ContrastiveLoss, embedding_size: 8, {lora}}}, trainer: {{devices: 2}}}}"
    text = BASE.replace("{loss: ContrastiveLoss}}", own)
    spec = read(tmp_path, "references: [features, lda, whitening, pca512]", base=text)
    starts = [("pca", 8), ("random", None), ("lda", 8), ("whitening", None), ("pca", 512), ("pca", 4 * 8)]
    rows = [row for row in spec.rows if row not in spec.methods]
    for row, start in zip(rows, starts, strict=True):
        config = job_config(spec, Job(row, "run", 0, 0), {})
        assert (config["model"]["embedder_init"], config["model"]["embedding_size"]) == start, row
        assert config["model"]["freeze_trunk"] is config["data"]["features"] is True
        assert config["model"]["trunk"]["init_args"] == {"name": "test_resnet", "weights": None}
        assert config["trainer"] == {"max_steps": 0, "devices": 1}
        assert config["data"]["fold"] == ("none" if row == "pretrained_one_pca" else 0)


def test_a_row_of_another_trunk_inherits_nothing_of_a_method(tmp_path: Path) -> None:
    own = BASE.replace("data: {samples_per_class: 1}", "data: {transforms: {crop_size: 99}}")
    other = "trunks: {other: [{model: {trunk: {class_path: TimmTrunk, init_args: {name: resnet18}}}}]}"
    spec = read(tmp_path, other, base=own.replace("contrastive:", "zero:"))
    config = load_spec(tmp_path / "mine.yaml", {"data.root": "/here"}).config_of("pretrained[features-other]")
    assert config["model"]["trunk"] == {"class_path": "TimmTrunk", "init_args": {"name": "resnet18", "weights": None}}
    assert config["data"] == {"dataset": "Glyphs", "root": "/here", "features": True}
    assert spec.with_configs(lambda each: {**each, "data": {}}).trunks["other"]["data"] == {}


def test_neither_an_option_of_another_row_nor_the_order_of_a_sweep_changes_a_row(tmp_path: Path) -> None:
    up, down = (read(tmp_path, f"sweep: {{model.embedding_size: {values}}}") for values in ("[2, 96]", "[96, 2]"))
    assert up.row_hashes == down.row_hashes
    assert one_pca("pretrained[pca-96]") == "pretrained_one_pca[pca-96]"
    spec = read(tmp_path)
    base = BASE.replace("samples_per_class: 1", "samples_per_class: 2")
    more = "references: lda\nsearch: {trials: 3}\nspaces: {arcface: {model.loss_lr: {low: 0.1, high: 1}}}"
    other = read(tmp_path, more, base=base)
    changed = [row for row in spec.rows if spec.row_hashes[row] != other.row_hashes[row]]
    assert changed == ["arcface"]
    assert len([job for job in study_jobs(other) if job.stage == "trial"]) == 3 * 4  # `spaces:` names one method
    where = {"data.root": "/elsewhere", "data.num_workers": 3, "trainer.logger": True}
    moved = load_spec(tmp_path / "mine.yaml", where)
    assert (moved.row_hashes, moved.configuration_hash()) == (other.row_hashes, other.configuration_hash())
    longer = load_spec(tmp_path / "mine.yaml", {"trainer.max_epochs": 2})
    same = [row for row in spec.rows if longer.row_hashes[row] == other.row_hashes[row]]
    assert same == ["pretrained", "pretrained_one_pca"]
    assert longer.configuration_hash() != other.configuration_hash()


def test_a_spec_reads_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    values = "{16: {data.samples_per_class: 2}, 32: {data.samples_per_class: 1}}"
    space = f"spaces: {{arcface: {{data.batch_size: {{values: {values}}}}}}}"
    spec = read(tmp_path, f"searches: 2\nsearch: {{trials: 2}}\n{space}")
    file = tmp_path / "study.yaml"
    file.write_text(spec.to_yaml())
    assert StudySpec.read(file) == spec
    assert "&" not in spec.to_yaml()
    assert named_rows(spec, ["arcface"]) == ["arcface", "arcface@2"]
    refuses(r"^runs must be", with_options, spec, {"runs": 0})  # of a begun study
    whole, changes = spec.to_yaml(), (("arcface@2:", "=1+1:"), ("folds:", "falds:"), ("methods:", "methods: 3 #"))
    damaged = [*(whole.replace(*change) for change in changes), *(whole[:cut] for cut in range(0, len(whole) - 1, 397))]
    for text in [*damaged, "[]", "methods: 3", "\0", f"{whole}\n: {{"]:
        file.write_text(text)
        refuses(r"study\.yaml", StudySpec.read, file)


MODULE = """
from torch import nn


class TwinLoss(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.sum()


class WeightedLoss(nn.Module):
    search_space = {"scale": {"low": 1.0, "high": 9.0}}

    def __init__(self, scale, embedding_size, num_classes):
        super().__init__()


class NarrowLoss(WeightedLoss):
    search_space = {"scale": {"start": 2.0, "low": 1.0, "high": 3.0}, "loss_lr": {"start": 0.1, "low": 0.01, "high": 1}}


class FixedLoss(WeightedLoss):
    def __init__(self, embedding_size, num_classes):
        super().__init__(2.0, embedding_size, num_classes)


class TornLoss(TwinLoss):
    search_space = {"scale": [1.0, 9.0]}
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules with the same classes, and one that cannot be imported."""
    for name in ("twins_here", "twins_there"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "torn_loss.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_a_method_has_the_name_of_its_class_and_its_space(modules: None) -> None:
    """A space begins at its start, and belongs to the arguments of its class."""
    methods = added_methods([f"twins_here.{kind}Loss" for kind in ("Twin", "Weighted", "Narrow", "Fixed")])
    assert methods["twin_loss"]["model"]["loss"]["class_path"] == "twins_here.TwinLoss"
    assert methods["weighted_loss"]["data"] == {"samples_per_class": 1}
    assert methods["weighted_loss"]["search"] == {"model.loss.init_args.scale": {"low": 1.0, "high": 9.0}}
    start = {"loss": {"class_path": "twins_here.NarrowLoss", "init_args": {"scale": 2.0}}, "loss_lr": 0.1}
    assert methods["narrow_loss"]["model"] == start
    ranges = {"model.loss.init_args.scale": {"low": 1.0, "high": 3.0}, "model.loss_lr": {"low": 0.01, "high": 1}}
    assert methods["narrow_loss"]["search"] == ranges
    assert not any("search" in methods[name] for name in ("twin_loss", "fixed_loss"))


def test_methods_may_be_a_list_of_losses_and_files(modules: None, tmp_path: Path) -> None:
    listed, below = tmp_path / "listed.yaml", tmp_path / "below.yaml"
    named = "{arcface: arcface, ntxent_koleo: ntxent_koleo, weighted_loss: twins_here.WeightedLoss}"
    specs = []
    for methods in (named, "[ArcFaceLoss, ntxent_koleo, twins_here.WeightedLoss]"):
        listed.write_text(f"name: a\nbase: [data/glyphs]\nmethods: {methods}\n")
        specs.append(load_spec(listed))
    assert specs[0] == specs[1]
    below.write_text("{extends: listed.yaml, methods: {arcface: {model: {loss_lr: 0.5}}}, search: {trials: 2}}")
    assert load_spec(below).methods["arcface"]["model"]["loss_lr"] == 0.5
    assert load_spec(below).spaces["weighted_loss"] == {"model.loss.init_args.scale": {"low": 1.0, "high": 9.0}}
    for methods, key in (("[ArcFaceLoss, arcface]", "'arcface'"), ("[ArcFaseLoss]", "'ArcFaceLoss'")):
        listed.write_text(f"base: [data/glyphs]\nmethods: {methods}\n")
        refuses(rf"methods of .*listed\.yaml: .*{key}", load_spec, listed)


def test_a_shipped_method_and_a_file_are_called_as_their_files_are(tmp_path: Path) -> None:
    (tmp_path / "sharp_arcface.yaml").write_text("model: {loss: {class_path: levelfield.losses.ArcFaceLoss}}\n")
    methods = added_methods(["ntxent_koleo", str(tmp_path / "sharp_arcface.yaml"), "ArcFaceLoss", "soft_triple"])
    assert list(methods) == ["ntxent_koleo", "sharp_arcface", "arcface", "soft_triple"]
    assert added_methods(["levelfield.losses.arcface.ArcFaceLoss", "SoftTripleLoss"]).items() <= methods.items()
    assert methods["ntxent_koleo"] == read_yaml(REPOSITORY / "configs" / "method" / "ntxent_koleo.yaml")
    assert "model.regularizer.init_args.weight" in methods["ntxent_koleo"]["search"]
    assert "search" not in methods["sharp_arcface"]


WRONG_PATHS = r"""
twins_here.TwinLoss twins_there.TwinLoss | --add-method twins_there\.TwinLoss: .*'twin_loss'
ArcFaceLoss levelfield.losses.ArcFaceLoss | levelfield\.losses\.ArcFaceLoss: .*'arcface'
twins_here.TwinLos | 'twins_here' .*'TwinLoss'
twins_here.TornLoss | TornLoss: search_space: scale
torn_loss.MyLoss | --add-method torn_loss\.MyLoss: .*'torn_loss' .*line 1
no_such_module.MyLoss | --add-method no_such_module\.MyLoss: .*'no_such_module'
smoth_ap | --add-method smoth_ap: .*'smooth_ap'
ArcFaseLoss | --add-method ArcFaseLoss: .*'ArcFaceLoss'
soft_triple configs/method/soft_triple.yaml | soft_triple\.yaml: .*'soft_triple'
"""


@pytest.mark.parametrize("line", WRONG_PATHS.strip().splitlines())
def test_a_mistake_is_one_line(modules: None, toy_file: Path, tmp_path: Path, line: str) -> None:
    paths, key = line.split(" | ")
    words = [word for path in paths.split() for word in ("--add-method", path)]
    refuses(key, command_line, "study", ["run", str(toy_file), "--output", str(tmp_path / "study"), *words])
    assert not (tmp_path / "study").exists()
