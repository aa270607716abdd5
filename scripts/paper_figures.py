"""The papers' figures that need no training, as docs/papers has them: computed, drawn, beside the published values.

python scripts/paper_figures.py                           writes them all
python scripts/paper_figures.py reality_check/figure3     one of them
"""

from __future__ import annotations

import sys
from pathlib import Path

from levelfield.report.paper_figures import paper_figures, write_paper_figure

DOCS = Path(__file__).resolve().parents[1] / "docs" / "papers"


def main() -> None:
    known = paper_figures()
    for name in sys.argv[1:] or known:
        for path in write_paper_figure(known[name], DOCS):
            print(path)


if __name__ == "__main__":
    main()
