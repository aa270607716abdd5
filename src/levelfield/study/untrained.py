"""The settings of untrained rows: learners without a step, whose embedder is a map of the features of the trunk."""

import copy
import re

from levelfield.core.configuration import Config, init_args
from levelfield.core.errors import UserError, nearest

# Maps of the trunk's features in untrained rows. `one_pca` is fitted to the whole training half, for comparisons with
# the concatenated embeddings of a run's folds.
PCA, FEATURES, LDA, WHITENING, ONE = "pca", "features", "lda", "whitening", "one_pca"
EMBEDDING_SIZE = 128  # a learner's default
# The untrained row of a LightningModule that is not a MetricLearner: its embeddings before training.
UNTRAINED = "untrained"
# Settings of the data that do not affect an untrained trunk.
TRAINING_BATCHES = ("batch_size", "samples_per_class", "replacement", "sampler", "steps_per_epoch")


def changes_untrained(key: str, kind: str) -> bool:
    """Whether a setting changes the untrained embedding of a kind."""
    section, _, name = key.partition(".")
    if section == "model":
        return name.partition(".")[0] == "trunk" or (name == "embedding_size" and kind in (PCA, LDA, ONE))
    return section == "data" and name.partition(".")[0] not in TRAINING_BATCHES


def kept_settings(config: Config, kind: str) -> Config:
    """The settings of a row with the same trunk and data that an untrained row of a kind depends on."""
    if kind == UNTRAINED:
        return config
    return {
        section: {key: each for key, each in config[section].items() if changes_untrained(f"{section}.{key}", kind)}
        for section in ("model", "data")
    }


def untrained_config(config: Config, kind: str, folds: int) -> Config:
    """The configuration of an untrained row: a learner that is validated and kept before the first step.

    Its embedder is the map of the features of the frozen trunk. A LightningModule has no map: it stays as it is.

    Args:
        config: That of a row with the same trunk and data.
        kind: The map: `features`, `pca`, `lda`, `whitening`, `one_pca`, `pca512`, or `untrained` for a LightningModule;
            another is a UserError.
        folds: Those of a run; `one_pca` is as long as the concatenated embeddings.
    """
    if kind == UNTRAINED:
        trainer = {key: value for key, value in config["trainer"].items() if key not in ("devices", "strategy")}
        return {**config, "trainer": {**trainer, "max_steps": 0}}
    size = config["model"].get("embedding_size", EMBEDDING_SIZE)
    sizes = {PCA: size, FEATURES: None, LDA: size, WHITENING: None, ONE: size and folds * size}
    of_size = re.fullmatch(rf"({PCA}|{WHITENING})([1-9][0-9]*)", kind)
    if kind not in sizes and of_size is None:
        raise UserError(f"references: no map {kind!r} of features{nearest(kind, [*sizes, 'pca512', 'whitening512'])}")
    start, length = (kind, sizes[kind]) if of_size is None else (of_size[1], int(of_size[2]))
    trunk = copy.deepcopy(config["model"].get("trunk"))
    init_args(trunk).pop("adapter", None)  # changes no feature before the first step
    embedder = "IdentityEmbedder" if kind == FEATURES else "LinearEmbedder"
    trainer = {key: value for key, value in config["trainer"].items() if key == "accelerator"}
    return {
        "model": {
            **({} if trunk is None else {"trunk": trunk}),
            "freeze_trunk": True,
            "loss": "levelfield.losses.ContrastiveLoss",  # a learner needs one
            "embedder": f"levelfield.models.{embedder}",
            "embedder_init": {FEATURES: "random", ONE: PCA}.get(start, start),
            "embedding_size": length,
        },
        "data": {**kept_settings(config, kind)["data"], "features": True},
        "trainer": {**trainer, "max_steps": 0},
    }
