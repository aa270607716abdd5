"""The test embeddings that an evaluation stored, and the data of a study if they are on this machine."""

from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import EMBEDDINGS_FILE, RESULT, Job
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.settings import class_parser, instantiate, parse


def stored_embeddings(study: StudyFolder, job: Job, evaluation: str) -> EmbeddedTest | str:
    """A job's embeddings of the test classes in an evaluation, or why they are unusable.

    It reads no sample and runs no model.
    """
    path = job.path / EMBEDDINGS_FILE
    if job not in study.state.results:
        return f"{job.path}/{RESULT}: missing, though its run was tested; resume the study to repeat the job"
    origin = {"checkpoint": study.state.results[job]["checkpoint"], "evaluation": evaluation}
    embedded = EmbeddedTest.load(study.folder / path, origin)
    if embedded is not None:
        return embedded
    there = (study.folder / path).exists()
    return f"{path}: {'damaged, or of another checkpoint or evaluation' if there else 'missing'}"


def data_here(study: StudyFolder, row: str | None = None) -> MetricDataModule | None:
    """The datamodule of a row, by default the first, with its index read; None if the data are not here.

    An archive may be a stranger's, so the classes that its rows name are not built.
    """
    if study.is_read_only:
        return None
    parser = class_parser(MetricDataModule, "data")
    try:
        settings = parse(parser, {"data": study.spec.config_of(row or study.spec.rows[0])["data"]})
        data: MetricDataModule = instantiate(parser, settings).data
        data.dataset.read_index()
    except UserError:
        return None
    return data
