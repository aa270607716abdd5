"""What a process frees stays with it: the pages of the next step are not asked for again."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
from levelfield.runtime.freed_memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import numpy
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(14):
    if step == 4:
        before = pages()
    tensors = [numpy.full((12, 1 << 20), step, "float32") for _ in range(3)]  # 48 MB each
    del tensors
print(pages() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_later_steps_ask_the_system_for_no_pages() -> None:
    plain, kept = (
        int(subprocess.run([sys.executable, "-c", STEPS, how], check=True, capture_output=True, text=True).stdout)
        for how in ("plain", "kept")
    )
    blocks = 10 * 3 * 48 // 2
    assert plain > blocks / 2  # of 2 MB, the largest pages; else this machine's malloc keeps them anyway
    assert kept < plain / 5
