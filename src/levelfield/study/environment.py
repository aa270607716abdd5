"""Whether all results of a study come from the same libraries, files of levelfield, kind of device and weights."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.storage.atomic import write_json
from levelfield.study.record import StudyRecord
from levelfield.study.tested import read_tests

# What a person has allowed to mix: key to values.
MIXED = "mixed_versions.json"
FILES = "levelfield's computing files"

# Key (a library, or what else makes numbers) to value to the number of results.
Values = Mapping[str, Mapping[str, int]]


def environment(method: str, provenance: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal in all results of a study."""
    found = {**provenance["libraries"], FILES: provenance["files"][:12]}
    if provenance.get("gpu") or provenance.get("device") == "cpu":
        found["device"] = provenance.get("gpu") or "cpu"
    if provenance.get("weights"):
        found[f"{method}'s trunk weights"] = provenance["weights"]
    return found


def values_of(environments: Iterable[Mapping[str, str]]) -> Values:
    """How many results have which value of each key."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for each in environments:
        for key, value in each.items():
            found[key][value] += 1
    return found


def seen(record: StudyRecord) -> Values:
    """The values of all results of a study, tests among them."""
    results = [*record.state.results.values(), *read_tests(record).values()]
    return values_of(environment(r["method"], r["provenance"]) for r in results if r.get("provenance"))


class SeenInJobs:
    """The values of the results of a study's jobs, each looked at once however often they are asked for."""

    def __init__(self, record: StudyRecord) -> None:
        self._results = record.state.results
        self._looked_at = 0
        self._found: dict[str, Counter[str]] = defaultdict(Counter)

    def values(self) -> Values:
        """The values of all results that are known by now."""
        for result in islice(self._results.values(), self._looked_at, None):
            if result.get("provenance"):
                for key, value in environment(result["method"], result["provenance"]).items():
                    self._found[key][value] += 1
        self._looked_at = len(self._results)
        return self._found


def _allowed(study_folder: Path) -> dict[str, list[str]]:
    """What `--mixed-versions` has allowed."""
    path = study_folder / MIXED
    if not path.exists():
        return {}
    try:
        return {key: list(values) for key, values in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{path} is damaged; delete it and start the command again with --mixed-versions") from None


def check_environment(
    record: StudyRecord,
    provenances: Iterable[tuple[str, Mapping[str, Any]]],
    allow: bool = False,
    there: Values | None = None,
) -> None:
    """Refuse to add results to those that other versions, or another kind of device, have computed.

    Args:
        provenances: Method and what its results will say of their origin, as computed here.
        allow: Whether to note that they may mix, instead.
        there: The values that they are compared with; by default those of all results.

    Raises:
        UserError: names what differs, both values and the remedies.
    """
    there = seen(record) if there is None else there
    here = values_of(environment(*each) for each in provenances)
    may = _allowed(record.folder)
    for key, counts in here.items():
        together = sorted({*counts, *there.get(key, {})})
        if not there.get(key) or len(together) == 1 or set(together) <= set(may.get(key, [])):
            continue
        if not allow:
            raise UserError(
                f"{record.folder}: {key}: {_counted(there[key])} there, {', '.join(counts)} here; go back to it, "
                "choose another --output, or mix them, which will stand beside the table: --mixed-versions"
            )
        may[key] = together
    if allow and may:
        write_json(record.folder / MIXED, may)


def mixed_lines(record: StudyRecord, allowed: bool | None = None) -> list[str]:
    """A sentence for each library, file, device or weights in which the results of a study differ.

    Args:
        allowed: Those alone that `--mixed-versions` has allowed, or has not; None for all.
    """
    may = _allowed(record.folder)
    different = {key: counts for key, counts in seen(record).items() if len(counts) > 1}
    return [
        f"MIXED VERSIONS: {key}: {_counted(counts)}."
        for key, counts in sorted(different.items())
        if allowed is None or allowed == (set(counts) <= set(may.get(key, [])))
    ]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value} in {n} result{'s' * (n != 1)}" for value, n in sorted(counts.items()))
