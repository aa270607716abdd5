"""The shipped study files give the rows, jobs, seeds, configurations and search spaces that they gave before."""

from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

from levelfield.errors import UserError
from levelfield.study.definition import study_file as old_files
from levelfield.study.jobs import job as old_jobs
from levelfield.study.jobs import job_config, job_seed, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline

# Parts of studies, no studies.
PARTS = {REPOSITORY / "papers" / file for file in ("zhai_wu/counts.yaml", "fehervari/dreml.yaml")}
# `figure1` names a method of the file that it extends again: its settings are laid over that method's now.
LAID_OVER = {REPOSITORY / "papers/fehervari/figure1.yaml"}
FOUND = {*REPOSITORY.glob("configs/study/**/*.yaml"), *REPOSITORY.glob("papers/*/*.yaml")}
FILES = sorted(FOUND - PARTS - LAID_OVER)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(REPOSITORY).as_posix())
def test_a_shipped_file_gives_the_same_jobs(file: Path) -> None:
    old = old_files.load_spec(file)
    if old.trained_as:
        with pytest.raises(UserError, match="trained_as"):
            load_spec(file)
        return
    spec = load_spec(file)
    assert list(spec.methods) == list(old.methods)
    jobs = [job for job in study_jobs(spec) if not is_baseline(job.method)]
    before = [job for job in old_jobs.study_jobs(old) if not is_baseline(job.method)]
    assert [str(job) for job in jobs] == [str(job) for job in before]
    compared: set[tuple[str, str]] = set()
    for job, other in zip(jobs, before, strict=True):
        assert job_seed(spec, job) == old_jobs.job_seed(old.seed, other)
        if (job.method, job.stage) not in compared:
            compared.add((job.method, job.stage))
            assert job_config(spec, job, {}) == old_jobs.job_config(old, other, {})
    assert {row: spec.space(row) for row in spec.spaces} == {row: old.space(row) for row in old.spaces}
