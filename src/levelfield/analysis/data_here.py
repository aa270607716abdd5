"""The data set of a study, if its files are on this machine."""

from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.study.folder import StudyFolder
from levelfield.training.settings import class_parser, instantiate, parse


def data_here(study: StudyFolder, row: str | None = None) -> MetricDataModule | None:
    """The datamodule of a row, by default the first, with its index read; None if the data are not here.

    A row that only an archive has may be a stranger's, so the classes that it names are not built.
    """
    rows = [each for each in study.spec.rows if study.may_build(each) and row in (None, each)]
    if not rows:
        return None
    parser = class_parser(MetricDataModule, "data")
    try:
        settings = parse(parser, {"data": study.spec.config_of(rows[0])["data"]})
        data: MetricDataModule = instantiate(parser, settings).data
        data.dataset.read_index()
    except UserError:
        return None
    return data
