"""The studies laptop/*: the Reality Check's methods, batches, folds and runs, on six data sets."""

from pathlib import Path

import pytest
from deletable import PAPERS, needs
from tiny_fit import REPOSITORY

from levelfield.analysis.conditions import differing_conditions
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import first_search
from levelfield.study.study_file import find_study
from levelfield.study.suggest import suggest
from levelfield.training.build import build

IMAGES = ("glyphs", "omniglot", "grocery_store")
TEXTS = ("clinc150", "banking77", "news20")
# Losses with class weights, which take one sample of each of 32 classes (Musgrave et al. 2020, section 3.1).
CLASSIFICATION = {"proxy_nca", "normalized_softmax", "cosface", "arcface", "soft_triple"}


@needs(PAPERS)
@pytest.mark.parametrize("name", [*IMAGES, *TEXTS])
def test_the_protocol_is_the_papers(name: str) -> None:
    """Musgrave et al. 2020, section 3.1: 14 methods of Table 4, 50 trials, 10 runs, 4 folds, batches of 32."""
    spec = load_spec(find_study(f"laptop/{name}"))
    paper = load_spec(REPOSITORY / "papers/reality_check/table4_cub.yaml")
    assert [method for method in spec.methods if method == first_search(method)] == list(paper.methods)
    assert {method for method in spec.methods if "@" in method} == {"contrastive@2", "multi_similarity@2", "arcface@2"}
    assert (spec.name, spec.search.trials, spec.folds, spec.runs) == (f"laptop_{name}", 50, 4, 10)
    assert len(study_jobs(spec)) == 4 * (1 + 3) + 17 * 4 * (50 + 10)
    assert all("data.samples_per_class" in sentence for sentence in differing_conditions(spec))
    for method, config in spec.methods.items():
        data = config["data"]
        assert (data["batch_size"], data["steps_per_epoch"] * config["trainer"]["max_epochs"]) == (32, 200)
        assert data["samples_per_class"] == (1 if first_search(method) in CLASSIFICATION else 4)
        assert spec.space(method)


def test_the_later_methods_are_all_but_the_paper_s_and_older_losses() -> None:
    spec = load_spec(find_study("laptop/later_methods"))
    earlier = load_spec(find_study("laptop/glyphs")).methods
    assert len(set(spec.methods) - set(earlier)) == 22
    assert {"supcon", "circle", "proxy_anchor", "subcenter_arcface", "cross_batch_memory"} < set(spec.methods)
    assert all("model.embedder_lr" in spec.space(method) for method in spec.methods)


@pytest.mark.parametrize("method", ["multi_similarity", "hist", "hyperbolic_cross_entropy", "cross_batch_memory"])
def test_a_job_builds(method: str, tmp_path: Path) -> None:
    tiny = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
    glyphs = {"data.dataset": "levelfield.data.datasets.Glyphs", "model.trunk": tiny}
    spec = load_spec(find_study("laptop/later_methods"), glyphs)
    trial = suggest(spec.space(method), [], 0, 0, method)
    training = build(job_config(spec, Job(method, "trial", 0, 0), trial), tmp_path, progress=False)
    training.datamodule.setup("fit")
    assert training.datamodule.num_train_classes == 614 - 154  # 614 letters in folds of 154, 154, 153, 153
