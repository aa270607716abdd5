"""What a user sees when a study goes wrong: one line that names the cause, and nothing that is finished is lost."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from study_engine import begun_jobs, results, run_file, small_study, study_process, tables, workers

from levelfield.errors import UserError
from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.run import run_study
from levelfield.study.workers import GivenUp, Here, Unit, do_all

OTHERS = ["jobs/contrastive/run0/fold0", "jobs/contrastive/run0/fold1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def trained(folder: Path) -> list[str]:
    return [str(path.parent.relative_to(folder)) for path in results(folder) if "pretrained" not in str(path)]


# The look before the first job calls a loss on noise, which no module has made.
IN_TRAINING = "if not embeddings.is_leaf:\n    "


@pytest.mark.parametrize(
    ("before", "key"),
    [
        ("raise KeyError('at once')", "mine, .*KeyError: 'at once'"),
        (IN_TRAINING + "raise KeyError('later')", "mine run 0 fold 0.*KeyError: 'later'"),
        (IN_TRAINING + "import sys; sys.exit(3)", "mine run 0 fold 0.*exit"),
    ],
)
def test_a_loss_that_raises_is_named_after_the_others_are_done(here: Path, before: str, key: str) -> None:
    with pytest.raises(UserError, match=key) as refused:
        run_file(small_study(here, before), here / "out")
    assert len(str(refused.value).splitlines()) == 1
    assert trained(here / "out") == OTHERS


def test_memory_that_fails_once_changes_no_number_and_twice_is_a_result(here: Path) -> None:
    file = small_study(here)
    whole = run_file(file, here / "whole")
    flag = here / "flag"
    marked = f"import os; marked = os.path.exists({str(flag)!r}); open({str(flag)!r}, 'w').close()"
    before = f"{IN_TRAINING}{marked}\n    if not marked: raise torch.OutOfMemoryError('out of memory')"
    again = run_file(small_study(here, before), here / "once")
    assert tables(again.folder) == tables(whole.folder)
    small_study(here, IN_TRAINING + "raise torch.OutOfMemoryError('CUDA out of memory')")
    with pytest.raises(UserError, match="mine run 0 fold 0"):
        run_file(file, here / "twice")
    failure = json.loads((here / "twice/jobs/mine/run0/fold0/result.json").read_text())
    assert "again" in failure["failure"]
    assert not (here / "twice/ledger.jsonl").exists()
    run_file(file, here / "twice", without_failed=True)
    assert b"mine" not in (here / "twice/summary.csv").read_bytes()


def test_one_process_that_cannot_use_its_gpu_any_more_ends_with_the_reason(here: Path) -> None:
    breaks = IN_TRAINING + "raise RuntimeError('CUDA error: device-side assert triggered')"
    file = small_study(here, breaks)
    with pytest.raises(UserError, match=r"mine run 0 fold 0: RuntimeError: CUDA error.*run the command again"):
        run_file(file, here / "out", Local(load_spec(file), workers=1))
    assert trained(here / "out") == OTHERS


@pytest.mark.processes
def test_a_process_that_cannot_use_its_gpu_any_more_is_replaced_and_no_other_row_is_blamed(here: Path) -> None:
    """The first training of `mine` breaks its process: from then on every loss there fails."""
    flag = here / "flag"
    breaks = IN_TRAINING + (
        f"import os; first = not os.path.exists({str(flag)!r}); open({str(flag)!r}, 'w').close()\n"
        "    def broken(*_, **__): raise RuntimeError('CUDA error: device-side assert triggered')\n"
        "    if first: ContrastiveLoss.forward = broken"
    )
    process = study_process(small_study(here, breaks), here / "out", "--executor.workers", "2")
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert "CUDA error: device-side assert triggered; will be tried again" in printed
    assert trained(here / "out") == sorted([*OTHERS, "jobs/mine/run0/fold0", "jobs/mine/run0/fold1"])


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_process_is_refused_and_the_first_goes_on(here: Path) -> None:
    file, folder = small_study(here, IN_TRAINING + "import time; time.sleep(4)"), here / "out"
    process = study_process(file, folder)
    process.wait_for(lambda: begun_jobs(folder, "mine"))
    study = StudyFolder(folder, load_spec(file))
    holder = study.holder()
    assert holder is not None
    assert holder["process"] == process.pid
    with pytest.raises(UserError) as refused:
        run_study(study)
    assert all(str(each) in str(refused.value) for each in (folder, process.pid, holder["host"], holder["since"]))
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert study.holder() is None


@pytest.mark.slow
@pytest.mark.processes
def test_a_worker_that_prints_or_dies_three_times_harms_no_other_job(here: Path) -> None:
    """With two workers: what is printed on descriptor 1 is no answer, and a death is not the other worker's."""
    die = "import os; os.system('echo x'); os.write(1, b'y\\n'); print('z'); os.kill(os.getpid(), 9)"
    file, folder = small_study(here, IN_TRAINING + die), here / "out"
    process = study_process(file, folder, "--executor.workers", "2", "--json")
    printed = process.wait().splitlines()
    assert process.exit_code == 2
    assert trained(folder) == OTHERS
    assert printed.count("x") == 6  # two folds, three times each
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert {(line["method"], line["fold"]) for line in lines if line["event"] == "job"} >= {("contrastive", 0)}
    notes = [line["note"] for line in lines if line["event"] == "note"]
    assert sum("mine run 0" in note and "tried again" in note for note in notes) == 4
    assert re.search(r"mine run 0 fold 0: .*\b3\b", printed[-1])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_a_study_and_its_workers(here: Path, number: signal.Signals, code: int) -> None:
    file, folder = small_study(here, IN_TRAINING + "import time; time.sleep(60)"), here / "out"
    process = study_process(file, folder, "--executor.workers", "2")
    process.wait_for(lambda: begun_jobs(folder, "mine"))
    started = workers(process)
    process.signal(number)
    printed = process.wait(60)
    assert process.exit_code == code, printed
    assert "levelfield study run" in printed
    assert len(started) == 2
    assert not any(map(is_alive, started))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_launcher_that_starts_several_processes_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE=2"):
        run_study(StudyFolder(here / "out", load_spec(small_study(here))))


class Listed:
    """Units of one function that are ready from the start."""

    def __init__(self, *arguments: str) -> None:
        self.units = {name: Unit(name, name, answer, (name,)) for name in arguments}
        self.done: list[str] = []

    def ready(self):
        return iter([unit for unit in self.units.values() if unit.name not in self.done])

    def add(self, unit: Unit, value: str) -> None:
        self.done.append(unit.name)

    def fail(self, unit: Unit, reasons: tuple[str, ...]) -> bool:
        return False


def answer(name: str, earlier: tuple[str, ...] = ()) -> str:
    if name == "mistaken":
        raise UserError("data.csv row 3: no label; add one")
    if name == "broken":
        raise ZeroDivisionError("division by zero")
    return name


def test_a_mistake_ends_at_once_and_an_error_after_the_others() -> None:
    lines: list[str] = []
    given_up, work = GivenUp(lines.append), Listed("broken", "first", "second")
    do_all(work, Here(), lines.append, given_up)
    assert work.done == ["first", "second"]
    assert given_up.reasons == {"broken": "ZeroDivisionError: division by zero"}
    assert len(lines) == 1
    work = Listed("mistaken", "first")
    with pytest.raises(UserError, match=r"data.csv row 3"):
        do_all(work, Here(), lines.append, given_up)
    assert work.done == []
