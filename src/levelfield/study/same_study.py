"""Whether a study that is asked for is the one that a folder holds: its settings, its methods, one's own code."""

from dataclasses import dataclass

from levelfield.errors import UserError
from levelfield.study.definition.configuration import first_difference
from levelfield.study.definition.spec import BASELINE, StudySpec
from levelfield.study.jobs.job import RESULT, Job
from levelfield.study.record import StudyRecord


class MethodsAdded(Exception):  # noqa: N818  # it says what happened to a study
    """Another process has added methods to a study while this one worked on it."""


def check_same_study(asked: StudyRecord) -> None:
    """Refuse to mix two studies in one folder; methods may be added to those that it was begun with.

    Raises:
        UserError: names the first key, or file of one's own, that differs, and the remedy.
    """
    begun = StudyRecord.begun(asked.folder)
    old, new = begun.spec.identity(), asked.spec.identity()
    for identity in (old, new):
        identity.pop("own_code", None)
    if set(old["methods"]) <= set(new["methods"]):
        for part in ("methods", "spaces", "trained_as"):
            if part in new:
                new[part] = {name: config for name, config in new[part].items() if name in old["methods"]}
        if not new.get("trained_as"):
            new.pop("trained_as", None)
    elif missing := [name for name in old["methods"] if name not in new["methods"]]:
        raise UserError(
            f"{asked.definition_file} has the method {missing[0]!r}, and the study asked for has not: ask for it too "
            "(--add-method), choose another --output, or take it out of that file if it has no results"
        )
    difference = first_difference(old, new)
    if difference is not None:
        key, before, now = difference
        raise UserError(
            f"{asked.definition_file}: {key} is {before!r} there and {now!r} in the study asked for; "
            "choose another --output, or ask for the old value again"
        )
    for change in changed_code(begun.spec, asked.spec):
        jobs = asked.folder / Job(change.method, "run", 0, 0).path.parents[1]
        if any(jobs.glob(f"*/*/{RESULT}")):
            raise UserError(
                f"{jobs} was computed with another {change.file} ({change}); restore it, choose another --output, or "
                "delete that folder to compute it again"
            )


@dataclass(frozen=True)
class CodeChange:
    """A file of one's own that is not what a study was begun with.

    Args:
        method: Which uses it.
        file: Its name, as a module's.
        before: SHA-256 when the study was begun; None where that is not recorded.
        now: SHA-256 here; None where the file is not here, or not used.
    """

    method: str
    file: str
    before: str | None
    now: str | None

    def __str__(self) -> str:
        if self.now is None:
            return "not found here"
        return "not recorded then" if self.before is None else f"SHA-256 {self.before[:12]} then, {self.now[:12]} now"


def changed_code(begun: StudySpec, now: StudySpec) -> list[CodeChange]:
    """All code of one's own that the methods of `begun` use and that `now` has otherwise."""
    changes = []
    for method in (BASELINE, *begun.methods):
        before, after = begun.own_code.get(method, {}), now.own_code.get(method, {})
        both = (CodeChange(method, file, before.get(file), after.get(file)) for file in sorted({*before, *after}))
        changes += [change for change in both if change.before != change.now]
    return changes


def check_whole_study(record: StudyRecord) -> None:
    """Refuse to open the test classes for fewer methods than the folder's `study.yaml` has by now.

    Raises:
        MethodsAdded: there are more.
    """
    if added := [name for name in StudyRecord.begun(record.folder).spec.methods if name not in record.spec.methods]:
        raise MethodsAdded(", ".join(added))


def check_code_here(spec: StudySpec) -> None:
    """Refuse to work on a study with other code of one's own than its `study.yaml` records.

    Raises:
        UserError: names the file and the remedy.
    """
    for change in changed_code(spec, spec.with_own_code()):
        raise UserError(
            f"{change.file}, which {change.method} uses, has changed since the study was started ({change}); restore it"
        )
