"""Clocks and tables of `gpu.py`."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Table:
    """A Markdown table in a file, complete after each row."""

    def __init__(self, file: Path, title: str, *columns: str) -> None:
        self.file, self.columns = file, columns
        self._write(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n")

    def row(self, *cells: Any) -> None:
        filled = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        self._write(f"| {' | '.join([*filled, *[''] * (len(self.columns) - len(cells))])} |\n")

    def _write(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)


class Part:
    """Where a part computes, and how long.

    Attributes:
        small: whether this is the miniature.
    """

    def __init__(self, device: str, seconds: float, file: Path, cores: int) -> None:
        self.device, self.file, self.cores = torch.device(device), file, cores
        self.small = device == "cpu"
        self.end = time.perf_counter() + seconds

    def has(self, seconds: float) -> bool:
        """Whether so much time is left; a miniature always has time."""
        return self.small or self.end - time.perf_counter() > seconds

    def wait(self) -> None:
        if not self.small:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any]) -> float:
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - begin

    def free(self) -> None:
        gc.collect()
        if not self.small:
            torch.cuda.empty_cache()

    @contextmanager
    def peak(self, found: dict[str, str], key: str) -> Iterator[None]:
        """Store the most memory that tensors took in addition to what they had before, in MiB, as `found[key]`."""
        before = 0 if self.small else torch.cuda.memory_allocated()
        if not self.small:
            torch.cuda.reset_peak_memory_stats()
        yield
        found[key] = "-" if self.small else f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}"


class Clock:
    """Times steps: call `tick` after each one, until it returns true.

    Args:
        every: the number of timed steps is a multiple of this, for steps that arrive in bursts.
    """

    def __init__(self, part: Part, seconds: float, warm_up: int = 5, every: int = 1) -> None:
        self.part, self.seconds = part, 0.05 if part.small else seconds
        self.warm_up, self.every = (2, 1) if part.small else (warm_up, every)
        self.ticks, self.begin, self.step_milliseconds = 0, 0.0, float("nan")

    def tick(self) -> bool:
        self.ticks += 1
        steps = self.ticks - self.warm_up
        if steps == 0:
            self.part.wait()
            self.begin = time.perf_counter()
        done = steps > 0 and steps % self.every == 0 and time.perf_counter() - self.begin > self.seconds
        if done:
            self.part.wait()
            self.step_milliseconds = (time.perf_counter() - self.begin) / steps * 1e3
        return done


def milliseconds(part: Part, step: Callable[[], Any], seconds: float = 0.06) -> float:
    """Mean milliseconds of a step, after some that warm up."""
    clock = Clock(part, seconds, warm_up=3)
    while not clock.tick():
        step()
    return clock.step_milliseconds


def by_turns(part: Part, runs: Mapping[str, Callable[[], float]], rounds: int = 2) -> dict[str, Any]:
    """The least result of each run, or how it failed."""
    found: dict[str, Any] = {}
    for _ in range(1 if part.small else rounds):
        for name, run in runs.items():
            if not isinstance(found.get(name), str):
                try:
                    found[name] = min(run(), found.get(name, float("inf")))
                except Exception as error:
                    found[name] = failure(error)
                    part.free()
    return found


def failure(error: BaseException) -> str:
    """An error in a cell of a table."""
    first = (str(error).strip().splitlines() or [""])[0].replace("|", "/")
    return f"failed: {type(error).__name__} {first[:120]}"


def per_second(count: int, milliseconds: Any) -> str:
    """Samples a second; an error instead of a time stays."""
    return f"{count / milliseconds * 1e3:,.0f}" if isinstance(milliseconds, float) else str(milliseconds)
