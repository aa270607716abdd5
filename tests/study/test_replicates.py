"""A study of two replicates with two searches of each method, on stored features."""

import csv
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t
from study_engine import study_process, tables
from toy_study import TOY, assert_same_bytes

from levelfield import Study
from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.results import collect_rows
from levelfield.core.errors import UserError
from levelfield.core.ledger import LEDGER
from levelfield.study.replicates import replicate
from levelfield.study.rows import load_spec

REPEATED = {
    "search: {trials: 3}": "search: {trials: 2}\nsearches: 2\nreplicates: 2",
    "runs: 2": "runs: 1",
    "max_epochs: 2": "max_epochs: 1",
    "      embedding_size": "      freeze_trunk: true\n      embedding_size",
    "      steps_per_epoch": "      features: true\n      steps_per_epoch",
    "{crop_size: 32, resize: 32, scale: [0.6, 1.0], horizontal_flip: false}": "{crop_size: 32, resize: 32}",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = TOY
    for old, new in REPEATED.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("replicates") / "toy.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def repeated(file: Path, shared: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    return shared("replicates", lambda folder: Study(file, output=folder).run())


@pytest.mark.slow
def test_its_verdict_is_that_of_another_computation(repeated: Path) -> None:
    with open(repeated / "results.csv", newline="") as table:
        rows = [row for row in csv.DictReader(table) if (row["stage"], row["embedding"]) == ("test", "separated")]
    names = ["contrastive", "contrastive@2", "arcface", "arcface@2"]

    def mean(method: str, replicate: int) -> float:
        of = [row for row in rows if (row["method"], row["replicate"]) == (method, str(replicate))]
        return float(np.mean([float(row["value"]) for row in of if row["metric"] == "map_at_r"]))

    scores = np.array([[mean(name, number) for name in names] for number in (0, 1)])
    a, a2, b, b2 = scores.T
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
    assert study.verdicts()[-1].startswith("The intervals hold for other searches and seeds")
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
    first, second = (Study(repeated / "replicates" / str(number)).record().state.results for number in (0, 1))
    classes = [
        {name for result in found.values() for key in ("train_classes", "val_classes") for name in result["data"][key]}
        for found in (first, second)
    ]
    assert (len(classes[0]), len(classes[1]), classes[0] & classes[1]) == (16, 16, set())


@pytest.mark.slow
@pytest.mark.processes
def test_kills_change_no_byte(file: Path, repeated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    for moment in ("0/jobs/contrastive/trial1/fold1/metrics.csv", "1/jobs/arcface@2/run0/fold0/config.yaml"):
        process = study_process(file, folder)
        process.wait_for((folder / "replicates" / moment).exists)
        process.signal(signal.SIGKILL)
        process.wait()
    process = study_process(file, folder)
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert_same_bytes(folder, repeated)
    for number in "01":
        part = Path("replicates", number)
        assert tables(folder / part) == tables(repeated / part)
        assert (folder / part / LEDGER).read_text().count('"event": "evaluated"') == 1


def test_what_cannot_be_repeated_is_one_line(file: Path, tmp_path: Path) -> None:
    spec = load_spec(file, {"data.split": "official"})
    with pytest.raises(UserError, match=r"replicates draw their halves at random: .* data\.split"):
        replicate(spec, 0)
    with pytest.raises(UserError, match="archive its replicates one by one"):
        Study(file, output=tmp_path).archive()
    with pytest.raises(UserError, match="replicates must be a whole number of at least 1"):
        load_spec(file, {"replicates": 0})
