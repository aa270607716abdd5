"""The page of the laptop studies against made-up ones in which everything is known."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from levelfield.analysis.results import ResultRow, SummaryRow, summarise, to_csv
from levelfield.study.added_method import added_methods
from levelfield.study.rows import load_spec
from levelfield.study.search_space import settings
from levelfield.study.spec import StudySpec
from levelfield.study.study_file import find_study

REPOSITORY = Path(__file__).parents[2]
SETS = ("grocery_store", "banking77", "glyphs")
METRICS = ("map_at_r", "r_precision", "precision_at_1")
RUNS, FOLDS, TRIALS = 10, 4, 6


@pytest.fixture(scope="module")
def scripts() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts"))
        yield __import__("laptop_answer")
    for name in [name for name in sys.modules if name.startswith("laptop_")]:
        del sys.modules[name]


def planted_means(spec: StudySpec) -> dict[str, float]:
    """The later in the study's order, the better, by a point each: contrastive is worst, triplet next."""
    return {method: 0.30 + 0.01 * place for place, method in enumerate(spec.methods) if "@" not in method}


def write_set(folder: Path, spec: StudySpec, seed: int, noise: float = 0.001, search: float = 0.02) -> None:
    """A searched study with planted means; second searches are `search` above the first."""
    rng, rows = np.random.default_rng(seed), []
    planted = planted_means(spec)
    for method in spec.rows:
        first, _, second = method.partition("@")
        mean = planted.get(first, 0.305) + search * bool(second)
        runs = 1 if method not in spec.methods else RUNS
        for run in range(runs):
            of_run = noise * rng.standard_normal() * (runs > 1)
            for fold in range(FOLDS):
                score = mean + of_run + 0.05 * (fold - 1.5) + 0.1 * noise * rng.standard_normal() * (runs > 1)
                rows.append(ResultRow(method, "run", None, run, fold, "separated", "map_at_r", score + 0.1))
                rows += [ResultRow(method, "test", None, run, fold, "separated", metric, score) for metric in METRICS]
            rows.append(ResultRow(method, "test", None, run, None, "concatenated", "map_at_r", mean + of_run + 0.03))
    folder.mkdir(parents=True)
    rows.sort(key=ResultRow.sort_key)
    (folder / "results.csv").write_bytes(to_csv(rows, ResultRow))
    (folder / "summary.csv").write_bytes(to_csv(summarise(rows), SummaryRow))
    with open(folder / "trials.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "trial", "map_at_r", "chosen", "settings"])
        for method in spec.methods:
            space = spec.space(method)
            places = rng.random((TRIALS, len(space)))
            best = int(places[:, 0].argmax())  # the first argument is all that counts
            for number, place in enumerate(places):
                tried = settings(space, {key: space[key].at(at) for key, at in zip(space, place, strict=True)})
                value = planted[method.partition("@")[0]] + 0.005 * place[0]
                writer.writerow([method, number, repr(float(value)), int(number == best), json.dumps(tried)])


def write_follow_up(folder: Path, scores: dict[str, float], runs: int = RUNS) -> None:
    """A study without a search whose methods score the same in every run but for a little noise."""
    rng = np.random.default_rng(5)
    rows = [
        ResultRow(method, stage, None, run, fold, "separated", "map_at_r", score + 1e-4 * rng.standard_normal())
        for method, score in scores.items()
        for run in range(runs)
        for fold in range(FOLDS)
        for stage in ("run", "test")
    ]
    folder.mkdir(parents=True)
    (folder / "results.csv").write_bytes(to_csv(rows, ResultRow))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets, one with its follow-ups."""
    folder = tmp_path_factory.mktemp("laptop")
    for seed, name in enumerate(SETS):
        write_set(folder / name, load_spec(find_study(f"laptop/{name}")), seed)
    planted = planted_means(load_spec(find_study("laptop/glyphs")))
    write_follow_up(folder / "glyphs_defaults", {method: mean - 0.03 for method, mean in planted.items()})
    write_follow_up(folder / "glyphs_pca", {method: mean + 0.02 for method, mean in planted.items()})
    six = ("contrastive", "triplet_margin", "normalized_softmax", "cosface", "arcface", "multi_similarity")
    scores = dict(zip(six, (0.40, 0.41, 0.46, 0.47, 0.50, 0.49), strict=True))
    write_follow_up(folder / "grocery_store_finetuned", scores)
    ledgers = {"grocery_store": 1, "banking77": 1, "glyphs": 2, "glyphs_defaults": 1, "glyphs_pca": 1}
    for name, openings in {**ledgers, "grocery_store_finetuned": 1}.items():
        lines = ['{"event": "opened"}', '{"event": "finished"}'] * openings
        (folder / name / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def page(scripts: ModuleType, results: Path) -> str:
    return scripts.page(scripts.finished_sets(results), results, simulated=200)


def row(page: str, name: str, section: str) -> list[str]:
    """The cells of the first row of that name in a section."""
    part = page.split(f"\n## {section}")[1].split("\n## ")[0]
    (line, *_) = re.findall(rf"^\| {re.escape(name)} \|.*$", part, flags=re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_it_says_on_how_many_sets_it_rests(page: str) -> None:
    assert "**3 sets**" in page


def test_the_limits_come_first_on_each_page(page: str, others: dict[str, str]) -> None:
    pages = [page, others["docs/results/README.md"], others["docs/which_loss.md"]]
    for text in pages:
        first = text.split("\n\n")[1]
        assert "from random weights, for at most 200 steps of 32" in first
        # The features are planted at 30.5, the best of 14 losses at 43.
        assert "On 0 of 3 sets (none) the trunk's features as they are" in first
        assert "On 0 sets (none) none of 14 methods is above the PCA" in first
        assert "evaluated 1 to 4 times (Grocery Store 2, Banking77 1, Glyphs 4)" in first


def test_the_limits_are_those_of_the_kept_tables(scripts: ModuleType) -> None:
    """Counted here from `summary.csv` and the ledgers alone."""
    folder = REPOSITORY / "docs" / "results" / "laptop"
    names = ("grocery_store", "banking77", "glyphs", "clinc150", "typefaces", "news20", "omniglot")
    ahead, ahead_in_recall, openings = [], [], {}
    for name in names:
        scores: dict[str, dict[str, float]] = {"map_at_r": {}, "precision_at_1": {}}
        with open(folder / name / "summary.csv", newline="") as text:
            for line in csv.DictReader(text):
                if line["embedding"] == "separated" and line["metric"] in scores:
                    scores[line["metric"]][line["method"]] = float(line["mean"])
        losses = [method for method in scores["map_at_r"] if not method.startswith("pretrained")]
        assert len([method for method in losses if "@" not in method]) == 32
        if all(scores["map_at_r"]["pretrained[features]"] > scores["map_at_r"][method] for method in losses):
            ahead.append(name)
        if all(scores["precision_at_1"]["pretrained"] > scores["precision_at_1"][method] for method in losses):
            ahead_in_recall.append(name)
        ledgers = [folder / f"{name}{kind}" / "ledger.jsonl" for kind in ("", "_defaults", "_pca", "_transfer")]
        ledgers += [folder / f"{name}_finetuned" / "ledger.jsonl"]
        openings[name] = sum(file.read_text().count('"event": "opened"') for file in ledgers if file.is_file())
    assert ahead == ["grocery_store", "banking77", "clinc150", "news20"]
    assert ahead_in_recall == ["grocery_store", "banking77", "news20"]
    assert list(openings.values()) == [9, 7, 6, 6, 6, 6, 6]
    first = scripts.limits(scripts.finished_sets(), "")
    assert "On 4 of 7 sets (Grocery Store, Banking77, CLINC150, 20 Newsgroups) the trunk's features" in first
    assert "On 3 sets (Grocery Store, Banking77, 20 Newsgroups) none of 32 methods" in first
    of_each = "Grocery Store 9, Banking77 7, Glyphs 6, CLINC150 6, Typefaces 6, 20 Newsgroups 6, Omniglot 6"
    assert f"evaluated 6 to 9 times ({of_each})" in first


def test_kinds_of_losses_change_places_with_the_start() -> None:
    """What `docs/losses.md` and `docs/which_loss.md` say of the kinds, from `summary.csv` alone."""
    folder = REPOSITORY / "docs" / "results" / "laptop"
    class_weights = ("proxy_nca", "normalized_softmax", "cosface", "arcface", "soft_triple")
    pairs = ("contrastive", "triplet_margin", "ntxent", "margin", "margin_per_class", "signal_to_noise_ratio")
    pairs += ("multi_similarity", "multi_similarity_miner")
    leads = {}
    for name in ("grocery_store", "banking77", "clinc150"):
        for kind in ("", "_pca"):
            with open(folder / f"{name}{kind}" / "summary.csv", newline="") as text:
                scores = {
                    line["method"]: 100 * float(line["mean"])
                    for line in csv.DictReader(text)
                    if (line["embedding"], line["metric"]) == ("separated", "map_at_r")
                }
            leads[name + kind] = np.mean([scores[m] for m in pairs]) - np.mean([scores[m] for m in class_weights])
    random, pca = [-2.22, -1.42, -2.03], [0.42, 0.43, 0.87]
    assert list(leads.values()) == pytest.approx(
        [lead for both in zip(random, pca, strict=True) for lead in both], abs=0.01
    )


def test_planted_means_and_losses_below_the_baseline_are_there(page: str) -> None:
    scores = row(page, "`soft_triple`", "What do they score")
    assert [float(cell.split(" ")[0]) for cell in scores] == pytest.approx([43.0] * 3, abs=0.11)
    assert [float(cell.split(" / ")[1].split(" ")[0]) for cell in scores] == pytest.approx([46.0] * 3, abs=0.11)
    # The baselines are planted at 30.5, between contrastive (30) and triplet (31).
    assert "3 of 42 searched losses end below the untrained trunk's features as they are, and 3 below" in page
    assert "glyphs 1), 3 of them by more than their 95% interval over runs" in page
    assert "separated: grocery_store: `contrastive`; banking77: `contrastive`; glyphs: `contrastive`." in page
    assert "LDA is above every loss on 0 of 3 sets, side by side on 0." in page


def test_differences_from_the_classics_are_the_planted_ones(page: str) -> None:
    section = "Is any loss better"
    cells = row(page, "`soft_triple`", section)
    assert float(cells[0].split(" ")[0]) == pytest.approx(13, abs=0.1)
    assert cells[1:3] == ["3", "0"]
    assert float(cells[3].split(" ")[0]) == pytest.approx(12, abs=0.1)
    contrastive = row(page, "`contrastive`", section)
    assert contrastive[:3] == ["", "", ""]
    assert contrastive[4:] == ["0", "3"]
    assert row(page, "grocery_store", section)[0] == "`soft_triple`"


def test_the_second_searches_stand_in_for_the_first(page: str) -> None:
    # They are planted 2 points above: contrastive at 32 is then above triplet at 31, which was above its 30.
    assert "in their place `triplet_margin` is shown better than contrastive on 0 instead of 3" in page


def test_ranks_are_the_planted_order(page: str, results: Path) -> None:
    methods = [method for method in load_spec(find_study("laptop/glyphs")).methods if "@" not in method]
    for rank, method in enumerate(reversed(methods), start=1):
        assert row(page, f"`{method}`", "Which ranks best") == [f"{rank:.1f}"]
    # Nemenyi's q for 14 methods is 3.354 (Demsar 2006 ends at 10; studentized range, infinite degrees).
    assert f"differ by {3.354 * (14 * 15 / 18) ** 0.5:.1f} of 13" in page
    assert (results / "ranks.svg").stat().st_size > 1000


def test_equal_orders_agree_and_validation_foretells_the_test(page: str) -> None:
    assert row(page, "banking77", "Is it the Reality Check's order?")[2] == "+1.00 (+1.00 to +1.00)"
    cells = row(page, "glyphs", "Does the validation order")
    assert [float(cell) for cell in cells[:2]] == [1.0, 1.0]
    assert cells[3:] == ["`soft_triple`", "0.0"]
    # The paper's own correlations, as it prints them.
    paper = [row(page, f"paper: {name}", "Does the validation order")[0] for name in ("CUB", "Cars", "SOP")]
    assert paper == ["0.91", "0.66", "0.97"]


def test_noise_is_the_planted_one(page: str) -> None:
    cells = row(page, "banking77", "How large is the noise")
    assert float(cells[0]) == pytest.approx(0.1, abs=0.05)
    assert float(cells[1]) == pytest.approx(5 * np.std([-1.5, -0.5, 0.5, 1.5], ddof=1), abs=0.1)
    assert [float(cell.split(" ")[0]) for cell in cells[2:5]] == pytest.approx([2.0] * 3, abs=0.2)
    assert [float(cell) for cell in cells[5:]] == pytest.approx([1, 6.5, 13], abs=0.11)
    components = row(page, "banking77", "What does the variance consist of?")
    # Two searches that differ by 2 points have a standard deviation of 2 / sqrt(2).
    assert float(components[0].split(" ")[0]) == pytest.approx(2 / 2**0.5, abs=0.1)


def test_the_argument_that_decides_is_named(page: str) -> None:
    for method in ("arcface", "soft_triple", "multi_similarity"):
        space = load_spec(find_study("laptop/glyphs")).space(method)
        fault = row(page, f"glyphs `{method}`", "How many trials")[8]
        assert fault == "" or fault.startswith(next(iter(space)).rpartition(".")[2])


def test_follow_ups_are_compared_run_by_run_and_absent_ones_are_said_to_be(
    page: str, scripts: ModuleType, results: Path
) -> None:
    assert row(page, "`margin`", "What do tuned settings win")[0].startswith("31.0: +3.0")
    (cell,) = row(page, "`margin`", "Does it pay to start")
    assert cell.startswith("36.0: +2.0")
    assert cell.endswith("*")
    assert page.count("Of 14 pairs of method and set 14 are shown to gain, 0 to lose.") == 4, "in short, and below it"
    # Contrastive is planted at 30, the baseline at 30.5; defaults are 3 points lower, starts at the PCA 2 higher.
    assert "4 of 14 end below the untrained trunk's PCA at the defaults, 1 at the chosen settings" in page
    assert "0 of 14 end below the untrained trunk's PCA with that start, 1 at the chosen settings" in page
    alone = scripts.page([each for each in scripts.finished_sets(results) if each.name == "banking77"], results, 200)
    assert "**1 set**" in alone
    assert alone.count("Not run yet") == 3  # of the two fine-tuned studies one is there
    assert alone.count("That takes two sets.") == 2


def test_the_fine_tuned_order_is_compared_over_the_losses_that_both_have(page: str, scripts: ModuleType) -> None:
    # Of the six, in the planted order, two neighbours are exchanged: of 15 pairs 14 are as before, (14 - 1) / 15.
    assert "grocery_store +0.87" in page
    assert "over 6 losses; of the 15 pairs that the fine-tuned study shows to differ, 14 stand in that order" in page
    cells = row(page, "grocery_store `arcface`", "Does the frozen order foretell")
    assert [float(cell.split(" ")[0]) for cell in cells] == pytest.approx([38.0, 50.0], abs=0.11)


def test_regret_is_the_planted_one_and_the_left_out_set_has_no_say(
    scripts: ModuleType, results: Path, tmp_path: Path
) -> None:
    import laptop_transfer

    losses = {  # on each set, the setting of each
        "grocery_store": {"grocery_store": 0.50, "banking77": 0.40, "glyphs": 0.492, "default": 0.30},
        "banking77": {"grocery_store": 0.55, "banking77": 0.60, "glyphs": 0.59, "default": 0.30},
        "glyphs": {"grocery_store": 0.69, "banking77": 0.66, "glyphs": 0.70, "default": 0.30},
    }
    for name in SETS:
        (tmp_path / name).symlink_to(results / name)
        scores = {
            f"{m}.{source}": v
            for m in planted_means(load_spec(find_study("laptop/glyphs")))
            for source, v in losses[name].items()
        }
        write_follow_up(tmp_path / f"{name}_transfer", scores, runs=1)
    sets = scripts.finished_sets(tmp_path)
    found, is_measured = laptop_transfer.transfers(sets)
    assert is_measured
    choice = laptop_transfer.choose(found, "arcface")
    assert choice.source == "glyphs"
    assert choice.regret == pytest.approx((0.008 + 0.01 + 0) / 3, abs=5e-4)
    # Without glyphs, grocery_store's loses 0.05 on the other two and banking77's 0.10; on glyphs that costs 0.01.
    assert choice.left_out == pytest.approx({"grocery_store": 0.008, "banking77": 0.01, "glyphs": 0.01}, abs=5e-4)
    section = laptop_transfer.transfer_section(sets)
    assert "| from banking77 | 10.0 (worst 10.0) |  | 4.0 (worst 4.0) |" in "\n".join(section.lines)


def test_follow_up_studies_can_be_read_and_have_the_chosen_settings(
    scripts: ModuleType, results: Path, tmp_path: Path
) -> None:
    import laptop_followups

    sets = scripts.finished_sets(results)
    files = {}
    for kind, definition in laptop_followups.definitions(sets[0], sets).items():
        files[kind] = tmp_path / f"{kind}.yaml"
        files[kind].write_text(yaml.safe_dump(definition))
    searched = load_spec(find_study("laptop/grocery_store"))
    defaults, pca, transfer = (load_spec(files[kind]) for kind in ("defaults", "pca", "transfer"))
    assert list(defaults.methods) == list(pca.methods) == sets[0].methods
    assert defaults.methods == {method: searched.methods[method] for method in sets[0].methods}
    assert (pca.search.trials, pca.runs, pca.seed) == (0, 5, searched.seed)
    margin = sets[0].chosen("contrastive")["model.loss.init_args.neg_margin"]
    assert pca.methods["contrastive"]["model"]["loss"]["init_args"]["neg_margin"] == margin
    assert pca.methods["contrastive"]["model"]["embedder_init"] == "pca"
    assert [each["class_path"].rpartition(".")[2] for each in pca.methods["contrastive"]["trainer"]["callbacks"]] == [
        "EarlyStopping",
        "ValidateFirst",
    ]
    assert len(transfer.methods) == 14 * 4
    assert transfer.runs == 1
    of_glyphs = sets[2].chosen("arcface")["model.loss.init_args.scale"]
    assert transfer.methods["arcface.glyphs"]["model"]["loss"]["init_args"]["scale"] == of_glyphs
    assert transfer.methods["arcface.default"] == searched.methods["arcface"]


def test_tuned_settings_are_a_study_file(scripts: ModuleType, results: Path, tmp_path: Path) -> None:
    import laptop_followups

    sets = scripts.finished_sets(results)
    file = tmp_path / "unsearched.yaml"
    file.write_text(
        laptop_followups.tuned(sets)
        .replace("../../method/", "method/")
        .replace("reality_check.yaml", "laptop/reality_check.yaml")
    )
    spec = load_spec(file)
    assert (spec.runs, spec.search.trials, list(spec.methods)) == (5, 0, sets[0].methods)
    choices = [laptop_followups.rounded(each.chosen("ntxent"))["model.loss.init_args.temperature"] for each in sets]
    assert spec.methods["ntxent"]["model"]["loss"]["init_args"]["temperature"] in choices


@pytest.fixture(scope="module")
def others(scripts: ModuleType, results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The other pages that follow from the three sets, by name."""
    root = tmp_path_factory.mktemp("root")
    (root / "README.md").write_text(
        "before\n<!-- results: made by scripts/laptop_answer.py -->\nold\n<!-- -->\nafter\n"
    )
    pages = scripts.other_pages(scripts.finished_sets(results), root)
    return {str(path.relative_to(root)): text for path, text in pages.items()}


def cells(page: str, start: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(start)}.*$", page, flags=re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_readme_has_a_row_a_set_and_keeps_the_rest(others: dict[str, str]) -> None:
    readme = others["README.md"]
    assert readme.startswith("before\n")
    assert readme.endswith("<!-- -->\nafter\n")
    assert "old" not in readme
    row = cells(readme, "[Grocery Store](docs/results/README.md#grocery-store)")
    # Planted: features, PCA and LDA 30.5, the best 43.
    assert [float(cell.split(" ")[0]) for cell in row] == pytest.approx([30.5, 30.5, 30.5, 43], abs=0.11)
    assert row[-1].endswith("`soft_triple`")
    assert "## Grocery Store" in others["docs/results/README.md"]
    assert "laptop/glyphs/index.html" in others["docs/results/README.md"]


def test_which_loss_to_try_is_the_planted_answer(others: dict[str, str]) -> None:
    page = others["docs/which_loss.md"]
    assert "**3 sets are few**" in page
    assert "Level with the best on all 3 sets, as far as ten runs show: `soft_triple`. On some: none." in page
    assert "Never far behind: `soft_triple`, by 0.0 points on its worst set." in page
    # All but contrastive are above the three baselines, which are planted at 30.5.
    assert "39 of 42 searched losses end above" in page
    found = cells(page, "Banking77 | 30.5 | 30.5 | 30.5 | 13 of 14")
    assert found[4] == "`soft_triple`"
    assert float(found[5]) == pytest.approx(12.5, abs=0.11)
    behind = cells(page, "`contrastive` |")
    assert [float(cell) for cell in behind[:3]] == pytest.approx([13] * 3, abs=0.11)
    assert cells(page, "`soft_triple` |")[0] == "0.0 ="
    twice = cells(page.split("## How far to trust it")[1], "Glyphs |")
    assert [float(cell) for cell in twice] == pytest.approx([2] * 3, abs=0.2)
    assert "## From the PCA on" in page


def test_a_set_alone_says_nothing_of_others(scripts: ModuleType, results: Path) -> None:
    import laptop_choice

    page = laptop_choice.choice_page(scripts.finished_sets(results)[:1])
    assert "**One set says nothing of another.**" in page
    assert "Level with the best on Grocery Store" in page
    assert "## From the PCA on" not in page


def test_the_pages_follow_from_what_is_committed(scripts: ModuleType) -> None:
    pages = scripts.other_pages(scripts.finished_sets())
    stale = [str(path.relative_to(REPOSITORY)) for path, text in pages.items() if path.read_text() != text]
    assert not stale, f"python scripts/laptop_answer.py writes {stale}"


def test_what_came_later_has_a_section_once_a_set_holds_all_of_it(
    page: str, scripts: ModuleType, results: Path, tmp_path: Path
) -> None:
    import laptop_later

    assert "Are newer losses better" not in page
    for name in SETS:
        (tmp_path / name).mkdir()
        for file in (results / name).iterdir():
            (tmp_path / name / file.name).symlink_to(file)
    added = [*laptop_later.ADDED, *(f"{method}@2" for method in laptop_later.TWICE)]
    for name in SETS[:2]:
        # 40 points and one more each from smooth_ap to potential_field, then regularizers; second searches 1.5 above.
        planted = {method: 0.40 + 0.01 * place for place, method in enumerate(laptop_later.ADDED)}
        planted |= {f"{method}@2": planted[method] + 0.015 for method in laptop_later.TWICE}
        rng = np.random.default_rng(7)
        rows = laptop_later_rows(planted, added, rng)
        kept = (results / name / "results.csv").read_bytes()
        (tmp_path / name / "results.csv").unlink()
        (tmp_path / name / "results.csv").write_bytes(kept + to_csv(rows, ResultRow).partition(b"\n")[2])
    (section,) = laptop_later.later_section(scripts.finished_sets(tmp_path))
    text = "\n".join(["", f"## {section.question}", "", section.short, "", *section.lines])
    where = "Are newer losses better"
    # The best of the 14 is planted at 43, the last regularizer at 57; contrastive at 30, NT-Xent at 32.
    assert "12 losses of 2020 to 2025, and 6 of a loss with a regularizer of 2017 to 2020" in section.short
    assert "The best of these 18 less the best of the 14, over 2 sets: +14.0" in section.short
    assert "Two searches of one of them differ by up to 1.5 points" in section.short
    better = ", ".join(f"`{method}`" for method in laptop_later.ADDED[4:])
    assert f"on 2 of 2 sets: Grocery Store ({better}); Banking77 ({better})." in section.short
    cells = row(text, "`contextual`", where)
    assert cells[0] == "2023"
    assert [float(cell.split(" ")[0]) for cell in cells[1:3]] == pytest.approx([50.0] * 2, abs=0.11)
    assert cells[3] == "8.0"  # potential_field and six regularizers are above it
    assert float(cells[4].split(" ")[0]) == pytest.approx(20.0, abs=0.11)
    assert cells[5:] == ["2", "0"]
    (pair,) = re.findall(r"^\| `ntxent_koleo` \|([^|]*)\| 2 \| 0 \|$", text, flags=re.MULTILINE)
    assert float(pair) == pytest.approx(53.0 - 32.0, abs=0.11)
    assert all(f"`{method}`" in text for method in laptop_later.YEARS)
    choice = "\n".join(laptop_later.later_choice(scripts.finished_sets(tmp_path)))
    best = list(reversed(laptop_later.ADDED))[:5]
    first = ", ".join(f"`{method}` {rank}.0" for rank, method in enumerate(best, 1))
    assert f"By mean rank of all 32 over these sets: {first}; " in choice


def laptop_later_rows(planted: dict[str, float], methods: list[str], rng: np.random.Generator) -> list[ResultRow]:
    rows = []
    for method in methods:
        for run in range(RUNS):
            of_run = 0.001 * rng.standard_normal()
            rows += [
                ResultRow(method, stage, None, run, fold, "separated", "map_at_r", planted[method] + of_run)
                for fold in range(FOLDS)
                for stage in ("run", "test")
            ]
    return rows


def test_the_commands_that_add_the_later_methods_name_shipped_ones(scripts: ModuleType) -> None:
    import laptop_later

    spec = load_spec(
        find_study("laptop/glyphs"),
        {f"second_searches.{method}": 1 for method in laptop_later.TWICE},
        added_methods(laptop_later.ADDED),
    )
    assert [method for method in spec.methods if "@" not in method] == [*laptop_later.FIRST, *laptop_later.ADDED]
    assert all(spec.space(method) for method in laptop_later.ADDED)
    (study, _) = laptop_later.commands("glyphs")
    assert study.count("--add-method ") == len(laptop_later.ADDED)


@pytest.mark.parametrize("script", ["laptop_later", "laptop_followups"])
def test_no_study_is_made_of_a_set_whose_results_alone_are_kept(
    scripts: ModuleType, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "typefaces"])
    with pytest.raises(SystemExit) as ended:
        __import__(script).main()
    assert ended.value.code == 2
    assert "typefaces" in capsys.readouterr().err
    assert "typefaces" in [each.name for each in scripts.finished_sets()]
