"""The first study that a newcomer sees shows what training brings."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from deletable import needs
from study_engine import run_study
from tiny_fit import REPOSITORY

from levelfield.analysis.results import collect_rows, summarise
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline
from levelfield.study.study_file import find_study

POINTS = 5.0  # of MAP@R between a loss and the best untrained row


@needs("results")
def test_what_the_page_says_of_the_fair_study_is_in_its_kept_table() -> None:
    with open(REPOSITORY / "results/fair_groceries/summary.csv", newline="") as file:
        scores = [line for line in csv.DictReader(file) if line["embedding"] == "separated"]
    means = {line["method"]: 100 * float(line["mean"]) for line in scores if line["metric"] == "map_at_r"}
    losses = [means.pop(method) for method in list(means) if not is_baseline(method)]
    page = " ".join((REPOSITORY / "docs/quickstart.md").read_text().split())
    said = (
        f"between {min(losses):.1f} and {max(losses):.1f} MAP@R, and the best untrained row {max(means.values()):.1f}"
    )
    assert said in page


@pytest.mark.parametrize("names", [("ntxent",), pytest.param(None, marks=pytest.mark.full)])
@pytest.mark.slow
def test_its_losses_end_far_above_the_best_untrained_row(names: tuple[str, ...] | None, tmp_path: Path) -> None:
    """One run of one loss here; `-m full` runs it as it is. Nothing is said about the order of the losses."""
    spec = load_spec(find_study("quickstart"))
    assert {"contrastive", "normalized_softmax"} < spec.methods.keys(), "a pair loss and one with class weights"
    assert spec.folds >= 2
    if names is not None:
        kept = {row: config for row, config in spec.methods.items() if row in names}
        spec = replace(spec, methods=kept, spaces={}, runs=1)
    study = run_study(tmp_path / "quickstart", spec)
    rows = [row for row in summarise(collect_rows(study)) if row.embedding == "separated"]
    means = {row.method: 100 * row.mean for row in rows if row.metric == "map_at_r"}
    untrained = max(mean for row, mean in means.items() if is_baseline(row))
    trained = [mean for row, mean in means.items() if not is_baseline(row)]
    assert len(trained) >= (1 if names else 4)
    assert min(trained) > untrained + POINTS, means
