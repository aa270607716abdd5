"""Rows of a study file: sweeps of several keys, an untrained row for each value, extended files, optional spaces."""

from pathlib import Path

import pytest

from levelfield.errors import UserError
from levelfield.study.jobs import study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, named_rows, one_pca

BASE = """
base:
  - model: {trunk: {class_path: TimmTrunk, init_args: {name: test_resnet, weights: null}}, embedding_size: 16}
    data: {dataset: Glyphs, batch_size: 8}
methods:
  contrastive: {model: {loss: ContrastiveLoss}}
  arcface: {model: {loss: ArcFaceLoss}, data: {samples_per_class: 1}}
runs: 1
"""


def read(folder: Path, more: str = "", name: str = "mine", base: str = BASE) -> StudySpec:
    file = folder / f"{name}.yaml"
    file.write_text(base + more)
    return load_spec(file)


@pytest.mark.parametrize(
    ("more", "untrained", "baseline"),
    [
        ("", ["pretrained"], {"contrastive": "pretrained"}),
        (
            "sweep: {model.embedding_size: [2, 96]}",
            ["pretrained[pca-2]", "pretrained[pca-96]"],
            {"contrastive[2]": "pretrained[pca-2]", "arcface[96]": "pretrained[pca-96]"},
        ),
        ("sweep: {data.batch_size: [8, 16]}", ["pretrained"], {"arcface[16]": "pretrained"}),
        (
            "sweep: {data.split: [half, official]}\nreferences: [lda, features]",
            [
                *("pretrained[pca-half]", "pretrained[pca-official]", "pretrained[lda-half]"),
                *("pretrained[features-half]", "pretrained[lda-official]", "pretrained[features-official]"),
            ],
            {"arcface[official]": "pretrained[pca-official]"},
        ),
        (
            "sweep: {model.embedding_size: [2, 4]}\nreferences: [features, pca8, lda]",
            [
                *("pretrained[pca-2]", "pretrained[pca-4]", "pretrained[features]", "pretrained[pca8]"),
                *("pretrained[lda-2]", "pretrained[lda-4]"),
            ],
            {"arcface[4]": "pretrained[pca-4]"},
        ),
        (
            "sweep: {data.batch_size: [8, 16], model.embedding_size: [2, 4]}",
            ["pretrained[pca-2]", "pretrained[pca-4]"],
            {"arcface[8,4]": "pretrained[pca-4]", "contrastive[16,2]": "pretrained[pca-2]"},
        ),
        (
            "sweep:\n  model.trunk:\n"
            "    a: {model.trunk: {class_path: TimmTrunk, init_args: {name: resnet18}}}\n"
            "    b: {model.trunk: {class_path: TimmTrunk, init_args: {name: resnet50}}}",
            ["pretrained[pca-a]", "pretrained[pca-b]"],
            {"arcface[b]": "pretrained[pca-b]"},
        ),
    ],
)
def test_an_untrained_row_for_each_value_that_changes_it(
    tmp_path: Path, more: str, untrained: list[str], baseline: dict[str, str]
) -> None:
    spec = read(tmp_path, more)
    assert [row for row in spec.rows if row not in spec.methods] == untrained
    assert {row: spec.baseline_of(row) for row in baseline} == baseline
    for row in baseline:
        settings = spec.settings(spec.baseline_of(row))["model"]
        assert settings["trunk"] == spec.methods[row]["model"]["trunk"]
        assert settings["embedding_size"] == spec.methods[row]["model"]["embedding_size"]


def test_the_order_of_a_sweep_changes_no_untrained_row(tmp_path: Path) -> None:
    up = read(tmp_path, "sweep: {model.embedding_size: [2, 96]}")
    down = read(tmp_path, "sweep: {model.embedding_size: [96, 2]}")
    assert up.row_hashes == down.row_hashes
    assert one_pca("pretrained[pca-96]") == "pretrained_one_pca[pca-96]"


def test_a_method_has_a_sweep_of_its_own_or_none(tmp_path: Path) -> None:
    more = "  own: {sweep: {model.embedding_size: [4]}}\n  once: {sweep: {}, model: {embedding_size: 7}}\n"
    base = BASE.replace("runs: 1", more + "runs: 1")
    spec = read(tmp_path, "sweep: [{model.embedding_size: {2: {model.normalize: false}, 4: {}}}]", base=base)
    assert list(spec.methods)[-2:] == ["own[4]", "once"]
    assert spec.methods["contrastive[2]"]["model"]["normalize"] is False
    assert spec.baseline_of("once") == "pretrained[pca-7]"


def test_an_option_of_one_row_changes_no_other_row(tmp_path: Path) -> None:
    spec = read(tmp_path)
    base = BASE.replace("samples_per_class: 1", "samples_per_class: 2")
    other = read(tmp_path, "search: {trials: 3}\nspaces: {arcface: {model.loss_lr: {low: 0.1, high: 1}}}", base=base)
    changed = [row for row in spec.rows if spec.row_hashes[row] != other.row_hashes[row]]
    assert changed == ["arcface"]
    assert len([job for job in study_jobs(other) if job.stage == "trial"]) == 3 * 4  # `spaces:` names one method
    moved = load_spec(
        tmp_path / "mine.yaml", {"data.root": "/elsewhere", "data.num_workers": 3, "trainer.logger": True}
    )
    assert moved.row_hashes == other.row_hashes


def test_an_extending_file_lays_methods_over_and_clears_overrides(tmp_path: Path) -> None:
    read(tmp_path, "overrides: {trainer: {max_epochs: 3}}\nspaces: {arcface: {model.loss_lr: {low: 0.1, high: 1}}}")
    more = "extends: mine.yaml\nmethods: {arcface: {model: {loss_lr: 0.5}}, contrastive: null}\nsearch: {trials: 2}\n"
    spec = read(tmp_path, more, "over", "")
    assert list(spec.methods) == ["arcface"]
    arcface = spec.methods["arcface"]
    assert (arcface["model"]["loss"], arcface["model"]["loss_lr"]) == ("ArcFaceLoss", 0.5)
    assert arcface["trainer"] == {"max_epochs": 3}
    assert list(spec.spaces) == ["arcface"]
    assert read(tmp_path, more + "overrides: {}\n", "over", "").methods["arcface"]["trainer"] == {}
    added = read(tmp_path, more + "overrides: {trainer: {precision: 64}}\n", "over", "").methods["arcface"]["trainer"]
    assert added == {"max_epochs": 3, "precision": 64}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("sweep: {model.embedding_size: 3}", "model.embedding_size"),
        ("sweep: {model.embedding_size: [[1, 2]]}", "model.embedding_size"),
        ("prune: true", "prune"),
        ("search: {trials: 3, final: 2}", "final"),
        ("search: {sampler: gpp, trials: 1}", "gp"),
        ("spaces: {arcfase: {}}", "arcface"),
        ("references: [lad]", "features, lda"),
        ("references: [pca0]", "pca0"),
        ("references: [lda, lda]", "references: "),
        ("metrics: map_at_r", "'map_at_r'"),
        ("metrics: [recall_at_2, map_at_0]", "'map_at_0'"),
        ("metrics: [recall_at_2, mpa]", "'map'"),
        ("overrides: {trainer: {max_epochs: 0}}", "trainer.max_epochs"),
        ("overrides: {trainer: {devices: auto}}", "trainer.devices"),
        ("overrides: {trained_as: arcface}", "trained_as"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, more: str, names: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, more)
    assert names in str(refused.value)
    assert str(tmp_path) in str(refused.value) or "method" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"model.embedding_size": 3}, r"--model\.embedding_size"),
        ({"search.sampler": "tpe"}, r"search\.trials"),
        ({"metrics": ["recal_at_5"]}, "'recall_at_<k>'"),
    ],
)
def test_a_mistaken_option_is_named(tmp_path: Path, options: dict, key: str) -> None:
    read(tmp_path, "sweep: {model.embedding_size: [2, 4]}")
    with pytest.raises(UserError, match=key):
        load_spec(tmp_path / "mine.yaml", options)


def test_a_spec_reads_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    values = "{16: {data.samples_per_class: 2}, 32: {data.samples_per_class: 1}}"
    space = f"spaces: {{arcface: {{data.batch_size: {{values: {values}}}}}}}"
    spec = read(tmp_path, f"second_searches: all\nsearch: {{trials: 2}}\n{space}")
    file = tmp_path / "study.yaml"
    file.write_text(spec.to_yaml())
    assert StudySpec.read(file) == spec
    assert "&" not in spec.to_yaml()
    assert named_rows(spec, ["arcface"]) == ["arcface", "arcface@2"]
    for old, new in (("arcface@2:", "=1+1:"), ("folds:", "falds:"), ("methods:", "methods: 3 #")):
        file.write_text(spec.to_yaml().replace(old, new))
        with pytest.raises(UserError, match=r"study\.yaml"):
            StudySpec.read(file)
