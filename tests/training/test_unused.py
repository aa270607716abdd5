"""What a person gives and nothing uses is told, or refused, in a line."""

import pytest
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from refused import refused

from levelfield.cli.evaluate import EvaluationCLI
from levelfield.cli.study import main as study
from levelfield.errors import UserError
from levelfield.training.callbacks import RetrievalValidation
from levelfield.training.unused import NOT_OF_COMMAND, TRAINER, idle_callbacks, is_used

# What the parser of `validate`, `test` and `predict` takes that is neither the model's, the data's nor the Trainer's.
USED = {
    "validate": {"ckpt_path", "verbose"},
    "test": {"ckpt_path", "verbose", "reopen_test", "open_set", "hierarchy", "rerank"},
    "predict": {"ckpt_path"},
}
OF_THE_PARSER = {"help", "help_all", "config", "print_config"}


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (
            [
                *("--model.freeze_trunk", "true", "--model.trunk_lr", "1e-3", "--model.freeze_batch_norm", "false"),
                *("--model.chunk_size", "4", "--model.layer_decay", "0.8", "--model.gradient_checkpointing", "true"),
            ],
            {
                "model.layer_decay": "the trunk is frozen",
                "model.gradient_checkpointing": "the trunk is frozen",
                "model.trunk_lr": "no weight of the trunk trains",
                "model.freeze_batch_norm": "the trunk is frozen",
                "model.chunk_size": "the trunk is frozen",
            },
        ),
        (
            [
                *("--model.loss_lr", "0.1", "--model.loss_weight_decay=0.1", "--model.lr_scheduler_interval", "step"),
                *("--model.chunk_size", "64"),
            ],
            {
                "model.chunk_size": "a batch has no more samples than a chunk",
                "model.loss_lr": "the loss has no weights",
                "model.loss_weight_decay": "",
                "model.lr_scheduler_interval": "",
            },
        ),
        (
            ["--data.sampler", "ShuffledBatchSampler", "--data.samples_per_class", "2", "--trainer.max_steps", "5000"],
            {"data.samples_per_class": "ShuffledBatchSampler", "trainer.max_steps": "--trainer.max_epochs ends"},
        ),
        (
            [
                *("--data.fold", "none", "--data.num_folds", "3", "--trainer.check_val_every_n_epoch", "2"),
                *("--data.eval_batch_size", "8"),
                *("--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/map_at_r"),
            ],
            {
                "data.num_folds": "--data.fold none",
                "data.eval_batch_size": "--data.fold none embeds nothing",
                "trainer.check_val_every_n_epoch": "--data.fold none",
                "trainer.callbacks": "no validation score to stop by",
            },
        ),
        (
            [
                *("--model.freeze_trunk", "true", "--data.features", "{views: 1}", "--data.features.seed", "3"),
                *("--data.transforms.horizontal_flip", "false", "--data.transforms.scale", "[0.5, 1]"),
            ],
            {
                "data.features.seed": "one view",
                "data.transforms.horizontal_flip": "one view",
                "data.transforms.scale": "one view",
            },
        ),
        (
            [
                *("--trainer.enable_checkpointing", "false", "--checkpoint_seconds", "5", "--weights_only", "true"),
                *("--trainer.logger", "false", "--trainer.limit_test_batches", "3"),
                *("--trainer.use_distributed_sampler", "true"),
            ],
            {
                "checkpoint_seconds": "--trainer.enable_checkpointing false",
                "weights_only": "there is no --ckpt_path",
                "trainer.logger": "metrics.csv",
                "trainer.limit_test_batches": "",
                "trainer.use_distributed_sampler": "",
            },
        ),
        (["--model.trunk_lr", "1e-3", "--data.num_folds", "3", "--trainer.max_steps", "2", "--model.chunk_size=3"], {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_a_fit_tells_what_it_does_not_use(options, unused, tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    words = ["--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", "--output", tmp_path]
    code, printed, complaint = run("fit", *tiny, *options, *words)
    assert code == 0, complaint
    notes = [
        line.removeprefix("note: --").split(" is not used: ") for line in printed.splitlines() if "not used" in line
    ]
    assert {key for key, _ in notes} == set(unused)
    for key, why in notes:
        assert unused[key] in why


def test_a_file_of_ones_own_is_told_of_too_and_the_usual_values_are_not(tiny, run, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: {freeze_trunk: true, trunk_lr: 0.5, lr_scheduler_interval: epoch}\ndata: {cache: false}\n")
    words = ["--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", "--output", tmp_path, "--name", "mine"]
    code, printed, complaint = run("fit", *tiny, "--config", file, *words)
    assert code == 0, complaint
    assert [line for line in printed.splitlines() if "not used" in line] == [
        "note: --model.trunk_lr is not used: no weight of the trunk trains"
    ]
    code, printed, complaint = run("fit", "--config", tmp_path / "fit/mine/0/config.yaml", "--resume")
    assert code == 0, complaint
    assert "is finished: nothing to do" in printed
    code, printed, _ = run("fit", *tiny, *words, "--resume")
    assert f"note: nothing to go on with: no fit of these settings was stopped in {tmp_path}/fit/mine" in printed


def test_where_a_checkpoint_s_weights_come_from_is_told(tiny, fitted, run, tmp_path):
    words = ["--model.loss", "ArcFaceLoss", "--data.fold", "2", "--ckpt_path", fitted / "best.ckpt"]
    words += ["--trainer.max_epochs", "3", "--model.trunk.weights", "null", "--output", tmp_path]
    code, printed, complaint = run("fit", *tiny, *words)
    assert code == 0, complaint
    assert "note: --model.trunk.weights is not used: the weights are those of --ckpt_path" in printed


@pytest.mark.parametrize("command", USED)
def test_every_option_of_a_command_that_takes_a_checkpoint_is_used_or_refused(command, fitted, monkeypatch):
    class Parsed(Exception):  # noqa: N818
        pass

    def stop(cli, parser, args):
        options = {action.dest for action in cli._parser(command)._actions} - OF_THE_PARSER
        raise Parsed(options)

    monkeypatch.setattr(EvaluationCLI, "parse_arguments", stop)
    with pytest.raises(Parsed) as parsed:
        EvaluationCLI([command, "--ckpt_path", str(fitted / "best.ckpt")])
    (options,) = parsed.value.args
    top = {key for key in options if "." not in key and key not in ("model", "data", "trainer", "model.learner")}
    assert {key for key in top if is_used(key, command)} == USED[command]
    assert {f"trainer.{key}" for key in TRAINER} <= options


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(
            (command, option)
            for command in ("validate", "predict")
            for option in ("--reopen-test=x", "--open-set", "--rerank=dba")
        ),
        *(("predict", option) for option in ("--data.cache=true", "--data.features.views=1", "--return_predictions=1")),
        ("validate", "--trainer.limit_test_batches=1"),
    ],
)
def test_an_option_of_another_command_is_refused(command, option, fitted, run):
    words = (command, "--ckpt_path", fitted / "best.ckpt", option)
    refused(run(*words), f"{option.partition('=')[0]}: {command} does not use it")


def test_a_root_and_a_trusted_name_in_vain_are_told(fitted, run, tmp_path):
    code, printed, _ = run("validate", "--ckpt_path", fitted / "best.ckpt", "--trust", "mine", "--data.root", tmp_path)
    assert code == 0
    assert "note: --trust mine is passed over: the checkpoint names nothing of it" in printed
    assert f"note: --data.root {tmp_path} is passed over: Glyphs reads nothing from it" in printed


def test_a_callback_that_acts_while_something_trains_is_told_of(fitted, run):
    callbacks = [EarlyStopping("x"), ModelCheckpoint(), LearningRateMonitor(), Timer(), RetrievalValidation()]
    idle = {command: idle_callbacks(callbacks, command) for command in NOT_OF_COMMAND}
    of_a_fit = ["EarlyStopping", "ModelCheckpoint", "LearningRateMonitor"]
    assert idle["validate"] == of_a_fit
    assert idle["predict"] == [*of_a_fit, "Timer", "RetrievalValidation"]
    words = ("validate", "--ckpt_path", fitted / "best.ckpt", "--trainer.callbacks", "EarlyStopping")
    code, printed, complaint = run(*words, "--trainer.callbacks.monitor", "x", "--trainer.callbacks.monitor", "y")
    assert code == 0, complaint
    assert "note: --trainer.callbacks EarlyStopping does nothing in validate" in printed
    assert "note: --trainer.callbacks.monitor is given 2 times: the last one counts" in printed


def test_no_key_is_of_no_command():
    fit_alone = set.intersection(*map(set, NOT_OF_COMMAND.values()))
    assert {"output", "trainer.max_epochs", "model.trunk.weights"} <= fit_alone
    assert not {"trainer.devices", "trainer.precision", "trainer.limit_val_batches"} & fit_alone


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
        *("--executor=x", "--executor.workers=2", "--test-without-failed-runs", "--dry-run"),
        *("--from=x", "--with=x", "--to=x", "--recompute=x", "--keep=x", "--add-method=x"),
    ],
)
def test_a_study_s_command_refuses_what_it_does_not_use(command, option):
    if (command, option) in {("report", "--with=x"), ("archive", "--to=x")}:
        return
    with pytest.raises(UserError, match=rf"^{option.partition('=')[0]} is an option of .*: {command} does not use it"):
        study([command, "smoke", option])


def test_a_dry_run_begins_nothing_and_a_begun_study_says_that_an_archive_is_passed_over(
    toy_file, finished, tmp_path, capsys
):
    words = ["--from", str(tmp_path / "nothing.tar.xz"), "--dry-run"]
    assert study(["run", str(toy_file), "--output", str(tmp_path / "new"), *words]) == 0
    assert "22 jobs" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    assert study(["run", str(toy_file), "--output", str(finished), "--from", "nothing.tar.xz"]) == 0
    assert f"note: --from nothing.tar.xz is passed over: {finished} has begun" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.loss_lr", "0.3"], "--model.loss_lr: arcface searches it"),
        (["--model.loss.margin", "0.3"], "--model.loss.margin: arcface searches it"),
        (["--search.trials", "0", "--search.sampler", "tpe"], "--search.sampler: the study searches nothing"),
        (["--trainer.enable_checkpointing", "false"], "leaves no best checkpoint to test"),
        (["--trainer.limit_val_batches", "0"], "leaves no best checkpoint to test"),
        (["--data.batch_size", "0"], "--data.batch_size 0: give 2 or more"),
        (["--data.samples_per_class", "5"], "batch_size 16 is not a multiple of samples_per_class 5"),
        (["--executor.workers", "0"], "--executor.workers 0"),
    ],
)
def test_a_study_that_would_not_use_a_setting_or_could_not_end_is_not_begun(words, said, toy_file, tmp_path, run):
    refused(run("study", "run", toy_file, "--output", tmp_path / "toy", *words), said)
    assert [path for path in tmp_path.glob("toy/*") if not path.name.startswith(".")] == []
