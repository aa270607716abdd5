"""The last stage of a study: score its runs on the test classes in one evaluation.

`evaluate` writes and fsyncs the line of the ledger before any unit of work reads a test label.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from levelfield.core.configuration import Config
from levelfield.core.errors import UserError
from levelfield.core.files import file_hash, write_json
from levelfield.core.ledger import Evaluation, begin, finish, has_line
from levelfield.data.datamodule import MetricDataModule
from levelfield.study.folder import StudyFolder, scores_hash
from levelfield.study.jobs import EMBEDDINGS_FILE, RESULT, folds_of
from levelfield.study.same_study import Seen, check_same
from levelfield.study.test_scores import EmbeddedTest, score_folds
from levelfield.study.training_job import fixed_threads, memory_errors
from levelfield.study.workers import Line, Scheduler, Slots, Unit
from levelfield.training.build import Training
from levelfield.training.checkpoint import has_frozen_trunk_of, load_learner
from levelfield.training.embed import EmbeddedSet, TrunkExtractor, embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import embed_by_steps
from levelfield.training.trust import user_packages

REASONS = ("first evaluation of this study", "rows or results have changed since the last one")


def evaluate(study: StudyFolder, slots: Slots, line: Line, retest: str | None, without_failed: bool) -> None:
    """Score every run of a study whose jobs are finished; an interrupted evaluation continues with its scores.

    Args:
        line: Prints a message.
        retest: The reason for scoring all runs again.

    Raises:
        UserError: a checkpoint or the data have changed, or runs failed.
    """
    last = study.last_evaluation()
    if last is not None and retest in (None, last["reason"]):
        return
    if not without_failed and (missing := next(_missing(study), None)):
        raise UserError(f"{missing}, or score the others with --stop-here: the test classes are scored only once")
    stored, runs = study.stored_tests(), study.state.tested_runs()  # an error if the ledger has lost an evaluation
    halves = _halves(study)
    samples = {half: data.dataset.fingerprint(data.half("test")) for half, data in halves.items()}
    archived = {each: stored.get(each) for each in runs if each[0] in study.archived}
    _refuse_other_samples(study, archived, samples)
    what = Evaluation(
        data=next(iter(halves.values())).dataset.name,
        samples=_contents(halves.values()),
        by=f"study {study.spec.name}",
        checkpoints=study.checkpoint_hashes(),
        configuration=study.spec.configuration_hash(),
        reason=retest or "",
        results=study.result_hashes(),
    )
    identity = begin(what, study.folder, usual_reasons=REASONS)
    for each in archived:  # its scores stay, which are of the same samples
        write_json(study.test_file(*each), {**stored[each], "evaluation": identity})
    scored = study.tests(identity)
    _refuse_other_samples(study, scored, samples)
    units = [_unit(study, *each, samples, identity) for each in runs if each not in scored]
    left = {unit.name: unit for unit in units}
    Scheduler(left.values, lambda unit, _: left.pop(unit.name), slots, line).run()
    scores = {study.test_file(*each): scores_hash(test) for each, test in study.tests(identity).items()}
    finish(identity, {str(path.relative_to(study.folder)): each for path, each in scores.items()}, study.folder)


def _missing(study: StudyFolder) -> Iterator[str]:
    """Runs that cannot be scored, and what to do."""
    for job, why in study.state.failures("run").items():
        yield f"{job} failed ({why}); delete {study.folder / job.path / RESULT} and resume to try it again"
    for row in study.state.without_setting():
        yield f"{row}: no trial had a score, so it has no runs; correct the method"


def _halves(study: StudyFolder) -> dict[str, MetricDataModule]:
    """The data of each half of `StudySpec.halves`; one that has changed may test what a row has trained on."""
    rows = {study.spec.halves[row]: row for row in study.spec.methods}
    halves = {half: Training(study.test_config(row)).build().datamodule for half, row in rows.items()}
    data = {row: halves[half].identity() for row, half in study.spec.halves.items()}
    check_same(study, None, (), Seen(data, weights={}, overview=[]))
    return halves


def _refuse_other_samples(
    study: StudyFolder, tests: Mapping[tuple[str, int], Mapping[str, Any] | None], samples: Mapping[str, str]
) -> None:
    """Raise an error for scores that are missing, or not of the test samples whose fingerprints are given by half."""
    for (row, run), test in tests.items():
        if test is None or test["data"]["fingerprint"] != samples[study.spec.halves[row]]:
            what = "missing" if test is None else "of other test samples than those here"
            again = "choose another --output" if row in study.archived else 'score all again: --reopen-test "REASON"'
            raise UserError(f"{study.test_file(row, run)}: {what}; restore them, or {again}")


def _contents(halves: Iterable[MetricDataModule]) -> list[str]:
    """Hashes of the test samples; a sample in several test halves counts once."""
    first, *others = (data.dataset.contents_of(data.half("test").keys) for data in halves)
    return [*first, *{sample for other in others for sample in other}.difference(first)]


def _unit(study: StudyFolder, row: str, run: int, samples: Mapping[str, str], evaluation: str) -> Unit:
    jobs, without_results = folds_of(study.spec, row, run), StudyFolder(study.folder, study.spec)
    checkpoints = [(study.checkpoint(job), study.state.results[job]["checkpoint"]) for job in jobs]
    of_samples = samples[study.spec.halves[row]], evaluation
    arguments = (without_results, row, run, study.test_config(row), checkpoints, *of_samples)
    return Unit(f"test: {row} run {run}", row, score_run, arguments)


def score_run(
    study: StudyFolder,
    row: str,
    run: int,
    config: Config,
    checkpoints: Sequence[tuple[Path, str]],
    samples: str,
    evaluation: str,
    tried: int = 0,
) -> dict[str, Any]:
    """Embed the test samples with the folds of one run and score them; writes both and returns the scores.

    A study opens its test samples only here.

    Args:
        study: Its folder and spec; no result is read from it.
        config: The configuration of the row, with the setting that its search selected.
        checkpoints: The checkpoints of the folds, each with its SHA-256.
        samples: Fingerprint of the test samples.
        evaluation: Id of the line in the ledger.

    Raises:
        UserError: the ledger has no line of the evaluation, or a checkpoint or the samples have changed.
    """
    if not has_line(evaluation, study.folder):
        raise UserError(f"{study.folder}: the ledger has no line {evaluation}, so no test label is read")
    for path, content in checkpoints:
        if file_hash(path) != content:
            changed = f"{path} has changed since its job finished"
            raise UserError(f"{changed}; delete {path.with_name(RESULT)} and resume to run the job again")
    with fixed_threads(study.spec.threads), memory_errors():
        training = Training(config, trunks=study.folder / TRUNKS).build()
        data, device = training.datamodule, training.trainer.strategy.root_device
        data.setup("test")
        data.evaluation = evaluation
        known = data.test_subset
        if data.dataset.fingerprint(known.index) != samples:
            raise UserError(f"{study.folder}: the test samples have changed since the evaluation began; restore them")
        queries, groups = (None if each is None else torch.from_numpy(each) for each in (known.is_query, known.groups))
        folds = [EmbeddedTest(each, queries, samples, groups) for each in _embed(checkpoints, training)]
        for fold, (path, content) in zip(folds, checkpoints, strict=True):
            fold.save(path.with_name(EMBEDDINGS_FILE), {"checkpoint": content, "evaluation": evaluation})
        test = {
            **{"method": row, "stage": "test", "number": run, "evaluation": evaluation},
            "configuration": study.test_hash(row),
            "data": {"fingerprint": samples},
            "provenance": training.provenance(),
            **score_folds(folds, config["model"].get("distance", "cosine"), study.spec.metrics, device),
        }
        write_json(study.test_file(row, run), test)
        return test


def _embed(checkpoints: Sequence[tuple[Path, str]], training: Training) -> list[EmbeddedSet]:
    """The test samples, embedded with each fold."""
    model, data, device = training.model, training.datamodule, training.trainer.strategy.root_device
    trust = user_packages(training.config_dump)  # it comes from the user's study file
    paths = [path for path, _ in checkpoints]
    parts, embed_all = dict[str, Any](), partial(embed, device=device)
    if not isinstance(model, MetricLearner):
        embed_all = partial(embed_by_steps, trainer={"accelerator": device.type})
    elif all(has_frozen_trunk_of(model, path) for path in paths):
        parts["trunk"] = model.trunk
        if data.features:
            data.use_features(TrunkExtractor(model.trunk, device))
    loader = data.eval_dataloader(data.test_subset)
    return [embed_all(load_learner(type(model), path, trust=trust, parts=parts), loader) for path in paths]
