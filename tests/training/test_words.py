"""What the words of a command say of a training."""

from pathlib import Path

import pytest

from levelfield.errors import UserError
from levelfield.training.words import files_found, learner_named


def test_an_option_without_a_value_takes_none_of_the_next() -> None:
    assert learner_named(["--resume", "--model.learner", "my_learner.MyLearner"]) == "my_learner.MyLearner"


@pytest.mark.parametrize("form", ["--config {}", "--config={}"])
def test_a_file_with_a_section_twice_is_refused_for_the_last_one_alone_would_count(form: str, tmp_path: Path) -> None:
    file = tmp_path / "fit.yaml"
    file.write_text("model: {loss: ArcFaceLoss}\ndata: &data {fold: 0}\nmodel: {embedding_size: 8}\n")
    with pytest.raises(UserError, match=r"fit\.yaml, line 3: 'model'"):
        list(files_found(form.format(file).split()))
    file.write_text("model: &a {loss: ArcFaceLoss}\ndata: {<<: *a, loss: CosFaceLoss}\n")
    assert list(files_found(form.format(file).split())) == form.format(file).split()
