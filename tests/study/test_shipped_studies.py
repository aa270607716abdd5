"""The studies in configs/study load, are searched and start; those of the laptop are the Reality Check's."""

import csv
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from deletable import PAPERS, needs
from no_skips_in_ci import real_data
from own_images import own_images
from refused import succeeded
from tiny_fit import REPOSITORY
from tiny_text import own_texts, tiny_text_model

from levelfield.analysis.conditions import differing_conditions
from levelfield.core.configuration import Config
from levelfield.study.first_look import look_at_rows
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.rows import find_study, load_spec
from levelfield.study.spec import first_search, is_baseline
from levelfield.study.suggest import suggest

STUDIES = REPOSITORY / "configs" / "study"
# Studies of data that are no part of the package.
NEEDED = {"banking77_quick": "banking77", "clinc150_quick": "clinc150"}
NEEDED |= dict.fromkeys(("grocery_quick", "fair_groceries"), "grocery_store")
# What several studies extend is no study by itself.
SHIPPED = [path for path in sorted(STUDIES.rglob("*.yaml")) if path.stem not in ("methods", "counts")]
# Protocols that give their methods other embeddings, miners or batches (test_paper_protocols.py), and full sizes.
NOT_BUILT = ("zhai_wu", "fehervari", "vasilev_dyakonov")
BUILT = [path for path in SHIPPED if path.parent == STUDIES and not path.stem.endswith(NOT_BUILT)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_study_can_be_searched(path: Path) -> None:
    spec = load_spec(path, {"search.trials": 5})
    untrained = {"pretrained", *spec.derived}
    trained = [method for method in spec.methods if method.partition("[")[0] not in untrained]
    assert [method for method in trained if not spec.trials(method)] == []
    for method in trained:
        tried = suggest(spec.space(method), [], 0, spec.seed, method)
        config = job_config(spec, Job(method, "trial", 0, 0), tried)
        for key, value in tried.items():
            assert reduce(getitem, key.split("."), config) == value


@pytest.mark.slow
@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.stem)
def test_every_shipped_study_builds_and_only_batches_differ(path: Path, tmp_path: Path) -> None:
    overrides: Config = {"model.trunk.weights": None}
    if path.stem.startswith("own_"):
        overrides["data.dataset.table"] = str((own_texts if "texts" in path.stem else own_images)(tmp_path))
    if path.stem in NEEDED:
        overrides["data.root"] = str(real_data(NEEDED[path.stem]).parent)
    spec = load_spec(path, overrides)
    assert spec.name == path.stem
    assert all("data.samples_per_class" in sentence for sentence in differing_conditions(spec))
    look_at_rows(spec)


@pytest.mark.slow
def test_a_study_of_ones_own_data_works_on_a_table(tmp_path, monkeypatch, run):
    """A tiny random trunk and a handful of steps in place of minutes."""
    monkeypatch.chdir(REPOSITORY)
    words = "--data.steps_per_epoch 2 --trainer.max_epochs 1 --folds 2 --runs 1 --model.trunk.weights null "
    words += "--model.trunk.max_length 64 --model.embedding_size 16 --data.batch_size 8"
    words = [*words.split(), "--model.trunk.name", str(tiny_text_model(tmp_path / "tiny"))]
    words += ["--data.dataset.table", str(own_texts(tmp_path)), "--output", str(tmp_path / "own")]
    assert "supcon" in succeeded(run("study", "run", "own_texts_finetune.yaml", *words))
    assert (tmp_path / "own" / "summary.csv").read_text().count("map_at_r") == 2 * 3 + 1  # the one PCA


@needs("results")
def test_what_the_page_says_of_the_fair_study_is_in_its_kept_table() -> None:
    with open(REPOSITORY / "results/trunk/fair_groceries/summary.csv", newline="") as file:
        scores = [line for line in csv.DictReader(file) if line["embedding"] == "separated"]
    means = {line["method"]: 100 * float(line["mean"]) for line in scores if line["metric"] == "map_at_r"}
    losses = [means.pop(method) for method in list(means) if not is_baseline(method)]
    page = " ".join((REPOSITORY / "docs/quickstart.md").read_text().split())
    best = max(means.values())
    assert f"between {min(losses):.1f} and {max(losses):.1f} MAP@R, and the best untrained row {best:.1f}" in page


# Losses with class weights, which take one sample of each of 32 classes (Musgrave et al. 2020, section 3.1).
CLASSIFICATION = {"proxy_nca", "normalized_softmax", "cosface", "arcface", "soft_triple"}


@needs(PAPERS)
@pytest.mark.parametrize("name", ["glyphs", "omniglot", "grocery_store", "clinc150", "banking77", "news20"])
def test_the_protocol_of_the_laptop_is_the_papers(name: str) -> None:
    """Musgrave et al. 2020, section 3.1: 14 methods of Table 4, 50 trials, 10 runs, 4 folds, batches of 32."""
    spec = load_spec(find_study(f"laptop/{name}"))
    paper = load_spec(REPOSITORY / "papers/reality_check/table4_cub.yaml")
    assert [method for method in spec.methods if method == first_search(method)] == list(paper.methods)
    assert {method for method in spec.methods if "@" in method} == {"contrastive@2", "multi_similarity@2", "arcface@2"}
    assert (spec.name, spec.search.trials, spec.folds, spec.runs) == (f"laptop_{name}", 50, 4, 10)
    assert len(study_jobs(spec)) == 1 + 4 * (1 + 3) + 17 * 4 * (50 + 10)
    assert all("data.samples_per_class" in sentence for sentence in differing_conditions(spec))
    for method, config in spec.methods.items():
        data = config["data"]
        assert (data["batch_size"], data["steps_per_epoch"] * config["trainer"]["max_epochs"]) == (32, 200)
        assert data["samples_per_class"] == (1 if first_search(method) in CLASSIFICATION else 4)
        assert spec.space(method)
