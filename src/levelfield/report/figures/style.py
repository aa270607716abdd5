"""Colours for colour-blind readers, small panels, and files with the same bytes for the same figure."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without black (the text) and yellow (unreadable on white).
BLUE, VERMILION, GREEN, SKY, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
INK, FAINT = "#333333", "#9A9A9A"

WIDTH = 8.4  # inches; about 800 px on the page

RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # the font itself, as publishers ask for
    "svg.hashsalt": "levelfield",  # otherwise ids in the file are random
}

WITHOUT_DATES: dict[str, Any] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style; the user's matplotlibrc has no effect."""
    import matplotlib  # half a second that `study status` does not need

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_figure(height: float, width: float = WIDTH) -> "Figure":
    """An empty figure of `width` x `height` inches, laid out when saved; no window or global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def rows_of_methods(axes: "Axes", names: Sequence[str]) -> None:
    """Name the rows of a panel, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def to_bytes(figure: "Figure", kind: str = "svg") -> bytes:
    """The figure as SVG or PDF, with its letters inside: the same bytes for the same content."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata=WITHOUT_DATES[kind])
    return content.getvalue()
