"""The papers' figures that need no training: computed, drawn, and set beside the published values.

python scripts/paper_figures.py                                  writes them all under docs/papers
python scripts/paper_figures.py reality_check/figure3            one of them
python scripts/paper_figures.py --study outputs/DIR --output DIR with the test scores of your own studies
"""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.report.paper_figures import paper_figures, write_paper_figure
from levelfield.study.record import StudyRecord

DOCS = Path(__file__).resolve().parents[1] / "docs" / "papers"


def main() -> None:
    known = paper_figures()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*known, []], default=[], metavar="PAPER/FIGURE")
    parser.add_argument(
        "--study", type=Path, action="append", default=[], help="folder of a finished study; repeatable"
    )
    parser.add_argument("--output", type=Path, default=DOCS)
    arguments = parser.parse_args()
    records = [StudyRecord.begun(folder) for folder in arguments.study]
    for name in arguments.names or known:
        for path in write_paper_figure(known[name], arguments.output, records):
            print(path)


if __name__ == "__main__":
    main()
