"""Whether the results in a folder belong to the study: settings, data, weights and source code of each row.

If one of these differs, the results of the row are stale. The study does not mix them: compute the row again,
or choose another folder. Different library versions and devices are allowed, and reports show them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from levelfield.core.configuration import Config, first_difference, set_dotted
from levelfield.core.errors import UserError
from levelfield.core.paths import find_own_modules
from levelfield.core.source_identity import sources
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec, named_rows

Sources = dict[str, dict[str, str]]  # row to file to digest


@dataclass(frozen=True)
class Seen:
    """The data and weights that the results will depend on.

    Attributes:
        data: Row to its training half, as in `MetricDataModule.identity()`.
        weights: Row to the origin of its trunk's weights.
        overview: Lines with the counts of the data set.
    """

    data: Mapping[str, dict[str, Any]]
    weights: Mapping[str, str | None]
    overview: list[str]


def with_rows_of(spec: StudySpec, begun: StudySpec, rows: Iterable[str]) -> StudySpec:
    """A study with more `rows` from its folder: an added method stays in the study once it has a result."""
    if (root := next(iter(spec.methods.values()))["data"].get("root")) is not None:
        begun = begun.with_configs(lambda config: set_dotted(config, "data.root", root))
    added = {row: begun.methods[row] for row in rows if row not in spec.methods}
    return replace(
        spec,
        methods={**spec.methods, **added},
        spaces=spec.spaces | {row: space for row, space in begun.spaces.items() if row in added},
        references=[*dict.fromkeys([*spec.references, *begun.references])],
        derived=spec.derived | {row: made for row, made in begun.derived.items() if row in added},
        modules=[*spec.modules, *(row for row in begun.modules if row in added)],
    )


def with_begun_rows(study: StudyFolder) -> StudyFolder:
    """A study with the rows that have results in its folder."""
    if not study.spec_file.is_file():
        return study
    begun = StudyFolder.begun(study.folder)
    rows = filter(begun.has_results, begun.spec.methods)
    return StudyFolder(study.folder, with_rows_of(study.spec, begun.spec, rows))


def row_sources(spec: StudySpec) -> Sources:
    """Row to the source digests of its classes, also of those in the working directory."""
    find_own_modules([*spec.methods.values()], spec.metrics)
    return {row: sources(spec.class_settings(row)) for row in spec.rows}


def check_archived(asked: StudySpec, archived: StudySpec) -> None:
    """Raise a UserError that names the difference if an archive is of another study."""
    shared = [row for row in archived.rows if row in asked.rows]
    there, here = ({**_of_all_rows(spec), **{row: spec.settings(row) for row in shared}} for spec in (archived, asked))
    found = first_difference(there, here) if shared else ("methods", list(archived.methods), list(asked.methods))
    if found is not None:
        key, before, now = found
        raise UserError(f"--from: {key} is {before!r} in the archive and {now!r} in the study; give another archive")


def check_same(
    study: StudyFolder, sources: Sources | None, recompute: Collection[str], seen: Seen | None = None
) -> list[str]:
    """Reject results of another state of the study, except those that `recompute` names, which are removed.

    Args:
        sources: The source code, which `row_sources` reads; None does not check it.
        recompute: Rows or methods; `all` for every row.
        seen: The data and the trunks' weights, which are known after the rows are built.

    Returns:
        One line per change.

    Raises:
        UserError: names every stale row, the reason, and what to do.
    """
    begun = StudySpec.read(study.spec_file) if study.spec_file.is_file() else study.spec
    found = first_difference(_of_all_rows(begun), _of_all_rows(study.spec))
    if study.stored and found is not None:
        key, before, now = found
        raise UserError(
            f"{study.spec_file}: {key} is {before!r} there and {now!r} now; choose another --output, or give the old "
            "value"
        )
    stale = {row: why for row in study.spec.rows if (why := _why_stale(study, begun, row, sources, seen))}
    removed = {*stale} if "all" in recompute else {*named_rows(study.spec, recompute)} & {*stale}
    if left := {row: why for row, why in stale.items() if row not in removed}:
        rows_of = {why: [row for row in left if left[row] == why] for why in left.values()}
        reasons = "; ".join(f"{', '.join(rows)}: {why}" for why, rows in rows_of.items())
        again = " ".join(f"--recompute {row}" for row in (["all"] if {*left} >= {*study.spec.methods} else left))
        raise UserError(
            f"{study.folder} has results of another state of the study: {reasons}. To compute them again: {again}; or "
            "restore the old state, or choose another --output"
        )
    for row in removed:
        study.remove_row(row)
    return [f"{row}: will be computed again: {why}" for row, why in stale.items()]


def _of_all_rows(spec: StudySpec) -> Config:
    """What the results of all rows depend on."""
    return {"runs": spec.runs, "metrics": spec.metrics}


def _why_stale(
    study: StudyFolder, begun: StudySpec, row: str, sources: Sources | None, seen: Seen | None
) -> str | None:
    """Why a row's results belong to another state; None if they do not, or without results."""
    results = [result for job, result in study.stored.items() if job.method == row]
    if any(result["configuration"] != study.spec.row_hashes[row] for result in results):
        found = first_difference(begun.settings(row), study.spec.settings(row)) if row in begun.rows else None
        key, before, now = found or ("its configuration", "another", "this")
        return f"{key} is {before!r} there and {now!r} here"
    if sources is not None and (files := _changed_files(study, row, sources[row])):
        return f"{', '.join(files)} has changed"
    if seen is None:
        return None
    for result in results:
        before, here = result.get("data"), seen.data[row]
        if before and before["fingerprint"] != here["fingerprint"]:
            old, now = ({*each["train_classes"], *each["val_classes"]} for each in (before, here))
            what = f"class {min(old ^ now)!r} is only in one training half" if old ^ now else "a sample or its class"
            return f"the data have changed on disk ({what})"
        known, now = result.get("provenance", {}).get("weights"), seen.weights.get(row)
        if None not in (known, now) and known != now:
            return f"weights {known} there, {now} here"
    return None


def _changed_files(study: StudyFolder, row: str, sources: Mapping[str, str]) -> list[str]:
    """Source files that have changed since a row's results; none for a row of an archive."""
    if row in study.archived:
        return []
    known = [result.get("sources", {}) for job, result in study.stored.items() if job.method == row]
    files = {file for before in known for file in {*before, *sources} if before.get(file) != sources.get(file)}
    return sorted(files)


# For reports.


def changed_sources(study: StudyFolder) -> list[tuple[str, list[str]]]:
    """Rows whose source code has changed since their results, with the files; not those of an archive."""
    now = {} if study.is_read_only else row_sources(study.spec)
    found = [(row, _changed_files(study, row, sources)) for row, sources in now.items()]
    return [(row, files) for row, files in found if files]


def differing_origins(study: StudyFolder) -> list[str]:
    """A sentence for each library version or device that differs between results."""
    found = []
    for result in (*study.stored.values(), *study.tests().values()):
        if origin := result.get("provenance"):  # a failed job has none
            version, device = origin["code"]["levelfield"], origin.get("gpu") or "cpu"
            found.append({"levelfield": version, "device": device, **origin["libraries"]})
    counts = {key: Counter(str(each[key]) for each in found if key in each) for key in sorted({*chain(*found)})}
    return [
        f"{key}: {', '.join(f'{value} in {n} results' for value, n in sorted(values.items()))}."
        for key, values in counts.items()
        if len(values) > 1
    ]
