"""How much sooner two local workers finish a study than one, each with one thread.

python benchmarks/workers.py [STUDY]
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(study: str, workers: int, folder: Path) -> float:
    """Wall time of a study from its start to its tables."""
    command = [sys.executable, "-m", "levelfield", "study", "run", study, "--threads", "1", "--output", str(folder)]
    started = time.monotonic()
    subprocess.run(
        [*command, "--executor.workers", str(workers)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return time.monotonic() - started


def main() -> None:
    study = sys.argv[1] if len(sys.argv) > 1 else "quickstart.yaml"
    with tempfile.TemporaryDirectory() as folder:
        one, two = (seconds(study, workers, Path(folder, str(workers))) for workers in (1, 2))
        same = Path(folder, "1", "results.csv").read_bytes() == Path(folder, "2", "results.csv").read_bytes()
    found = "equal" if same else "DIFFERS"
    print(f"one worker {one:.0f} s, two workers {two:.0f} s: {two / one:.2f}; results.csv {found}")


if __name__ == "__main__":
    main()
