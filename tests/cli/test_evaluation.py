"""`validate` and `predict` take every setting from the checkpoint, the seeds too."""

import pytest
from refused import refused
from tiny_fit import TINY

from levelfield.cli.main import main


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """The checkpoint of a tiny fit with a seed that is not the default; every job of a study has one."""
    output = tmp_path_factory.mktemp("seeded")
    words = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--seed_everything", "7", "--trainer.max_epochs", "1"]
    assert main([*words, "--output", str(output)]) == 0
    return output / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt"


@pytest.mark.parametrize("command", ["validate", "predict"])
def test_a_checkpoint_with_a_seed_needs_no_option(command, seeded, run):
    code, _, complaint = run(command, "--ckpt_path", seeded)
    assert code == 0, complaint


def test_another_seed_is_refused(seeded, run):
    refused(run("validate", "--ckpt_path", seeded, "--model.seed", "1"), "--model.seed")


def test_a_checkpoint_of_a_random_split_is_validated_and_tested_on_its_classes(tmp_path, run):
    words = [*TINY, "--model.loss", "ArcFaceLoss", "--model.loss.weight_init", "class_means", "--output", tmp_path]
    words += ["--model.embedder_init", "whitening", "--model.embedding_size", "16", "--trainer.max_epochs", "1"]
    code, _, complaint = run("fit", *words, "--data.split", "random", "--data.split_seed", "3")
    assert code == 0, complaint
    path = tmp_path / "fit" / "Glyphs-ArcFaceLoss" / "0" / "best.ckpt"
    for command in ("validate", "test"):
        code, _, complaint = run(command, "--ckpt_path", path)
        assert code == 0, complaint
    refused(run("validate", "--ckpt_path", path, "--data.split_seed", "4"), "--data.split_seed")
    code, _, complaint = run("fit", *words, "--data.split", "random", "--data.split_seed", "4", "--ckpt_path", path)
    assert code != 0
    assert "test classes" in complaint
