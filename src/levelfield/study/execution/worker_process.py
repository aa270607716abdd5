"""One worker of a pool, started by the study's process.

`python -m levelfield.study.execution.worker_process PARENT STUDY FOLDER SECONDS` does jobs;
`... FOLDER test OPENING` scores runs. PARENT started it, on its host; STUDY is the study's process, on whatever host.
"""

import sys

from levelfield.runtime.own_modules import find_own_modules, working_directory_last

if __name__ == "__main__":
    working_directory_last()  # before a library is looked for

import json
import os
import signal
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.console import Console

from levelfield.errors import UserError, refused_file
from levelfield.runtime.freed_memory import keep_freed_memory
from levelfield.runtime.imports import quick_imports
from levelfield.runtime.processes import end_with_parent
from levelfield.runtime.signals import Stopped, handling, stop_at_once
from levelfield.storage.provenance import computing_files
from levelfield.study.jobs.job import Job
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.study.same_study import check_code_here


def main(parent: int, study: int, study_folder: Path, *what: str) -> int:
    """Do jobs, or score runs, until none is left.

    To standard output goes a line of JSON for each job that is done, here or by another process, and for a mistake.
    """
    end_with_parent(parent)
    keep_freed_memory()
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    find_own_modules()
    with quick_imports():
        from levelfield.study.execution.pool import JOB_FAILED
        from levelfield.study.execution.worker import JobError, fixed_threads, work
        from levelfield.study.sealed_test.opening import take_part

    if not sys.stdin.readline():  # what there was to import is imported: now the study's process says when to begin
        return 1
    try:
        record = StudyRecord.begun(study_folder)
        check_code_here(record.spec)
        computing_files()  # as they are now, when they are imported
        with handling(stop_at_once), open(os.devnull, "w") as nowhere, fixed_threads(record.spec.threads):
            progress = _Told(Console(file=nowhere), record, answer)
            if what[0] == "test":
                take_part(record, int(what[1]), progress)
            else:
                work(record, progress, float(what[0]), keeper=parent, study=study)
    except (UserError, OSError) as error:
        mistake = refused_file(error) if isinstance(error, OSError) else error
        if mistake is None:
            raise
        print(json.dumps({"error": str(mistake)}), file=answer, flush=True)
        return 2
    except JobError:
        traceback.print_exc()
        return JOB_FAILED
    except Stopped as stop:  # by the study, which ends its workers, or by the cluster
        signal.signal(stop.number, signal.SIG_DFL)
        signal.raise_signal(stop.number)
    except KeyboardInterrupt:  # a lock that another process has taken over
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    return 0


class _Told(StudyProgress):
    """Tells the study's process which jobs are done; it shows them."""

    def __init__(self, console: Console, record: StudyRecord, answer: TextIO) -> None:
        super().__init__(console, record.spec.name, record.state, {})
        self._answer = answer

    def note_finished(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            print(json.dumps({"done": asdict(job)}), file=self._answer, flush=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]))
