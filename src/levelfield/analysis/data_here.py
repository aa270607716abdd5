"""The data set of a study, where its files are at hand."""

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.training.instantiation import instantiate, restrict_parser
from levelfield.training.parser import LevelfieldParser


def data_here(study: StudyFolder, row: str | None = None) -> MetricDataModule | None:
    """The datamodule of a row of a study, by default the first, with its index read; None where that cannot be."""
    restrict_parser()
    parser = LevelfieldParser(exit_on_error=False)
    parser.add_class_arguments(MetricDataModule, "data", fail_untyped=False)
    try:
        config = parser.parse_object({"data": study.spec.config_of(row or study.spec.rows[0])["data"]})
        data: MetricDataModule = instantiate(parser, config).data
        data.dataset.read_index()
    except UserError:
        return None
    return data
