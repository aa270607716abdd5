"""The answers of the A/A study, on made scores and on the kept ones, against plain loops, pandas and SciPy."""

import csv
import io
import json
import re
import tarfile
from itertools import combinations, product
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from deletable import PAPERS, RESULTS, needs
from scipy.stats import f, t, ttest_1samp, ttest_rel

pytestmark = needs(PAPERS)
aa = pytest.importorskip("papers.aa.answers")

KEPT = Path(aa.__file__).parents[2] / RESULTS / "aa"
SETS = [folder.name for folder in sorted(KEPT.glob("*/"))]
SPREADS = {"cut and half": 3.0, "loss in a replicate": 1.0, "search": 0.8, "run": 0.4}


def made(replicates: int, seed: int = 0) -> np.ndarray:
    """Scores of equal losses (replicates, losses, searches, runs) in points."""
    rng = np.random.default_rng(seed)
    parts = zip(SPREADS.values(), (1, 2, 3, 4), strict=True)
    shape = (replicates, 4, 2, 3)
    return 40 + sum(sd * rng.normal(size=(*shape[:n], *(1,) * (4 - n))) for sd, n in parts) + np.zeros(shape)


@pytest.fixture
def study() -> "aa.Study":
    """Ten replicates as the lines of a table; a fold moves around its run's mean."""
    lines = []
    for metric, stage, seed in (("map_at_r", "test", 0), ("map_at_r", "run", 1), ("precision_at_1", "test", 2)):
        scores = made(10, seed)
        values = {(r, aa.ROWS[row], run): value for (r, row, run), value in np.ndenumerate(scores.reshape(10, 8, 3))}
        untrained = product(enumerate(scores), enumerate(aa.UNTRAINED.values()))
        values |= {(r, row, 0): of_half.mean() - 1 - number for (r, of_half), (number, row) in untrained}
        for ((replicate, row, run), value), fold in product(values.items(), range(4)):
            of = {"stage": stage, "metric": metric, "method": row, "embedding": "separated", "trial": ""}
            own = {"replicate": str(replicate), "run": str(run), "fold": str(fold)}
            lines.append(of | own | {"value": repr(float(value + (-1) ** fold) / 100)})
    return aa.Study(lines)


def kept(name: str) -> pd.DataFrame:
    """Points of each (replicate, row, run), as means over folds, by stage and metric; whole cuts only."""
    found = {}
    for archive in (KEPT / name).glob("*/archive.tar.xz"):
        with tarfile.open(archive) as files:
            found[int(archive.parent.name)] = pd.read_csv(files.extractfile("results.csv"))
    lines = pd.concat({number: found[number] for number in sorted(found) if number ^ 1 in found}, names=["replicate"])
    lines = lines[(lines.embedding == "separated") & lines.fold.notna() & (lines.stage != "trial")]
    return 100 * lines.pivot_table("value", ["replicate", "method", "run"], ["stage", "metric"], "mean")


def cube(scores: pd.Series) -> np.ndarray:
    """(replicates, losses, searches, runs)."""
    names = [f"{loss}{search}" for loss in aa.LOSSES for search in ("", "@2")]
    table = scores.unstack("run").unstack("method").swaplevel(axis=1)[names]
    return table.to_numpy().reshape(len(table), len(aa.LOSSES), 2, -1)


@pytest.fixture(params=["made", *SETS])
def case(request: pytest.FixtureRequest) -> tuple["aa.Study", dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A study, and its scores as read by other code: those of the losses, and of the untrained rows on test classes."""
    if request.param == "made":
        parts = {name: made(10, seed) for seed, name in enumerate(("test", "run", "precision"))}
        untrained = {row: parts["test"].mean(axis=(1, 2, 3)) - 1 - n for n, row in enumerate(aa.UNTRAINED.values())}
        return request.getfixturevalue("study"), parts, untrained
    table = kept(request.param)
    parts = {"test": cube(table["test", "map_at_r"]), "run": cube(table["run", "map_at_r"])}
    untrained = {row: table["test", "map_at_r"].xs((row, 0), level=(1, 2)).to_numpy() for row in aa.UNTRAINED.values()}
    return aa.read(KEPT / request.param), parts, untrained


def test_the_verdicts_on_a_loss_and_itself(case) -> None:
    (study, parts, _), pairs = case, [*combinations(range(4), 2)]
    y = parts["test"]
    np.testing.assert_allclose(study.scores, y, rtol=1e-12)
    p, corrected = aa.over_runs(study.scores)
    q, by_searches = aa.over_searches(study.scores)
    for r in range(len(y)):
        own = ttest_rel(y[r, :, 0], y[r, :, 1], axis=1).pvalue
        others = ttest_rel(*(y[r, [pair[side] for pair in pairs], 0] for side in (0, 1)), axis=1).pvalue
        np.testing.assert_allclose(p[r], own)
        np.testing.assert_allclose(corrected[r], by_holm([*own, *others])[:4])
        gaps = [fmean(y[r, loss, 0]) - fmean(y[r, loss, 1]) for loss in range(4)]
        for loss in range(4):
            rest = [gaps[other] ** 2 for other in range(4) if other != loss]
            assert q[r, loss] == pytest.approx(2 * t.sf(abs(gaps[loss]) / fmean(rest) ** 0.5, 3))
        np.testing.assert_allclose(by_searches[r], by_holm(q[r]))
    by_t, by_f = aa.over_replicates(study.scores)
    for loss in range(4):
        d = [fmean(y[r, loss, 0]) - fmean(y[r, loss, 1]) for r in range(len(y))]
        assert by_t[loss] == (ttest_1samp(d, 0).pvalue < 0.05)
        assert by_f[loss] == (swapped(d) < 0.05)


def by_holm(p) -> list[float]:
    """Each p times the number of those that are not smaller, at least that of a smaller one, at most 1."""
    raised = [min(1.0, value * sum(other >= value for other in p)) for value in p]
    return [max(r for r, other in zip(raised, p, strict=True) if other <= value) for value in p]


def swapped(d: list[float]) -> float:
    """p of Alpaydin's F, for five cuts as for any number of them."""
    cuts = len(d) // 2
    within = sum((d[2 * c] - d[2 * c + 1]) ** 2 / 2 for c in range(cuts))
    return float(f.sf(sum(each**2 for each in d) / (2 * within), 2 * cuts, cuts))


def test_pairs_gains_and_choices(case) -> None:
    (study, parts, untrained), names = case, ["ntxent", "contrastive", "normalized_softmax", "arcface"]
    y, number = parts["test"], len(parts["test"])
    found = aa.pairs_of_losses(study.scores)
    p, by_t = [], []
    for (name, mean, half, *_), (a, b) in zip(found, combinations(range(4), 2), strict=True):
        d = [float(y[r, a].mean() - y[r, b].mean()) for r in range(number)]
        low, high = ttest_1samp(d, 0).confidence_interval(0.95)
        assert name == f"{names[a]} less {names[b]}"
        assert (mean, half) == pytest.approx((fmean(d), (high - low) / 2 if number > 2 else np.nan), nan_ok=True)
        p.append(swapped(d))
        by_t.append(ttest_1samp(d, 0).pvalue)
    np.testing.assert_allclose([each[3:] for each in found], np.transpose([by_holm(p), by_holm(by_t)]))
    validated, tested = parts["run"].mean(axis=3).reshape(number, 8), y.mean(axis=3).reshape(number, 8)
    best = validated.argmax(axis=1)
    assert aa.chosen(study) == [aa.ROWS[row] for row in best]
    for row, gain in zip(untrained.values(), aa.gains(study, "map_at_r").values(), strict=True):
        np.testing.assert_allclose(gain, tested[range(number), best] - row, rtol=1e-9)


def test_the_variances_are_those_of_the_made_scores() -> None:
    found = aa.components(y := made(4000))
    assert list(found) == list(SPREADS)
    for name, variance in found.items():
        assert variance**0.5 == pytest.approx(SPREADS[name], rel=0.05)
    gap = (y[:, 0] - y[:, 1]).mean(axis=(1, 2)).std()
    assert aa.spread_of_difference(found) == pytest.approx(gap, rel=0.05)


def test_the_rate_and_the_power() -> None:
    called = np.zeros((10, 4), bool)
    called[0] = True  # all four cases of a half of the first cut
    assert aa.rate(called) == "4 of 40 (10%, 0% to 38%)"
    assert aa.rate(called[2:]) == "0 of 32 (0%, 0% to 0%)"
    assert aa.rate(called[:2]) == "4 of 8 (50%, 0% to 100%)", "one cut has no interval"
    difference, replicates, by_f, replicates_by_f = aa.needed(1.0)
    rng = np.random.default_rng(0)
    shown = ttest_1samp(rng.normal(difference, 1, (4000, 10)), 0, axis=1).pvalue < 0.05
    assert shown.mean() == pytest.approx(0.8, abs=0.02)
    shown = ttest_1samp(rng.normal(1, 1, (4000, int(replicates))), 0, axis=1).pvalue < 0.05
    assert 0.78 < shown.mean() < 0.9
    for effect, number in ((by_f, 10), (1, int(replicates_by_f))):
        shown = [swapped(draw) < 0.05 for draw in rng.normal(effect, 1, (4000, number)).tolist()]
        assert fmean(shown) == pytest.approx(0.8, abs=0.02)


def test_the_command_reads_archives_and_prints_six_answers(tmp_path: Path, study, monkeypatch, capsys) -> None:
    keys = ("stage", "metric", "method", "replicate", "run")
    failed = ("two", "3")  # its cut has no other half
    for name, number in sorted({*product(("one", "two"), study.replicates)} - {failed}):
        table = io.StringIO()
        writer = csv.DictWriter(table, [*keys[:3], "run", "embedding", "value"], extrasaction="ignore")
        writer.writeheader()
        for key, value in study._means.items():
            if key[3] == number:
                named = dict(zip(keys, key, strict=True))
                writer.writerow(named | {"embedding": "separated", "value": repr(value / 100)})
        place = tmp_path / name / number
        place.mkdir(parents=True)
        with tarfile.open(place / "archive.tar.xz", "w:xz") as archive:
            seconds = json.dumps({"seconds": 60 * int(number) + 90})
            for file, text in (("results.csv", table.getvalue()), ("job/result.json", seconds)):
                (info := tarfile.TarInfo(file)).size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
    monkeypatch.setattr(aa, "AA", tmp_path)
    (page := tmp_path / "page.md").write_text("# Title\n\n<!-- printed -->\nbefore\n<!-- -->\n\n## Limits\n")
    aa.main(page=page)
    printed = capsys.readouterr().out
    assert [line[2] for line in printed.splitlines() if line.startswith("**")] == list("123456")
    assert printed.count("ntxent less arcface") == 2
    assert printed.count(" of 72 (") == 4
    assert printed.count(" | 1.5 |\n") == 2, "the minutes of the fastest replicate"
    assert page.read_text() == f"# Title\n\n<!-- printed -->\n{printed}<!-- -->\n\n## Limits\n"
    assert (tmp_path / "answers.svg").stat().st_size > 5000


@needs(RESULTS)
def test_the_pages_have_the_answers_of_the_kept_archives() -> None:
    root = KEPT.parents[1]
    page = (root / "papers/aa/README.md").read_text()
    assert aa.answers({name: aa.read(KEPT / name) for name in SETS}) in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    rates = {row[0]: row[1:] for row in rows if "%" in row[1]}
    called, by_holm = (re.match(r"(\d+) of (\d+)", cell).groups() for cell in rates["t over runs"])
    rate = f"in {called[0]} of {called[1]} cases"
    sets = {"grocery_store": "Grocery Store", "banking77": "Banking77", "clinc150": "CLINC150"}
    of = [{name: [row[1:] for row in rows if row[0] == name and len(row) == n] for name in sets} for n in (4, 5, 6)]
    gains, pairs, (spreads, costs) = *of[:2], ({name: of[2][name][number] for name in sets} for number in (0, 1))
    said = {
        "README.md": [
            rate,
            *(f"{gains[n][0][1].split()[0]} on {title}" for n, title in sets.items()),
        ],
        "papers/aa/README.md": [rate, f"Holm's correction it is {by_holm[0]}."],
        "results/README.md": [rate, f"It is {by_holm[0]} after Holm's correction."],
        "docs/statistics.md": [f"| {' | '.join([test, *row])} |" for test, row in rates.items()],
        "docs/which_loss.md": [],
    }

    def row(title: str, cells: list[str]) -> str:
        return f"| {title} | {' | '.join(cells)} |"

    for number, what in ((0, "the features"), (2, "a whitening to 128")):
        for column, metric in ((1, "MAP@R"), (2, "P@1")):
            said["results/README.md"].append(row(f"{what}, {metric}", [gains[n][number][column] for n in sets]))
    farthest = [f"{max(abs(float(pair[1].split()[0])) for pair in pairs[name])}" for name in sets]
    said["docs/which_loss.md"].append(row("the two losses that are farthest apart", farthest))
    for column, source in ((2, "another search"), (3, "another seed"), (0, "other classes")):
        cells = [spreads[name][column] for name in sets]
        said["docs/which_loss.md"].append(row(f"{source}, standard deviation", cells))
    for column, what in (
        (1, "replicates for the interval"),
        (3, "replicates for the F test"),
        (4, "minutes of one core a replicate"),
    ):
        said["docs/statistics.md"].append(row(what, [costs[name][column] for name in sets]))
    ends = [[end(float(costs[name][column]) for name in sets) for end in (min, max)] for column in (1, 2)]
    takes, finds = (
        f"takes {ends[0][0]:.0f} to {ends[0][1]:.0f}",
        f"{ends[1][0]:.1f} to {ends[1][1]:.1f} points",
    )
    ahead = [pair[1].split()[0].lstrip("+") for pair in pairs["grocery_store"] if pair[0].startswith("ntxent")]
    said["results/README.md"] += [f"{takes} halves", f"{min(ahead)} to {max(ahead)} points of MAP@R ahead"]
    said["docs/which_loss.md"].append(f"{min(ahead)} to {max(ahead)} points ahead")
    said["papers/aa/README.md"] += [f"{takes} replicates", f"it finds {finds}"]
    by_t, _, by_f, _ = aa.needed(1.0)
    shown = f"{by_f:.1f} standard deviations of a replicate's difference by the F test in 80% of studies"
    said["docs/statistics.md"].append(f"Ten replicates show {shown}, and {by_t:.1f} by the interval.")
    for place, sentences in said.items():
        text = " ".join((root / place).read_text().split())
        for sentence in sentences:
            assert sentence in text, place


@needs(RESULTS)
@pytest.mark.slow
def test_the_study_begins_with_its_kept_replicates(tmp_path: Path, run) -> None:
    words = [str(Path(aa.__file__).with_name("aa.yaml")), "--config", "data/banking77", "--config", "trunk/minilm"]
    folder, kept = tmp_path / "out", KEPT / "banking77"
    options = ["--replicates", "2", "--stop-here", "--output", str(folder), "--from"]
    assert run("study", "run", *words, *options, str(tmp_path))[::2] == (
        2,
        f"levelfield: no archive at {tmp_path}: give one written by levelfield study archive\n",
    )
    assert run("study", "run", *words, *options, str(kept))[0] == 0
    for number in "01":
        summary = (folder / "replicates" / number / "summary.csv").read_bytes()
        assert summary == (kept / number / "summary.csv").read_bytes()
