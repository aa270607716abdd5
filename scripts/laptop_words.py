"""How the laptop studies' page says its numbers: sections, tables, means with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from levelfield.analysis.agreement import Agreement
from levelfield.analysis.statistics import t_interval
from levelfield.analysis.verdicts import points


@dataclass(frozen=True)
class Section:
    """A question with its answer.

    Args:
        question: The heading.
        short: The answer in a sentence or two.
        lines: What it rests on.
    """

    question: str
    short: str
    lines: list[str]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def mean_with(values: Sequence[float], signed: bool = True) -> str:
    """`+0.4 ± 0.3`, points: a mean over sets with its 95% t-interval; without one for fewer than 3."""
    half = t_interval(list(values))
    mean = points(fmean(values)) if signed else f"{100 * fmean(values):.1f}"
    return mean if half is None else f"{mean} ± {100 * half:.1f}"


def between(low: float, high: float) -> str:
    return f"{points(low)} to {points(high)}"


def means(scores: dict[str, np.ndarray], methods: Sequence[str]) -> dict[str, float]:
    return {method: float(scores[method].mean()) for method in methods}


def said_mean(scores: np.ndarray) -> str:
    """`26.0 ± 0.2`: mean over runs with its interval, percent."""
    runs = scores.mean(axis=1).tolist()
    half = t_interval(runs)
    return f"{100 * fmean(runs):.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def said_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    by_set: dict[str, list[str]] = {}
    for name, method in pairs:
        by_set.setdefault(name, []).append(f"`{method}`")
    return "; ".join(f"{name}: {', '.join(methods)}" for name, methods in by_set.items())


def said_tau(found: Agreement) -> str:
    return f"{found.tau:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
