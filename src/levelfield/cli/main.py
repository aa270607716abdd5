"""The command line: fit; validate, test, predict; score, search, export; compare; study; data; init."""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from levelfield.cli.commands import EVALUATIONS
from levelfield.cli.options import read
from levelfield.core.errors import UserError, refused_file
from levelfield.core.paths import find_own_modules
from levelfield.core.processes import (
    FIRST,
    end_with_first,
    interrupt_at_signals,
    is_first_rank,
    keep_freed_memory,
    quick_imports,
    was_interrupted,
)
from levelfield.core.terminal import printable, say

LOADER_DIED = re.compile(r"DataLoader worker \(pid")


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 2 for a mistake in the input, 130 after Ctrl-C or a signal."""
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for what the terminal's encoding lacks
    interrupt_at_signals()
    try:
        return run(name, words)
    except KeyboardInterrupt as stop:
        return _stopped(str(stop))
    except BrokenPipeError:  # `levelfield ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if was_interrupted(error):  # another process has left the group before this one
            return _stopped("")
        line = _one_line(error)
        if line is None or "--debug" in words:
            print(printable(traceback.format_exc()), end="", file=sys.stderr)
        else:
            say(f"levelfield: {line}", file=sys.stderr)
        return 1 if line is None else 2


def run(name: str, words: Sequence[str]) -> int:
    """Runs a command; returns its exit code.

    Raises:
        UserError: a mistake in the input.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory has been removed: change to another one") from None
    try:
        given = read(name, words)  # without torch
    except SystemExit:  # the help is printed
        return 0
    find_own_modules((), getattr(given, "trust", ()))
    if name in ("fit", *EVALUATIONS):
        end_with_first()
    keep_freed_memory()
    if name not in ("study", "data", "init"):  # which import torch if they need it
        quick_imports()
    command = import_module(given.module)
    return int(command.main(given))


def _stopped(how_to_continue: str) -> int:
    if is_first_rank():
        print("\n" + "; ".join(["stopped", *filter(None, [how_to_continue])]), file=sys.stderr)
    # Lightning kills the fit if a process fails that it has started.
    return 0 if os.environ.get("LOCAL_RANK", "0") != "0" and FIRST in os.environ else 130


def _one_line(error: Exception) -> str | None:
    """The message of a mistake in the input, without that of a loader process around it; None for other errors."""
    if isinstance(error, OSError):
        refused = refused_file(error)
        return None if refused is None else str(refused)
    if LOADER_DIED.match(str(error)):
        return f"{error} Often memory is exhausted: give fewer loader processes, --data.num_workers 0"
    if not isinstance(error, UserError):
        from lightning.fabric.utilities.exceptions import MisconfigurationException  # takes seconds

        if not isinstance(error, MisconfigurationException):
            return None
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].partition(": ")[2] if "Original Traceback" in str(error) else " ".join(lines)
