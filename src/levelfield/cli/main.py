"""The command line: fit; validate, test, predict; score, search, export; compare; study; data; init."""

import os
import re
import sys
import traceback
from importlib import import_module
from itertools import pairwise

from levelfield import __version__
from levelfield.cli.commands import COMMANDS, EVALUATIONS, HELP, read
from levelfield.core.errors import UserError, nearest, refused_file
from levelfield.core.option_hints import COMMANDS as OTHER_NAMES
from levelfield.core.paths import find_own_modules
from levelfield.core.processes import FIRST, end_with_first, keep_freed_memory, quick_imports
from levelfield.core.signals import EXIT_CODE, Stopped, is_first_rank, stopping
from levelfield.core.terminal import printable, say

LOADER_DIED = re.compile(r"DataLoader worker \(pid")


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 2 for a mistake in the input, 130 after Ctrl-C, 75 after a signal."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    if args[:1] not in (["study"], ["compare"]):  # these show the traceback of your own loss and continue
        args = [word for word in args if word != "--debug"]
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for what the terminal's encoding lacks
    received: list[int] = []
    try:
        with stopping() as received:
            return _run(args[0], args[1:])
    except Stopped as stop:
        return _stopped(stop)
    except KeyboardInterrupt as stop:
        print(f"\nstopped{f'; {stop}' if str(stop) else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `levelfield ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if received:  # another process has left the group before this one
            return _stopped(Stopped(received[0]))
        if debug or not _is_users(error):
            print(printable(traceback.format_exc()), end="", file=sys.stderr)
            return 2 if _is_users(error) else 1
        say(f"levelfield: {_one_line(error)}", file=sys.stderr)
        return 2


def _run(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        meant = f"; {OTHER_NAMES[name]}" if name in OTHER_NAMES else nearest(name, COMMANDS, "", cutoff=0.6)
        raise UserError(f"no such command '{name}'{meant} (levelfield --help lists all)")
    trusted = [
        word.removeprefix("--trust=") for before, word in pairwise(["", *words]) if "--trust" in (before, word[:7])
    ]
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory has been removed: change to another one") from None
    find_own_modules((), trusted)
    try:
        given = read(name, words)  # without torch
    except SystemExit:  # the help is printed
        return 0
    if name in ("fit", *EVALUATIONS):
        end_with_first()
    keep_freed_memory()
    with quick_imports():
        command = import_module(given.module)
    return int(command.main(given))


def _stopped(stop: Stopped) -> int:
    """Print how to continue."""
    if os.environ.get("LOCAL_RANK", "0") != "0" and FIRST in os.environ:
        return 0  # a process that the fit started itself: Lightning kills the fit if one fails
    if is_first_rank():
        print("; ".join([f"levelfield: {stop}", *filter(None, [stop.remedy])]), file=sys.stderr)
    return EXIT_CODE


def _is_users(error: Exception) -> bool:
    if isinstance(error, OSError):
        return refused_file(error) is not None
    if isinstance(error, UserError) or LOADER_DIED.match(str(error)):
        return True
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # takes seconds

    return isinstance(error, MisconfigurationException)


def _one_line(error: Exception) -> str:
    """The message; of an error in a loader process, only its original message."""
    if isinstance(error, OSError):
        error = refused_file(error) or error
    if LOADER_DIED.match(str(error)):
        return f"{error} Often memory is exhausted: give fewer loader processes, --data.num_workers 0"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if "Original Traceback" in str(error):
        return lines[-1].partition(": ")[2]
    return " ".join(lines)
