"""The first study that a newcomer sees shows what training brings."""

from dataclasses import replace
from pathlib import Path

import pytest
from study_engine import run_study

from levelfield.analysis.results import collect_rows, summarise
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline
from levelfield.study.study_file import find_study

POINTS = 5.0  # of MAP@R between a loss and the best untrained row


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
    means = {row.method: 100 * row.mean for row in summarise(collect_rows(study)) if row.metric == "map_at_r"}
    untrained = max(mean for row, mean in means.items() if is_baseline(row))
    trained = [mean for row, mean in means.items() if not is_baseline(row)]
    assert len(trained) >= (1 if names else 4)
    assert min(trained) > untrained + POINTS, means
