"""Writes docs/results/laptop/README.md: what the laptop studies say, every number from the CSV files beside it.

    python scripts/laptop_answer.py

It renews what else follows from them: the table in README.md, docs/results/README.md and docs/which_loss.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from laptop_choice import choice_page
from laptop_gallery import gallery_pages
from laptop_later import later_section
from laptop_limits import limits
from laptop_noise import components_section, noise_section, search_section
from laptop_order import better_section, foretell_section, order_section, rank_section, score_section
from laptop_sets import RESULTS, ROOT, SETS, LaptopSet, finished_sets
from laptop_transfer import transfer_section
from laptop_variants import finetuned_section, follow_up_sections

from levelfield.storage.atomic import write_atomically

SIMULATED = 4000  # searches of each kind


def page(sets: Sequence[LaptopSet], folder: Path, simulated: int = SIMULATED) -> str:
    """The page; its figure is written into `folder`."""
    sections = [
        score_section(sets),
        better_section(sets),
        rank_section(sets, folder),
        order_section(sets),
        noise_section(sets),
        components_section(sets),
        foretell_section(sets),
        search_section(sets, simulated),
        transfer_section(sets),
        *follow_up_sections(sets),
        finetuned_section(folder),
        *later_section(sets),
    ]
    names = ", ".join(f"[{each.name}]({each.name}/index.html)" for each in sets)
    lines = [
        "# The Reality Check on a laptop",
        "",
        limits(sets, "../"),
        "",
        f"14 losses, each searched with 50 trials and run ten times on four folds, on a frozen pretrained trunk, on "
        f"**{len(sets)} set{'s' * (len(sets) > 1)}** ({names}).",
        "",
        "Written by `python scripts/laptop_answer.py` from the CSV files of the folders beside this page; whoever "
        "adds a set "
        "runs it again. An interval over runs says what other seeds would give; one over sets, what other sets might.",
        "",
        "## In short",
        "",
        *(f"- **{section.question}** {section.short}" for section in sections),
    ]
    for section in sections:
        if section.lines:
            lines += ["", f"## {section.question}", "", section.short, "", *section.lines]
    return "\n".join([*lines, "", *ORIGIN, ""])


ORIGIN = [
    "## What lies here",
    "",
    "A folder a set: `results.csv` (every score), `summary.csv`, `trials.csv` (what each trial tried), "
    "`ledger.jsonl` (the "
    "openings of the test classes), the study's page with its figures, and `study.tar.xz`, its definition and all "
    "results: "
    "`levelfield study verify docs/results/laptop/SET/study.tar.xz` computes the tables again, and",
    "",
    "    levelfield study run laptop/SET --data.root DIR --from docs/results/laptop/SET/study.tar.xz \\",
    '      --add-method my_loss.MyLoss --reopen-test "my loss" --mixed-versions',
    "",
    "puts another loss beside them. Typefaces is no longer a data set here: its results are kept, and no study of it "
    "can be run.",
]


def other_pages(sets: Sequence[LaptopSet], root: Path = ROOT) -> dict[Path, str]:
    """The other pages that follow from the sets, as they would be."""
    return {**gallery_pages(sets, limits(sets, ""), root), root / "docs" / "which_loss.md": choice_page(sets)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder with a folder a set")
    folder = parser.parse_args().results
    sets = finished_sets(folder)
    if not sets:
        raise SystemExit(
            f"{folder} holds no finished set; collect one: python scripts/laptop_results.py outputs/laptop/NAME"
        )
    write_atomically(folder / "README.md", page(sets, folder).encode())
    if folder == RESULTS:
        for path, text in other_pages(sets).items():
            write_atomically(path, text.encode())
    print(f"{folder / 'README.md'}: {len(sets)} of {len(SETS)} sets")


if __name__ == "__main__":
    main()
