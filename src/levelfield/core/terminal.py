"""What the commands say. Names of files, classes and studies in it can be a stranger's."""

import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Control characters except tab and newline, and those that turn the direction of writing.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""The text with control characters escaped: a terminal obeys them.

    Example:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(*lines: str, console: "Console | None" = None, file: TextIO | None = None) -> None:
    """Print lines; nothing without one."""
    text = printable("\n".join(lines))
    if lines and console is not None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    elif lines:
        print(text, file=file, flush=True)
