"""Names of commands and options in other programs, and what to give here."""

from collections.abc import Mapping

COMMANDS = {
    "train": "to train one method: levelfield fit",
    "list": "to list the data sets: levelfield data list",
    "prepare": "to download a data set: levelfield data prepare NAME",
    "evaluate": "to score a checkpoint: levelfield validate, or test",
    "embed": "to embed data: levelfield predict",
    "run": "to run a study: levelfield study run FILE",
    "resume": "to continue a study: levelfield study resume FOLDER; a fit: levelfield fit ... --resume",
    "status": "for the jobs of a study: levelfield study status FILE",
    "report": "for the tables of a study: levelfield study report FILE",
    "verify": "to check a study or data: levelfield study verify FILE, levelfield data verify NAME",
}

# In lower case, with `_` for `-`.
OF_TRAINING = {
    **dict.fromkeys(("epochs", "num_epochs"), "--trainer.max_epochs"),
    **dict.fromkeys(("lr", "learning_rate"), "--model.trunk_lr, --model.embedder_lr or --model.loss_lr"),
    **dict.fromkeys(("fp16", "amp"), "--trainer.precision bf16-mixed"),
    **dict.fromkeys(("backbone", "trunk"), "--config trunk/NAME.yaml"),
    "steps": "--trainer.max_steps",
    "batch_size": "--data.batch_size",
    "workers": "--data.num_workers",
    "image_size": "--data.transforms.crop_size",
    "data_dir": "--config data/NAME.yaml, or --config data/image_folder.yaml --data.dataset.folder FOLDER",
    "gpus": "--trainer.devices",
    "device": "--trainer.accelerator",
    "gradient_checkpointing": "--trainer.callbacks+ GradientCheckpointing",
    "chunk_size": "--trainer.callbacks+ GradientCaching",
    "loss": "--model.loss",
    "margin": "--model.loss.margin",
    "seed": "--seed_everything",
    "output_dir": "--output",
    "checkpoint": "--ckpt_path",
    "wandb": "--config logger/wandb.yaml",
}
OF_A_STUDY = {
    **OF_TRAINING,
    "loss": "--add-method",
    "method": "--add-method",
    "trials": "--search.trials",
    "workers": "--executor.workers",
    "gpus": "--executor.devices",
    "seed": "--seed",
    "force": "--recompute METHOD",
}
OF_COMPARE = {
    **OF_A_STUDY,
    **dict.fromkeys(("epochs", "steps", "time"), "--minutes"),
    "backbone": "--trunk configs/trunk/NAME.yaml",
}
OF_A_CHECKPOINT = {**dict.fromkeys(("checkpoint", "model"), "--ckpt_path"), "output_dir": "--output"}
OF_AN_EVALUATION = {
    **OF_A_CHECKPOINT,
    "batch_size": "--data.eval_batch_size",
    "workers": "--data.num_workers",
    "gpus": "--trainer.devices",
    "device": "--trainer.accelerator",
    "data_dir": "--data.root",
}


def option_here(name: str, names: Mapping[str, str]) -> str | None:
    """What to give for an option of another program, with or without its dashes and its section.

    Example:
        >>> option_here("--trainer.num-epochs", OF_TRAINING)
        '--trainer.max_epochs'
    """
    return names.get(name.rpartition(".")[2].lstrip("-").lower().replace("-", "_"))
