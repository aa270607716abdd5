"""One process of a job on several devices: `python -m levelfield.study.execution.group_process REQUEST`.

`group.train_in_group` starts the first, which by Lightning starts the others.
"""

import sys

from levelfield.runtime.own_modules import find_own_modules, working_directory_last

if __name__ == "__main__":
    working_directory_last()  # before a library is looked for

import json
import os
import traceback
from pathlib import Path
from typing import Any

from levelfield.errors import OutOfMemory, TrainingFailed, UserError, refused_file
from levelfield.runtime.freed_memory import keep_freed_memory
from levelfield.runtime.processes import end_with_parent
from levelfield.study.jobs.job import Job
from levelfield.study.record import StudyRecord
from levelfield.training.run_folder import is_first_process


def main(request: Path) -> int:
    """Do the training, and say on standard output, as a line of JSON, what came of it.

    Of a result the first process alone says it. A process that fails may be the only one that does: it says so itself,
    and by its exit code Lightning ends those that wait for it.
    """
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    words = json.loads(request.read_text())
    end_with_parent(words["parent"] if is_first_process() else os.getppid())
    keep_freed_memory()
    find_own_modules()
    said = _train(words)
    failed = said[0] != "result"
    if failed or is_first_process():
        print(json.dumps(said), file=answer, flush=True)
    return int(failed)


def _train(words: dict[str, Any]) -> tuple[str, Any]:
    from levelfield.study.execution.train import train
    from levelfield.study.execution.worker import fixed_threads

    try:
        record = StudyRecord.begun(Path(words["study_folder"]))
        job, seconds = Job(**words["job"]), words["checkpoint_seconds"]
        with fixed_threads(record.spec.threads):
            return "result", train(record, job, words["config"], checkpoint_seconds=seconds)
    except OutOfMemory as error:
        return "memory", str(error)
    except TrainingFailed as error:
        return "failure", str(error)
    except Exception as error:
        mistake = refused_file(error) if isinstance(error, OSError) else error
        if isinstance(mistake, UserError):
            return "mistake", str(mistake)
        traceback.print_exc()
        return "error", " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
