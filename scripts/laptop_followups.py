"""Studies that follow from the searched ones in docs/results/laptop, without a search of their own.

    python scripts/laptop_followups.py grocery_store     # writes docs/results/laptop/grocery_store/*.yaml
    python scripts/laptop_followups.py --tuned           # writes the methods of configs/study/laptop/unsearched.yaml

Of each set: `defaults.yaml`, the methods as `configs/method` has them; `pca.yaml`, the chosen settings with embedders
that start at the PCA (both 5 runs, of the seeds of the searched study's first 5: 280 trainings), and `transfer.yaml`,
each method at the settings that all sets here chose and at its default, one run a fold. The commands that run them and
keep their results are printed. `--tuned` takes of each method the setting with the least mean regret over the sets
here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from laptop_sets import (
    DEFAULTS,
    OF,
    PCA,
    RESULTS,
    RESULTS_ONLY,
    ROOT,
    SETS,
    TRANSFER,
    LaptopSet,
    Settings,
    finished_sets,
)
from laptop_transfer import DEFAULT, choose, transfers

from levelfield.core.configuration import set_dotted
from levelfield.storage.atomic import write_atomically

UNSEARCHED = ROOT / "configs" / "study" / "laptop" / "unsearched.yaml"
NO_SEARCH: dict[str, Any] = {"search": {"trials": 0}, "second_searches": [], "references": []}
START = "levelfield.training.callbacks.ValidateFirst"
RUNS = 5  # what they are asked for is a difference of runs of the same seeds
DIGITS = 4
HEAD = "# Written by scripts/laptop_followups.py; not to be edited.\n"


def nested(settings: Settings) -> dict[str, Any]:
    """Dotted settings as a configuration."""
    config: dict[str, Any] = {}
    for key, value in settings.items():
        config = set_dotted(config, key, value)
    return config


def at(method: str, settings: Settings) -> list[Any]:
    """A method of a study file with other settings than its file's."""
    return [f"method/{method}.yaml", nested(settings)]


def definitions(each: LaptopSet, sets: Sequence[LaptopSet]) -> dict[str, dict[str, Any]]:
    """Kind to study file of a set's follow-up studies."""
    chosen = {method: at(method, each.chosen(method)) for method in each.methods}
    transfer: dict[str, Any] = dict.fromkeys(each.methods)
    for method in each.methods:
        transfer |= {f"{method}{OF}{other.name}": at(method, other.chosen(method)) for other in sets}
        transfer[f"{method}{OF}{DEFAULT}"] = f"method/{method}.yaml"
    start = {"model": {"embedder_init": "pca"}, "trainer": {"callbacks+": [{"class_path": START}]}}
    kinds: dict[str, dict[str, Any]] = {
        DEFAULTS: {"runs": RUNS},
        PCA: {"runs": RUNS, "overrides": start, "methods": chosen},
    }
    if len(sets) > 1:
        kinds[TRANSFER] = {"runs": 1, "methods": transfer}
    head = {"extends": f"laptop/{each.name}.yaml", **NO_SEARCH}
    return {kind: {"name": f"laptop_{each.name}_{kind}", **head, **own} for kind, own in kinds.items()}


def rounded(settings: Settings) -> Settings:
    """Settings to four digits, as one would write them."""
    return {key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in settings.items()}


def tuned(sets: Sequence[LaptopSet]) -> str:
    """The file of studies without a search, with the settings that do best over the sets."""
    scores, is_measured = transfers(sets)
    by_name = {each.name: each for each in sets}
    lines = []
    for method in sets[0].methods:
        found = choose(scores, method)
        if found.source == DEFAULT:
            continue
        plain = yaml.safe_dump(
            nested(rounded(by_name[found.source].chosen(method))), default_flow_style=True, width=1000
        )
        lines += [f"  {method}: # of {found.source}", f"    [../../method/{method}.yaml, {plain.strip()}]"]
    content = UNSEARCHED.read_text(encoding="utf-8").partition("\nmethods:")[0].rstrip("\n").split("\n")
    settings = content[next(i for i, line in enumerate(content) if not line.startswith("#")) :]
    how = "measured" if is_measured else "predicted from their trials"
    head = [
        "# The 14 methods without a search, 5 runs each: the quickstart, own_images_quick and own_texts_quick extend "
        "this.",
        "# Each method has the setting, of one laptop study or of its own file, that loses least on average over all",
        f"# of them (docs/results/laptop, {len(sets)} of {len(SETS)} sets, {how}; written by "
        "scripts/laptop_followups.py --tuned).",
    ]
    return "\n".join([*head, *settings, "methods:", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help="sets of docs/results/laptop; all by default")
    parser.add_argument("--tuned", action="store_true", help="write configs/study/laptop/unsearched.yaml instead")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder with a folder a set")
    arguments = parser.parse_args()
    sets = finished_sets(arguments.results)
    names = [each.name for each in sets if each.name not in RESULTS_ONLY]
    if missing := [name for name in arguments.sets if name not in names]:
        parser.error(
            f"{missing[0]} is not among the finished sets in {arguments.results} that can be run: "
            f"{', '.join(names) or 'none'}"
        )
    if arguments.tuned:
        if len(sets) < 2:
            parser.error(f"settings that do best over sets need 2 of them; {arguments.results} has {len(sets)}")
        write_atomically(UNSEARCHED, tuned(sets).encode())
        print(UNSEARCHED)
        return
    for each in sets:
        if each.name not in (arguments.sets or names):
            continue
        for kind, definition in definitions(each, sets).items():
            file = each.folder / f"{kind}.yaml"
            write_atomically(file, (HEAD + yaml.safe_dump(definition, sort_keys=False, width=120)).encode())
            output = f"outputs/laptop/{each.name}_{kind}"
            print(
                f"levelfield study run {os.path.relpath(file)} --data.root DIR --output {output} --executor.workers 2"
            )
            print(f"python scripts/laptop_results.py {output}")


if __name__ == "__main__":
    main()
