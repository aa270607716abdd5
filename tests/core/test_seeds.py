"""Every draw starts from the SHA-256 of its own text."""

import re
import subprocess

from tiny_fit import REPOSITORY

from levelfield.core.seeds import seed_of
from levelfield.study.jobs import Job, job_seed
from levelfield.study.spec import StudySpec

SOURCES = [path for path in (REPOSITORY / "src" / "levelfield").rglob("*.py") if path.name != "seeds.py"]


def test_a_seed_is_what_sha256sum_says_of_its_text():
    key = ("step", 2**32 - 1, 7, 0, "trunk", 3)
    said = subprocess.run(["sha256sum"], input=b"step/4294967295/7/0/trunk/3", capture_output=True, check=True).stdout
    assert f"{seed_of(*key, bits=32):08x}" == said[:8].decode()
    assert seed_of(*key) == int(said[:16], 16) // 2
    # printf 5/trial/3/2 | sha256sum: seeds of jobs are what they were in every version
    spec = StudySpec(name="toy", folds=4, runs=2, seed=5, threads=1, methods={})
    assert job_seed(spec, Job("arcface@2", "trial", 3, 1)) == 0xC675EB77


def test_no_generator_is_seeded_otherwise():
    """But for k-means and Optuna's samplers, which take a seed themselves, fixed splits, and a fit's own seed."""
    seeded = r"(manual_seed|default_rng|SeedSequence|RandomState|seed_everything|random\.seed)\((?!seed_of\(|\))"
    found = [(path.name, match[0]) for path in SOURCES for match in re.finditer(seeded, path.read_text())]
    assert sorted(found) == [("build.py", "seed_everything("), ("evaluate.py", "seed_everything(")]
