"""An option that a command does not use is refused, or the command says that it passes it over."""

import pytest
from refused import refused

from levelfield.cli.evaluate import OF_EVALUATION, OF_FIT
from levelfield.cli.evaluation_options import COMMANDS
from levelfield.cli.study import main as study
from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.training.learner import MetricLearner
from levelfield.training.settings import training_parser


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_that_takes_a_checkpoint_is_used_or_refused(command):
    keys = {
        key
        for key, _ in training_parser(MetricLearner, MetricDataModule, command)
        .get_defaults(skip_validation=True)
        .items()
    }
    top = {key for key in keys if "." not in key} - {"model", "data", "trainer"}
    assert top - set(OF_FIT) == {"ckpt_path"}
    assert {f"trainer.{key}" for key in OF_EVALUATION} <= keys


@pytest.mark.parametrize("command", ["validate", "predict"])
@pytest.mark.parametrize("option", ["--reopen-test=x", "--reopen_test=x"])
def test_an_option_of_test_is_refused_elsewhere(command, option, fitted, run):
    refused(run(command, "--ckpt_path", fitted / "best.ckpt", option), option.partition("=")[0])


def test_a_root_and_a_trusted_name_in_vain_are_told(fitted, run, tmp_path):
    code, printed, _ = run("validate", "--ckpt_path", fitted / "best.ckpt", "--trust", "mine", "--data.root", tmp_path)
    assert code == 0
    notes = [line for line in printed.splitlines() if line.startswith("note: ")]
    assert all(any(key in note for note in notes) for key in ("--trust mine", f"--data.root {tmp_path}"))


@pytest.mark.parametrize("command", ["status", "report", "verify", "archive"])
@pytest.mark.parametrize(
    "option",
    [
        *(
            "--runs=3",
            "--metrics=ami",
            "--data.root=x",
            "--trainer.max_epochs=3",
            "--search.trials=3",
            "--reopen-test=x",
        ),
        *(
            "--executor=x",
            "--executor.workers=2",
            "--recompute=x",
            "--keep=x",
            "--test-without-failed-runs",
            "--dry-run",
        ),
        *("--from=x", "--with=x", "--to=x"),
    ],
)
def test_a_study_s_command_refuses_what_it_does_not_use(command, option):
    if (command, option) in {("report", "--with=x"), ("archive", "--to=x")}:
        return
    with pytest.raises(UserError, match=rf"^{option.partition('=')[0]} .*\b{command}\b"):
        study([command, "smoke", option])


def test_a_begun_study_says_what_it_passes_over(toy_file, copy, capsys):
    assert study(["run", str(toy_file), "--output", str(copy), "--from", "nothing.tar.xz"]) == 0
    assert "note: --from nothing.tar.xz" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--model.loss_lr 0.3", "--model.loss_lr: arcface"),
        ("--model.loss.margin 0.3", "--model.loss.margin: arcface"),
        ("--search.trials 0 --search.sampler tpe", "--search.sampler"),
        ("--trainer.enable_checkpointing false", "trainer.enable_checkpointing"),
        ("--trainer.limit_val_batches 0", "trainer.limit_val_batches"),
        ("--data.batch_size 0", "--data.batch_size 0"),
        ("--data.samples_per_class 5", "samples_per_class 5"),
        ("--executor.workers 0", "--executor.workers 0"),
    ],
)
def test_a_study_that_would_not_use_a_setting_or_could_not_end_is_not_begun(words, key, toy_file, tmp_path, run):
    refused(run("study", "run", toy_file, "--output", tmp_path / "toy", *words.split()), key)
    assert not (tmp_path / "toy" / "study.yaml").exists()
