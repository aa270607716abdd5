"""Whether the results in a folder belong to the study: settings, data, weights and source code of each row.

If one of these differs, the results of the row are stale. The study does not mix them: compute the row again,
or choose another folder. Different library versions and devices are allowed, and reports show them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from levelfield.core.configuration import first_difference, set_dotted
from levelfield.core.errors import UserError
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
    root = next(iter(spec.methods.values()))["data"].get("root")
    methods = {row: begun.methods[row] for row in rows if row not in spec.methods}
    if root is not None:
        methods = {row: set_dotted(config, "data.root", root) for row, config in methods.items()}
    derived = {row: made for row, made in begun.derived.items() if row in methods}
    references = [name for name in begun.references if name not in spec.references]
    spaces = {row: space for row, space in begun.spaces.items() if row in methods}
    return replace(
        spec,
        methods={**spec.methods, **methods},
        spaces={**spec.spaces, **spaces},
        references=[*spec.references, *references],
        derived={**spec.derived, **derived},
        modules=[*spec.modules, *(row for row in begun.modules if row in methods)],
    )


def with_begun_rows(study: StudyFolder) -> StudyFolder:
    """A study with the rows that have results in its folder."""
    if not study.spec_file.is_file():
        return study
    begun = StudyFolder.begun(study.folder)
    rows = filter(begun.has_results, begun.spec.methods)
    return StudyFolder(study.folder, with_rows_of(study.spec, begun.spec, rows))


def check_archived(asked: StudySpec, archived: StudySpec) -> None:
    """Reject an archive of another study.

    Raises:
        UserError: names the difference.
    """
    pairs = [(key, getattr(archived, key), getattr(asked, key)) for key in ("runs", "metrics")]
    for row in archived.rows:
        if row in asked.rows and archived.row_hashes[row] != asked.row_hashes[row]:
            pairs.append(first_difference(archived.settings(row), asked.settings(row)) or (row, "another", "this"))
    if not {*archived.rows} & {*asked.rows}:
        pairs.append(("methods", list(archived.methods), list(asked.methods)))
    for key, there, here in pairs:
        if there != here:
            raise UserError(
                f"--from: {key} is {there!r} in the archive and {here!r} in the study; give another archive"
            )


def row_sources(spec: StudySpec) -> Sources:
    """Row to the source digests of its classes."""
    return {row: sources(spec.class_settings(row)) for row in spec.rows}


def check_same(study: StudyFolder, sources: Sources, recompute: Collection[str]) -> list[str]:
    """Reject results of other settings or source code, except those that `recompute` names.

    Args:
        recompute: Rows or methods whose stale results are removed; `all` for every row.

    Returns:
        One line per change.

    Raises:
        UserError: names every stale row, the reason, and what to do.
    """
    begun = StudySpec.read(study.spec_file) if study.spec_file.is_file() else study.spec
    if study.stored:
        for key in ("runs", "metrics"):
            before, now = getattr(begun, key), getattr(study.spec, key)
            if before != now:
                raise UserError(
                    f"{study.spec_file}: {key} is {before!r} there and {now!r} now; choose another --output, or give "
                    "the old value"
                )
    stale = {row: found for row in study.spec.rows if (found := _stale(study, begun, row, sources[row])) is not None}
    return resolve_stale(study, stale, recompute)


def check_seen(study: StudyFolder, seen: Seen, recompute: Collection[str]) -> list[str]:
    """`check_same` for data and trunk weights, which are known after the rows are built."""
    stale: dict[str, str] = {}
    for job, result in study.state.results.items():
        before, half = result.get("data"), seen.data.get(job.method)
        if before and half and before["fingerprint"] != half["fingerprint"]:
            old, now = ({*each["train_classes"], *each["val_classes"]} for each in (before, half))
            what = f"class {min(old ^ now)!r} is only in one training half" if old ^ now else "a sample or its class"
            stale[job.method] = f"the data have changed on disk ({what})"
        known, here = result.get("provenance", {}).get("weights"), seen.weights.get(job.method)
        if None not in (known, here) and known != here:
            stale.setdefault(job.method, f"weights {known} there, {here} here")
    return resolve_stale(study, stale, recompute)


def resolve_stale(study: StudyFolder, stale: Mapping[str, str], recompute: Collection[str]) -> list[str]:
    """Remove the results of stale rows as requested, and raise an error for the others."""
    removed = {*stale} if "all" in recompute else {*named_rows(study.spec, recompute)} & {*stale}
    if left := {row: why for row, why in stale.items() if row not in removed}:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for row, why in left.items():
            by_reason[why].append(row)
        reasons = "; ".join(f"{', '.join(rows)}: {why}" for why, rows in by_reason.items())
        named = ["all"] if {*left} >= {*study.spec.methods} else left
        again = " ".join(f"--recompute {row}" for row in named)
        raise UserError(
            f"{study.folder} has results of another state of the study: {reasons}. To compute them again: "
            f"{again}; or restore the old state, or choose another --output"
        )
    for row in removed:
        study.remove_row(row)
    return [f"{row}: will be computed again: {why}" for row, why in stale.items()]


def _stale(study: StudyFolder, begun: StudySpec, row: str, sources: Mapping[str, str]) -> str | None:
    """Why a row's results belong to other settings or source code; None if they do not, or without results."""
    results = [result for job, result in study.stored.items() if job.method == row]
    if any(result["configuration"] != study.spec.row_hashes[row] for result in results):
        known = row in begun.rows
        difference = first_difference(begun.settings(row), study.spec.settings(row)) if known else None
        key, before, now = difference or ("its configuration", "another", "this")
        return f"{key} is {before!r} there and {now!r} here"
    changed = _changed_files(study, row, sources)
    return f"{', '.join(changed)} has changed" if changed else None


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
    found = [(row, _changed_files(study, row, sources)) for row, sources in row_sources(study.spec).items()]
    return [(row, files) for row, files in found if files]


def differing_origins(study: StudyFolder) -> list[str]:
    """A sentence for each library version or device that differs between results."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for result in (*study.stored.values(), *study.tests().values()):
        origin = result.get("provenance") or {}
        named = {"levelfield": origin.get("code", {}).get("levelfield"), **origin.get("libraries", {})}
        if "device" in origin:
            named["device"] = origin.get("gpu") or "cpu"
        for key, value in named.items():
            values[key][str(value)] += 1
    return [
        f"{key}: {', '.join(f'{value} in {n} results' for value, n in sorted(counts.items()))}."
        for key, counts in sorted(values.items())
        if len(counts) > 1
    ]
