"""A study that was begun: its folder knows its settings, so that nobody has to give them again."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.study.definition.configuration import first_difference, set_dotted, whole_number
from levelfield.study.definition.search_settings import search_settings
from levelfield.study.definition.spec import COUNTS, SMALLEST, StudySpec
from levelfield.study.definition.study_file import check_override, further_metrics
from levelfield.study.record import StudyRecord


def with_options(spec: StudySpec, options: Mapping[str, Any]) -> StudySpec:
    """A study with dotted options laid over it; only those that change no number may go on in its folder.

    Raises:
        UserError: an unknown key or a value that is not accepted.
    """
    counts: dict[str, Any] = {}
    metrics = spec.metrics
    methods = dict(spec.methods)
    search = {key.removeprefix("search."): value for key, value in options.items() if key.startswith("search.")}
    for key, value in options.items():
        check_override(key)
        if key in COUNTS:
            counts[key] = whole_number(Path("options"), key, value, SMALLEST.get(key, 1))
        elif key == "metrics":
            metrics = further_metrics(Path("options"), value)
        elif key.startswith("second_searches."):
            raise UserError(f"--{key}: a study that was begun keeps its searches; choose another --output")
        elif not key.startswith("search."):
            methods = {name: set_dotted(config, key, value) for name, config in methods.items()}
    settings = search_settings(Path("options"), {**asdict(spec.search), **search}, search)
    return replace(spec, **counts, metrics=metrics, search=settings, methods=methods)


def said_difference(asked: StudyRecord, file: Path) -> list[str]:
    """In what a study file, with the options given, is not what its folder goes on with."""
    difference = first_difference(StudyRecord.begun(asked.folder).spec.identity(), asked.spec.identity())
    if difference is None:
        return []
    key, there, here = difference
    said = f"{key} is {there!r} there, {here!r} in {file} with the options given"
    return [f"goes on as {asked.definition_file} says: {said}"]
