"""The finished laptop sets where people look first: the table in README.md and the gallery, docs/results/README.md."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from laptop_order import FEATURES, LDA
from laptop_sets import RESULTS_ONLY, ROOT, LaptopSet
from laptop_words import table

from levelfield.metrics.table import SELECTED_BY
from levelfield.study.spec import BASELINE
from levelfield.study.study_file import find_study

MARKS = ("<!-- results: made by scripts/laptop_answer.py -->\n", "<!-- -->")
TITLES = {
    "grocery_store": "Grocery Store",
    "banking77": "Banking77",
    "glyphs": "Glyphs",
    "clinc150": "CLINC150",
    "typefaces": "Typefaces",
    "news20": "20 Newsgroups",
    "omniglot": "Omniglot",
}
COLUMNS = {FEATURES: "features", BASELINE: "PCA", LDA: "LDA"}


def said_of(name: str) -> str:
    """`81 fine grocery classes, 41 of them unseen`, from the first line of the set's study file."""
    if name in RESULTS_ONLY:
        return RESULTS_ONLY[name]
    first = find_study(f"laptop/{name}").read_text(encoding="utf-8").partition("\n")[0]
    return first.partition(": ")[2].partition(";")[0].removesuffix(".")


def summary(each: LaptopSet) -> dict[str, tuple[float, str]]:
    """Of each row of `summary.csv` its separated test MAP@R, and how it is said: `26.0 ± 0.2`, percent."""
    found = {}
    with open(each.folder / "summary.csv", newline="", encoding="utf-8") as text:
        for line in csv.DictReader(text):
            if (line["embedding"], line["metric"]) == ("separated", SELECTED_BY):
                half = f" ± {100 * float(line['ci95']):.1f}" if line["ci95"] else ""
                found[line["method"]] = float(line["mean"]), f"{100 * float(line['mean']):.1f}{half}"
    return found


def best_of(each: LaptopSet) -> str:
    scores = summary(each)
    return max(each.methods, key=lambda method: scores[method][0])


def score_table(sets: Sequence[LaptopSet]) -> list[str]:
    """A row for each set: the three rows that need no training, and the best loss."""
    rows = []
    for each in sets:
        scores, best = summary(each), best_of(each)
        link = f"[{TITLES[each.name]}](docs/results/README.md#{TITLES[each.name].lower().replace(' ', '-')})"
        rows.append([link, *(scores[method][1] for method in COLUMNS), f"{scores[best][1]} `{best}`"])
    return table(["data set", *COLUMNS.values(), "best of 14 losses"], rows)


def with_table(readme: str, sets: Sequence[LaptopSet]) -> str:
    """README.md with its table made anew."""
    before, begin, rest = readme.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise SystemExit(f"README.md has no place for the table of results: {MARKS[0].strip()} ... {MARKS[1]}")
    return "\n".join([f"{before}{begin}", *score_table(sets), "", f"{end}{after}"])


def gallery(sets: Sequence[LaptopSet], first: str) -> str:
    """The page that shows what there is, a section a set.

    Args:
        first: the first paragraph.
    """
    lines = [
        "# Results",
        "",
        first,
        "",
        "Written by `python scripts/laptop_answer.py`, which takes up each set that is added.",
        "",
        "- [The Reality Check on a laptop](laptop/README.md): 14 losses, each searched with 50 trials and run ten "
        "times, on a frozen trunk; questions and what the studies answer.",
        "- [Which loss should I try?](../which_loss.md): the same figures for somebody who has to begin.",
        "- [Studies that train the trunk](trained_trunks.md): short ones, of a smaller protocol.",
        "- [The papers](../../papers/README.md): what follows from their published numbers, and what is the same here.",
        "",
        "Six letters that were never trained on and their nearest neighbours, before and after 200 steps of the "
        "contrastive loss that train the whole trunk (`python scripts/readme_picture.py`). This is a demo, not a "
        "benchmark, and no study's result:",
        "",
        "![Unseen letters and their eight nearest neighbours, before and after training](../neighbours.png)",
    ]
    for each in sets:
        scores, best = summary(each), best_of(each)
        folder = f"laptop/{each.name}"
        lines += [
            "",
            f"## {TITLES[each.name]}",
            "",
            f"{said_of(each.name)[0].upper()}{said_of(each.name)[1:]}. MAP@R on the unseen classes: the untrained "
            f"features {scores[FEATURES][1]}, their PCA {scores[BASELINE][1]}, LDA {scores[LDA][1]}, the best of the "
            f"14 losses {scores[best][1]} (`{best}`), `contrastive` {scores['contrastive'][1]}. "
            f"[The study's page]({folder}/index.html), [summary.csv]({folder}/summary.csv), "
            f"[trials.csv]({folder}/trials.csv), [all of it]({folder}/study.tar.xz).",
            "",
            f"![Scores of {TITLES[each.name]} with their intervals]({folder}/scores.svg)",
        ]
    return "\n".join([*lines, ""])


def gallery_pages(sets: Sequence[LaptopSet], first: str, root: Path = ROOT) -> dict[Path, str]:
    """README.md and the gallery as they would be, with the gallery's first paragraph."""
    readme = root / "README.md"
    return {
        readme: with_table(readme.read_text(encoding="utf-8"), sets),
        root / "docs" / "results" / "README.md": gallery(sets, first),
    }
