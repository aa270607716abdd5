"""A study of two replicates with two searches of each method, on stored features."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t
from study_engine import scores
from toy_study import TOY, assert_same_bytes

from levelfield import Study
from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.results import collect_rows
from levelfield.core.errors import UserError
from levelfield.study.replicates import replicate
from levelfield.study.rows import load_spec

# One epoch on stored features, which no random crop has.
REPEATED = """
extends: toy.yaml
search: {trials: 2}
searches: 2
replicates: 2
runs: 1
overrides:
  model: {freeze_trunk: true}
  data: {features: true, transforms: {scale: [0.16, 1.0], horizontal_flip: true}}
  trainer: {max_epochs: 1}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("replicates") / "repeated.yaml"
    file.with_name("toy.yaml").write_text(TOY)
    file.write_text(REPEATED)
    return file


@pytest.fixture(scope="module")
def repeated(file: Path, shared: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    return shared("replicates", lambda folder: Study(file, output=folder).run())


@pytest.mark.slow
def test_its_verdict_is_that_of_another_computation(repeated: Path) -> None:
    names = ["contrastive", "contrastive@2", "arcface", "arcface@2"]

    def mean(method: str, number: int) -> float:
        of = {"stage": "test", "embedding": "separated", "metric": "map_at_r", "replicate": str(number)}
        return float(np.mean([*scores(repeated, method=method, **of).values()]))

    a, a2, b, b2 = np.array([[mean(name, number) for name in names] for number in (0, 1)]).T
    # Two searches differ by a normal number of twice the variance: half the squares' mean, of four pairs.
    variance = np.mean([(a - a2) ** 2 / 2, (b - b2) ** 2 / 2])
    difference = np.mean((a + a2) / 2 - (b + b2) / 2)
    error = np.sqrt(variance / 2)  # four means of two searches, over two replicates: 4 · (s² / 2) / 4
    study = Study(repeated)
    found = compare_all(collect_rows(study.record()), list(study.record().spec.methods))
    (pair,) = [each for each in found if each.kind == PAIR]
    assert (pair.over, pair.difference) == ("searches", pytest.approx(difference))
    assert pair.p == pytest.approx(2 * t.sf(abs(difference) / error, 4))
    assert (pair.high - pair.low) / 2 == pytest.approx(t.ppf(0.975, 4) * error)
    searches = {each.method: each.difference for each in found if each.kind == SECOND_SEARCH}
    assert searches == {"contrastive@2": pytest.approx(np.mean(a2 - a)), "arcface@2": pytest.approx(np.mean(b2 - b))}
    assert variance > 0
    assert study.verify() == []
    counted = re.search(r"The test classes were evaluated (\d+) times", repr(study.table()))
    assert int(counted[1]) >= 2, "once in each replicate, and by other tests"


@pytest.mark.slow
def test_replicates_test_the_two_halves_of_a_cut_with_seeds_of_their_own(file: Path, repeated: Path) -> None:
    spec = load_spec(file)
    parts = [replicate(spec, number) for number in range(4)]
    data = [part.methods["arcface"]["data"] for part in parts]
    assert [(each["split"], each["split_seed"]) for each in data] == [
        *(("random", 0), ("random-swapped", 0), ("random", 1), ("random-swapped", 1))
    ]
    assert len({part.seed for part in parts}) == 4
    tested = []
    for number in (0, 1):
        data = [each["data"] for each in Study(repeated / "replicates" / str(number)).record().state.results.values()]
        tested.append({name for each in data for key in ("train_classes", "val_classes") for name in each[key]})
    assert (len(tested[0]), len(tested[1]), tested[0] & tested[1]) == (16, 16, set())


@pytest.mark.slow
def test_lost_results_are_computed_again_to_the_same_bytes(file: Path, repeated: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repeated, tmp_path / "again"))
    for part, row in (("replicates/0", "contrastive"), ("replicates/1", "arcface@2")):
        shutil.rmtree(folder / part / "jobs" / row / "run0")
    Study(file, output=folder).run()
    for part in (".", "replicates/0", "replicates/1"):
        assert_same_bytes(folder / part, repeated / part)


def test_what_cannot_be_repeated_is_one_line(file: Path, tmp_path: Path) -> None:
    spec = load_spec(file, {"data.split": "official"})
    with pytest.raises(UserError, match=r"replicates.* data\.split"):
        replicate(spec, 0)
    with pytest.raises(UserError, match="replicates"):
        Study(file, output=tmp_path).archive()
