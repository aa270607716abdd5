"""A study repeated over other halves of the classes, folds, searches and seeds: `replicates: 10` in its file."""

from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from levelfield.core.configuration import merge
from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.core.terminal import say
from levelfield.study.folder import StudyFolder
from levelfield.study.lock import only_one
from levelfield.study.same_study import with_begun_rows
from levelfield.study.spec import STUDY, StudySpec

FOLDER = "replicates"
# Replicates 2 c and 2 c + 1 are the cut of seed c and its exchanged halves, so that each half is tested once.
SPLITS = ("random", "random-swapped")


def replicate(spec: StudySpec, number: int) -> StudySpec:
    """A replicate, an ordinary study in its own folder, `replicates/<number>`; a row's own split is a UserError."""
    data = {"data": {"split": SPLITS[number % 2], "split_seed": number // 2}}
    for row, config in spec.methods.items():
        if config["data"].get("split", "half") not in ("half", SPLITS[0]) or "data.split_seed" in spec.sweep:
            raise UserError(
                f"{spec.name}: replicates draw their halves at random: leave replicates out, or data.split (and "
                f"data.split_seed in a sweep) of {row}"
            )
    return replace(
        spec.with_configs(lambda config: merge(config, data)),
        name=f"{spec.name} {number}",
        replicates=1,
        seed=seed_of(spec.seed, FOLDER, number, bits=31),
    )


def replicates_of(study: StudyFolder, *, begun: bool = True) -> list[StudyFolder]:
    """The replicates of a study; the study itself if it has none.

    Args:
        begun: Only those that have begun, with the rows in their folders.
    """
    if study.spec.replicates == 1:
        return [study]
    folders = [study.folder / FOLDER / str(number) for number in range(study.spec.replicates)]
    if begun:
        return [StudyFolder.begun(folder) for folder in folders if (folder / STUDY).is_file()]
    return [StudyFolder(folder, replicate(study.spec, number)) for number, folder in enumerate(folders)]


def run_replicates(
    study: StudyFolder, run: Callable[[StudyFolder], StudyFolder], console: Console | None = None
) -> StudyFolder:
    """Run the replicates of a study one after the other, or the study itself if it has none.

    A replicate is a study, so a stopped one goes on where it stopped. More of them may be added later.

    Returns:
        The study with all rows of its folder.
    """
    if study.spec.replicates == 1:
        return run(study)
    parts = replicates_of(study, begun=False)  # refuses what cannot be repeated
    study.refuse_foreign()
    with only_one(study.folder):
        study = with_begun_rows(study)
        parts = replicates_of(study, begun=False)
        study.write_spec()
        for number, part in enumerate(parts, 1):
            say(f"replicate {number} of {len(parts)}", console=console)
            study.had_work |= run(part).had_work
    return study
