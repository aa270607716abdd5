"""scripts/questions.py: its tables, from the kept CSV files by another way."""

import csv
import importlib
import io
import tarfile
from collections import defaultdict
from itertools import product
from statistics import fmean

import pytest
from tiny_fit import REPOSITORY


def scores(name: str, stage: str = "test") -> dict[tuple[str, int], float]:
    """Method and run to the mean over folds of separated MAP@R, in percent; stage "run" is the validation."""
    found = defaultdict(list)
    with tarfile.open(REPOSITORY / "results" / name / "archive.tar.xz") as archive:
        for row in csv.DictReader(io.TextIOWrapper(archive.extractfile("results.csv"), newline="")):
            if (row["stage"], row["embedding"], row["metric"]) == (stage, "separated", "map_at_r"):
                found[row["method"], int(row["run"])].append(100 * float(row["value"]))
    return {key: fmean(values) for key, values in found.items()}


def test_pair_less_class_and_the_count_above_the_features_follow_from_the_archives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("questions")
    printed = module.answers()
    assert printed in (REPOSITORY / "results/questions.md").read_text()
    found = scores("banking77")
    pairs = [fmean(found[loss, run] for loss in module.PAIRS) for run in range(10)]
    classes = [fmean(found[loss, run] for loss in module.CLASSES) for run in range(10)]
    difference = fmean(pairs) - fmean(classes)
    row = next(line for line in printed.partition("**1.**")[2].splitlines() if line.startswith("| Banking77 |"))
    assert row.split("|")[2].split()[0] == f"{difference:+.1f}"
    above = sum(
        fmean(found[loss, run] for run in range(10)) > found["pretrained[features]", 0] for loss in module.LOSSES
    )
    counts = next(line for line in printed.partition("**3.**")[2].splitlines() if line.startswith("| Banking77 |"))
    assert counts.split("|")[2].split()[0] == str(above)


def test_the_tables_of_the_page_follow_from_the_kept_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("questions")
    page = (REPOSITORY / "docs/which_loss.md").read_text()
    signs = module.by_cell("", lambda _, study: module.interval(module.pair_less_class(study))).strip()
    assert signs in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.count("`") == 4]
    assert len(rows) == 7
    folders = {
        **{title: name for name, title in module.SETS.items()},
        "20 Newsgroups": "news20",
        "Typefaces": "typefaces",
    }
    for title, features, pca, lda, *best in rows:
        name = folders[title.partition(" (")[0]]
        untrained, starts = summary(name), (summary(name), summary(f"{name}_pca"))
        shown = [f"{untrained[f'pretrained{of}']:.1f}" for of in ("[features]", "", "[lda]")]
        assert [features, pca, lda] == shown
        fourteen = [method for method in starts[1] if not method.startswith("pretrained")]
        assert len(fourteen) == 14
        for cell, scores in zip(best, starts, strict=True):
            method = max(fourteen, key=lambda each: scores[each])
            assert (cell.split()[0], cell.split()[-1]) == (f"{scores[method]:.1f}", f"`{method}`")


def test_the_sentences_of_the_results_page_follow_from_the_kept_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("questions")
    page = " ".join((REPOSITORY / "results/README.md").read_text().split())
    sets = ("grocery_store", "banking77", "clinc150")
    features = {data: summary(data)["pretrained[features]"] for data in sets}
    done = {data: summary(f"converged_{data}_pca") for data in sets}
    gains = {data: sorted(done[data][loss] - features[data] for loss in module.LOSSES) for data in sets}
    for data, title in zip(sets, ("Grocery Store", "Banking77", "CLINC150"), strict=True):
        assert f"{gains[data][0]:+.1f} to {gains[data][-1]:+.1f} on {title}" in page.replace(" points on", " on")

    whitened = [done[data]["pretrained[whitening]"] - features[data] for data in sets]
    assert "ends {:+.1f}, {:+.1f} and {:+.1f} points from them".format(*whitened) in page

    def kinds(studies: list[dict[str, float]]) -> str:
        found = [fmean(each[x] for x in module.PAIRS) - fmean(each[x] for x in module.CLASSES) for each in studies]
        first, second, third = (f"{round(each, 1) + 0.0:+.1f}".replace("+0.0", "0.0") for each in found)
        return f"{first}, {second} and {third}"

    assert f"pair losses are {kinds([summary(data) for data in sets])} points from class-weight losses" in page
    assert f"From a PCA until done the difference is {kinds(list(done.values()))}" in page
    studies = [*done.values(), *(summary(f"converged_{data}_random") for data in sets)]
    luck = [abs(each["proxy_nca"] - each["normalized_softmax"]) for each in studies]
    assert f"their two searches end {min(luck):.1f} to {max(luck):.1f} points apart" in page
    again = summary("converged_grocery_store_pca_again")
    second = [again[f"{loss}@2"] - again[loss] for loss in ("contrastive", "multi_similarity", "arcface")]
    assert "multi-similarity and ArcFace end {:+.1f}, {:+.1f} and {:+.1f} points from the first".format(*second) in page
    which = " ".join((REPOSITORY / "docs/which_loss.md").read_text().split())
    for data, gain, gain_of_which, first_words in (
        (
            "grocery_store",
            "by {} points on Grocery Store (600 steps)",
            "{} points on the fixed halves of Grocery",
            "goes",
        ),
        ("banking77", "by {} on Banking77 (400 steps)", "{} on Banking77 (400 steps)", "and"),
    ):
        trained, after = (summary(f"trunk_{data}", metric) for metric in ("map_at_r", "precision_at_1"))
        first = after["pretrained[features]"]
        more = [trained[loss] - features[data] for loss in module.TRUNK]
        gained = f"{min(more):.1f} to {max(more):.1f}"
        assert gain.format(gained) in page
        assert gain_of_which.format(gained) in which
        ends = [after[loss] for loss in module.TRUNK]
        assert f"{first_words} from {first:.1f} to between {min(ends):.1f} and {max(ends):.1f}" in page
    few = summary("grocery_store_finetuned", "precision_at_1")
    ends = [score for method, score in few.items() if not method.startswith("pretrained")]
    assert f"After just 80 steps on Grocery Store it is {min(ends):.1f} to {max(ends):.1f}: too few" in page
    trunks = [dict(zip(module.HEAD_OF_TRUNK, module.trained_trunk(data, module.kept(f"trunk_{data}")), strict=True))
              for data in sets[:2]]  # fmt: skip
    pairs = [each["pair less class-weight"] for each in trunks]
    assert f"With a trained trunk it is {pairs[0]} on Grocery Store and {pairs[1]} on Banking77" in page
    leads = [pair.lstrip("+-") for pair in pairs]
    assert f"lead on Grocery Store by {leads[0]} points, and the pair losses on Banking77 by {leads[1]}" in which
    assert "tau is {} and {}".format(*(each["tau with the heads"] for each in trunks)) in which
    assert sum(after[loss] < first for loss in module.TRUNK) == 2  # of Banking77
    assert "two of the four lose P@1" in which
    assert f"and a head reaches {max(done['banking77'][loss] for loss in module.LOSSES):.1f}" in which
    averaged = [each["averaged less trained, ± over four losses"].lstrip("+") for each in trunks]
    assert "with the start adds {} and {} over four losses: not significant".format(*averaged) in which
    assert all(float(mean) < float(half) for mean, _, half in map(str.split, averaged))
    fourteen = [method for method in summary("glyphs_pca") if not method.startswith("pretrained")]
    for row, metric, *both in (
        ("pretrained[features]", "map_at_r", 4, 2),
        ("pretrained[features]", "precision_at_1", 3, 3),
        ("pretrained", "map_at_r", 1, 0),
    ):
        for start, count in zip(("", "_pca"), both, strict=True):
            all_sets = [(summary(data, metric)[row], summary(f"{data}{start}", metric))
                        for data in ("news20", "glyphs", "omniglot", "typefaces", *sets)]  # fmt: skip
            assert sum(untrained > max(each[method] for method in fourteen) for untrained, each in all_sets) == count
    assert "on 4 of 7 data sets from a random start, and on 2 from a PCA. In P@1 it is 3 and 3." in page
    own = sorted(done["clinc150"][loss] - done["clinc150"]["pretrained"] for loss in module.LOSSES)
    assert f"over their own start all eight gain {own[0]:.1f} to {own[-1]:.1f} points on CLINC150" in page
    halves = module.kept("splits_grocery_store")
    orders, gained = set(), []
    for half in range(module.SPLITS):
        means = {loss: halves.mean(f"{loss}[{half}]") for loss in module.SPLIT}
        orders.add(tuple(sorted(means, key=lambda loss: means[loss])))
        gained.append(means["multi_similarity"] - halves.mean(f"pretrained[features-{half}]"))
        first = halves.mean(f"pretrained[features-{half}]", module.P1)
        assert all(halves.mean(f"{loss}[{half}]", module.P1) < first for loss in module.SPLIT)
    assert len(orders) == 1
    fixed = done["grocery_store"]["multi_similarity"] - features["grocery_store"]
    more = f"{min(gained):.1f} to {max(gained):.1f}"
    assert f"multi-similarity gains {fixed:.1f} points on the fixed halves, and {more} on four random ones" in page
    assert f"is {fixed:.1f} points above the features on the fixed halves of Grocery Store, and {more} on four" in which
    over_halves, _, between = module.split_noise("", halves)
    assert f"moves by {over_halves} points between halves, and the losses lie {between} apart" in which
    long = module.kept("glyphs_4000_steps")
    at_cap, trainings, _ = long.ends()
    after, before = (fmean(module.pair_less_class(study)) for study in (long, module.kept("glyphs")))
    assert f"{at_cap} of {trainings} trainings still rose at the cap" in page
    assert f"are {after:+.1f} points from class-weight losses, after {before:+.1f} at 200 steps" in page
    times = [module.evaluations(data) for data in (*sets, "news20", "glyphs", "omniglot", "typefaces")]
    assert f"evaluated the test classes of a set {min(times)} to {max(times)} times" in page
    caps = [module.kept(f"converged_{data}_{start}").ends() for data in sets for start in ("random", "pca")]
    at_cap, trainings = (sum(each[part] for each in caps) for part in (0, 1))
    assert f"After that, {at_cap} of {trainings} trainings reached their cap" in page


def test_other_searches_and_the_validation_of_heads_follow_from_the_kept_studies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("questions")
    page, which = (
        " ".join((REPOSITORY / name).read_text().split()) for name in ("results/README.md", "docs/which_loss.md")
    )
    first, again = (summary(f"converged_grocery_store_pca{end}") for end in ("", "_again"))
    either = {loss: (first[loss], again.get(f"{loss}@2", first[loss])) for loss in module.LOSSES}
    either["proxy_nca"] = either["normalized_softmax"] = (first["proxy_nca"], first["normalized_softmax"])
    found = []
    for chosen in product(*(either[loss] for loss in module.LOSSES)):
        means = dict(zip(module.LOSSES, chosen, strict=True))
        found.append(fmean(means[x] for x in module.PAIRS) - fmean(means[x] for x in module.CLASSES))
    study = module.kept("converged_grocery_store_pca")
    assert module.over_searches(study) == pytest.approx((min(found), max(found)))
    ends = f"{min(found):+.1f} to {max(found):+.1f}"
    assert f"with the other searches kept here, the first is {ends}" in page
    assert f"the {fmean(module.pair_less_class(study)):+.1f} is {ends}" in which

    lost = heads = 0
    for name in (f"converged_{data}_{start}" for data in list(module.SETS)[:3] for start in ("random", "pca")):
        validated, tested = {}, summary(name)
        for end in ("", "_longer"):
            if (REPOSITORY / "results" / f"{name}{end}").is_dir():
                of_runs = scores(f"{name}{end}", "run")
                runs = {method: [of_runs[key] for key in of_runs if key[0] == method] for method, _ in of_runs}
                validated |= {method: fmean(values) for method, values in runs.items()}
        gains = [[means[x] - means["pretrained[features]"] for x in module.LOSSES] for means in (validated, tested)]
        heads += len(module.LOSSES)
        lost += sum(in_validation > 0 > in_test for in_validation, in_test in zip(*gains, strict=True))
    assert f"{lost} of {heads} (3 sets, 2 starts, 8 losses, until done) gain over the features there, and lose" in which

    assert fmean(study.runs("contrastive")) < fmean(module.second_searches().runs("contrastive")) - 5
    lines = [line.split("|") for line in module.the_sentence().splitlines()[2:5]]
    answers = [[cell.split(": ")[-1].strip() for cell in line[2:-1]] for line in lines]
    start, random, pca, trunk = zip(*answers, strict=True)
    assert (start.count("yes"), trunk.count("yes")) == (2, 2)
    assert [(random + pca).count(answer) for answer in ("yes", "tie", "no")] == [1, 1, 4]


def test_the_gain_of_a_trained_trunk_follows_from_the_kept_studies() -> None:
    page = (REPOSITORY / "docs/fine_tune.md").read_text()
    fourteen = {method for method in summary("glyphs_pca") if not method.startswith("pretrained")}
    for title, steps, name in (
        ("Grocery Store (photographs)", 600, "grocery_store"),
        ("Glyphs, the first 240 letters", 60, "glyphs_240"),
        ("Banking77 (questions to a bank)", 400, "banking77"),
    ):
        cells = []
        of_trunk = f"trunk_{name}" if steps >= 400 else f"{name}_finetuned"
        for metric in ("map_at_r", "precision_at_1"):
            frozen, trained = summary(name, metric), summary(of_trunk, metric)
            best = [max(each[method] for method in fourteen & set(each)) for each in (frozen, trained)]
            cells.append([{**frozen, **trained}["pretrained[features]"], *best])
        row = " | ".join(f"{map_at_r:.1f} / {p1:.1f}" for map_at_r, p1 in zip(*cells, strict=True))
        assert f"| {title} | {steps} | {row} |" in page
    few = [summary("grocery_store_finetuned", metric) for metric in ("map_at_r", "precision_at_1")]
    best = " / ".join(f"{max(each[method] for method in fourteen & set(each)):.1f}" for each in few)
    assert f"after 80 steps on Grocery Store the best of six losses has {best}" in page


def test_the_appendix_is_what_its_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("laptop")
    page = module.page()
    assert (REPOSITORY / "results/laptop.md").read_text() == page
    means = {data: summary(data) for data in module.ALL}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    scored = {row[0].strip("`"): row[1:8] for row in rows if len(row) == 12}
    assert len(scored) == 4 + 14 + 18
    for method, cells in scored.items():
        assert [cell.split()[0] for cell in cells] == [f"{means[data][method]:.1f}" for data in module.ALL]


def summary(name: str, metric: str = "map_at_r") -> dict[str, float]:
    """Method to its separated test score, in percent; of a continuation `NAME_longer` if it has the method."""
    found: dict[str, float] = {}
    for each in (name, f"{name}_longer"):
        if (path := REPOSITORY / "results" / each / "summary.csv").is_file():
            rows = csv.DictReader(path.read_text().splitlines())
            kept = [row for row in rows if (row["embedding"], row["metric"]) == ("separated", metric)]
            found |= {row["method"]: 100 * float(row["mean"]) for row in kept}
    assert found, name
    return found
