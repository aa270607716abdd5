"""Nothing of a configuration is built where no type asks for a class."""

import subprocess
import sys

import pytest
import yaml
from refused import refused
from toy_study import TOY

PML = "pytorch_metric_learning.losses.ContrastiveLoss"
LP = "pytorch_metric_learning.distances.LpDistance"


@pytest.fixture
def written(tmp_path):
    """A file that the attack writes, and a loss that carries the attack where torch asks for a truth value."""
    file = tmp_path / "written"
    command = {"class_path": "subprocess.Popen", "init_args": {"args": f"id > {file}", "shell": True}}
    return file, {"class_path": "torch.nn.MSELoss", "init_args": {"size_average": command}}


def test_fit_runs_no_command_of_its_configuration(written, tiny, run, tmp_path):
    file, loss = written
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump({"model": {"loss": loss}}))
    refused(run("fit", *tiny, "--config", tmp_path / "attack.yaml", "--output", tmp_path), "subprocess.Popen")
    assert not file.exists()


def test_a_study_runs_no_command_of_its_file(written, run, tmp_path):
    file, loss = written
    study = yaml.safe_load(TOY)
    study["methods"]["contrastive"] = {"model": {"loss": loss}}
    study["spaces"]["contrastive"] = {}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    words = ["study", "run", tmp_path / "study.yaml", "--output", tmp_path / "s"]
    assert run(*words, "--dry-run")[0] == 0, "it builds nothing"
    refused(run(*words), "subprocess.Popen")
    assert not file.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--model.loss.distance", LP],
        ["--model.loss", f"{{class_path: {PML}, dict_kwargs: {{distance: {{class_path: {LP}}}}}}}"],
    ],
)
def test_a_part_whose_kind_nobody_says_is_refused_in_one_line(options, tiny, run, tmp_path):
    refused(run("fit", *tiny, "--model.loss", PML, *options, "--output", tmp_path), LP, "'distance'")


@pytest.mark.full  # of a new interpreter
def test_one_batch_is_not_all_batches_whatever_was_imported_before() -> None:
    """typing gives `Union[int, float, None]` as the union of these that was made first, and so does a Trainer's."""
    code = (
        "from typing import Optional, Union; Optional[Union[float, int]]\n"
        "from pathlib import Path; from levelfield.training.build import build\n"
        "trunk = {'class_path': 'TimmTrunk', 'init_args': {'name': 'test_resnet', 'weights': None}}\n"
        "config = {'model': {'loss': 'ContrastiveLoss', 'trunk': trunk}, 'data': {'dataset': 'Glyphs'}}\n"
        "for given in (1, 1.0, 0.5, 0):\n"
        "    trainer = build({**config, 'trainer': {'limit_train_batches': given}}, Path('.')).config.trainer\n"
        "    print(repr(trainer.limit_train_batches))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1.0", "0.5", "0"], done.stderr
