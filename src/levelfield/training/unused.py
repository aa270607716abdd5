"""What a person gives and nothing uses: settings that a command, or the other settings, leave without effect."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from levelfield.data.samplers import ShuffledBatchSampler
from levelfield.data.splits import NO_FOLD
from levelfield.data.transforms import ImageTransforms
from levelfield.runtime.shipped import find_configuration, shipped_files
from levelfield.training.learner import MetricLearner

TRAINER = frozenset(inspect.signature(Trainer).parameters)
# All that a Trainer takes is for training, but for these, and for the limit of a command's own batches.
OF_EVALUATION = (
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "deterministic", "benchmark", "inference_mode"),
    *("plugins", "profiler", "callbacks", "enable_progress_bar"),
)
OF_A_FIT = (EarlyStopping, ModelCheckpoint)  # which pass over any validation that is not a fit's
LIMITS = {"validate": "limit_val_batches", "test": "limit_test_batches", "predict": "limit_predict_batches"}
VALIDATION = ("check_val_every_n_epoch", "val_check_interval", LIMITS["validate"])
# Each command's keys, and those that begin with one and a dot, that change nothing in it. What `validate`, `test` and
# `predict` write lies beside the checkpoint, which holds seeds and weights.
_NOT_OF_A_CHECKPOINT = (
    *("name", "output", "resume", "checkpoint_seconds", "seed_everything", "weights_only", "model.trunk.weights"),
    *(f"trainer.{key}" for key in sorted(TRAINER - {*OF_EVALUATION, *LIMITS.values()})),
)
_OF_TEST = ("reopen_test", "reopen-test", "open_set", "open-set", "hierarchy", "rerank")
NOT_OF_COMMAND = {
    command: (
        *_NOT_OF_A_CHECKPOINT,
        *(f"trainer.{limit}" for other, limit in LIMITS.items() if other != command),
        *{
            "validate": _OF_TEST,
            "test": (),
            "predict": (*_OF_TEST, "return_predictions", "data.cache", "data.features"),
        }[command],
    )
    for command in LIMITS
}


class Setting(NamedTuple):
    """Settings that others leave without effect: where that is so, and why."""

    keys: tuple[str, ...]
    unused: Callable[[Mapping[str, Any], MetricLearner], bool]
    why: str


# Of a training: its plain configuration, and the learner made of it.
SETTINGS = (
    Setting(("model.trunk_lr",), lambda _, learner: not _learns(learner.trunk), "no weight of the trunk trains"),
    Setting(("model.embedder_lr",), lambda _, learner: not _learns(learner.embedder), "the embedder has no weights"),
    Setting(
        ("model.weight_decay",),
        lambda _, learner: not _learns(learner.trunk) and not _learns(learner.embedder),
        "neither trunk nor embedder trains",
    ),
    Setting(
        ("model.loss_lr", "model.loss_weight_decay"),
        lambda _, learner: learner.loss is not None and not _learns(learner.loss),
        "the loss has no weights",
    ),
    Setting(
        ("model.freeze_batch_norm", "model.chunk_size", "model.layer_decay", "model.gradient_checkpointing"),
        lambda config, _: config["model"]["freeze_trunk"],
        "the trunk is frozen",
    ),
    Setting(
        ("model.chunk_size",),
        lambda config, _: config["data"]["batch_size"] <= (config["model"]["chunk_size"] or 0),
        "a batch has no more samples than a chunk",
    ),
    Setting(
        ("model.freeze_batch_norm",),
        lambda config, _: config["model"]["adapter"] is not None,
        "--model.adapter leaves the trunk's own weights as they are",
    ),
    Setting(
        ("model.lr_scheduler_interval",),
        lambda config, _: config["model"]["lr_scheduler"] is None,
        "there is no --model.lr_scheduler",
    ),
    Setting(
        ("data.samples_per_class",),
        lambda config, _: str(_class(config["data"]["sampler"])).endswith(f".{ShuffledBatchSampler.__name__}"),
        "--data.sampler ShuffledBatchSampler takes all samples in turn",
    ),
    Setting(
        ("data.num_folds", *(f"trainer.{key}" for key in VALIDATION)),
        lambda config, _: config["data"].get("fold") == NO_FOLD,
        "--data.fold none validates nothing",
    ),
    Setting(
        ("data.eval_batch_size",),
        lambda config, _: (
            config["data"].get("fold") == NO_FOLD
            and not config["data"]["features"]
            and config["model"].get("embedder_init") != "pca"
        ),
        "--data.fold none embeds nothing",
    ),
    Setting(
        ("data.transforms.scale", "data.transforms.ratio"),
        lambda config, _: (config["data"]["transforms"] or {}).get("random_crop", False),
        "random_crop takes no share of the image",
    ),
    Setting(
        ("data.transforms.scale", "data.transforms.ratio", "data.transforms.horizontal_flip"),
        lambda config, _: config["data"]["features"],
        "features are of the evaluation transform",
    ),
    Setting(("data.cache",), lambda config, _: config["data"]["features"], "features are kept instead of images"),
    Setting(
        ("checkpoint_seconds",),
        lambda config, _: config["trainer"]["enable_checkpointing"] is False,
        "--trainer.enable_checkpointing false keeps no last state",
    ),
    Setting(
        ("model.trunk.weights", "model.embedder_init"),
        lambda config, _: config.get("ckpt_path") is not None,
        "the weights are those of --ckpt_path",
    ),
    Setting(("weights_only",), lambda config, _: config.get("ckpt_path") is None, "there is no --ckpt_path"),
    Setting(
        ("trainer.max_steps",),
        lambda config, _: config["trainer"]["max_steps"] > _steps(config),
        "--trainer.max_epochs ends the training before",
    ),
    Setting(
        ("trainer.callbacks",),
        lambda config, _: (
            config["data"].get("fold") == NO_FOLD and "EarlyStopping" in str(config["trainer"]["callbacks"])
        ),
        "--data.fold none has no validation score to stop by",
    ),
    Setting(
        ("trainer.limit_test_batches", "trainer.limit_predict_batches"),
        lambda *_: True,
        "a training tests and embeds nothing",
    ),
    Setting(
        ("trainer.use_distributed_sampler",), lambda *_: True, "the samplers of --data share batches out themselves"
    ),
    Setting(
        ("trainer.logger",),
        lambda config, _: config["trainer"]["logger"] in (True, False),
        "metrics.csv is written in any case",
    ),
)


def is_used(key: str, command: str) -> bool:
    """Whether a configuration's key changes anything in `validate`, `test` or `predict`."""
    whole = f"{key}.".replace(".init_args.", ".")
    return not any(whole.startswith(f"{unused}.") for unused in NOT_OF_COMMAND[command])


def unused_settings(given: Iterable[str], config: Mapping[str, Any], learner: MetricLearner) -> dict[str, str]:
    """Which of the given keys a training does not use, and why.

    Args:
        given: dotted, as options have them.
        config: of the training, as plain values.
    """
    keys = list(given)
    return {key: each.why for each in SETTINGS for key in keys if key in each.keys and each.unused(config, learner)}


def can_be_unused(key: str) -> bool:
    """Whether a setting is one that others may leave without effect."""
    return any(key in each.keys for each in SETTINGS)


def idle_callbacks(callbacks: Iterable[Callback], command: str) -> list[str]:
    """The classes of callbacks that do nothing in `validate`, `test` or `predict`: they act while something trains."""
    stage = {"validate": "validation"}.get(command, command)
    hooks = ["setup", "teardown", "on_exception", *(name for name in dir(Callback) if name.startswith(f"on_{stage}_"))]

    def is_idle(kind: type[Callback]) -> bool:
        return issubclass(kind, OF_A_FIT) or all(getattr(kind, hook) is getattr(Callback, hook) for hook in hooks)

    return [type(each).__name__ for each in callbacks if is_idle(type(each))]


def keys_given(words: Iterable[str], usual: Callable[[str], Any]) -> list[str]:
    """The dotted keys of a command's options, and of those of one's own `--config` files that say what is not usual.

    Args:
        usual: the default of a key.
    """
    found, option = [], ""
    for word in words:
        option, _, value = word.partition("=") if word.startswith("-") else (option, "", word)
        if word.startswith("--"):
            found.append(option.removeprefix("--").rstrip("+"))
        elif option not in ("--config", "-c"):
            continue
        file = find_configuration(value) if option in ("--config", "-c") and value else None
        if file is not None and file.resolve() not in _shipped():
            found += [key for key, given in keys_of_file(file).items() if given != usual(key)]
    return found


def keys_of_file(file: Path) -> dict[str, Any]:
    """The dotted keys and values of a configuration file, but those of no value; none where it is no mapping."""
    try:
        return {key: value for key, value in _leaves(yaml.safe_load(file.read_text(encoding="utf-8"))) if value}
    except (OSError, ValueError, yaml.YAMLError):  # the parser says what is wrong with it
        return {}


def usual_value(key: str, defaults: Namespace) -> Any:
    """The default of a dotted key, given the parser's; of one that is in a part that is not there, the part's own."""
    if key.startswith("data.transforms."):
        value = getattr(ImageTransforms, key.removeprefix("data.transforms."), None)
        return list(value) if isinstance(value, tuple) else value
    return defaults.get(key)


def _leaves(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(content, dict):
        yield key, content
        return
    for name, value in content.items():
        yield from _leaves(value, key if name == "init_args" else f"{key}.{name}".lstrip("."))


def _shipped() -> set[Path]:
    return {file.resolve() for file in shipped_files().values()}


def _learns(part: nn.Module) -> bool:
    return any(weight.requires_grad for weight in part.parameters())


def _class(given: Any) -> Any:
    return given.get("class_path") if isinstance(given, Mapping) else given


def _steps(config: Mapping[str, Any]) -> float:
    """The steps that `max_epochs` allows."""
    trainer = config["trainer"]
    if trainer["max_epochs"] in (None, -1):
        return float("inf")
    return trainer["max_epochs"] * -(-config["data"]["steps_per_epoch"] // trainer["accumulate_grad_batches"])
