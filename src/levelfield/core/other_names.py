"""Commands and options as other programs call them, and what to give here."""

from collections.abc import Mapping

COMMANDS = {
    **dict.fromkeys(("train", "finetune", "fine-tune", "learn"), "to train one method: levelfield fit"),
    **dict.fromkeys(("list", "datasets"), "to list the data sets: levelfield data list"),
    **dict.fromkeys(("prepare", "download"), "to download a data set: levelfield data prepare NAME"),
    **dict.fromkeys(("eval", "evaluate"), "to score a checkpoint: levelfield validate, or test"),
    **dict.fromkeys(("embed", "encode"), "to embed data: levelfield predict"),
    **dict.fromkeys(("run", "benchmark"), "to run a study: levelfield study run FILE"),
    **dict.fromkeys(("sweep", "tune"), "to search hyper-parameters: levelfield study run FILE --search.trials N"),
    "resume": "to continue a study: levelfield study resume FOLDER; a fit: levelfield fit ... --resume",
    "status": "for the jobs of a study: levelfield study status FILE",
    "report": "for the tables of a study: levelfield study report FILE",
    "verify": "to check a study or data: levelfield study verify FILE, levelfield data verify NAME",
}

# In small letters, with `_` for `-`.
OF_TRAINING = {
    **dict.fromkeys(("epochs", "epoch", "num_epochs", "max_epochs", "num_train_epochs"), "--trainer.max_epochs"),
    **dict.fromkeys(("steps", "max_steps", "num_steps"), "--trainer.max_steps"),
    **dict.fromkeys(
        ("lr", "learning_rate", "base_lr"),
        "--model.trunk_lr, --model.embedder_lr or --model.loss_lr",
    ),
    **dict.fromkeys(("wd", "weight_decay"), "--model.weight_decay"),
    **dict.fromkeys(("opt", "optimizer", "optim"), "--model.optimizer"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "sched"), "--model.lr_scheduler"),
    **dict.fromkeys(("batch_size", "bs", "per_device_train_batch_size"), "--data.batch_size"),
    **dict.fromkeys(("workers", "num_workers", "dataloader_num_workers"), "--data.num_workers"),
    **dict.fromkeys(("img_size", "image_size", "input_size", "crop_size"), "--data.transforms.crop_size"),
    **dict.fromkeys(
        ("dataset", "data_set", "data_path", "data_dir"),
        "--config data/NAME.yaml, or --config data/image_folder.yaml --data.dataset.folder FOLDER",
    ),
    **dict.fromkeys(("gpus", "gpu", "devices", "num_gpus", "nproc_per_node"), "--trainer.devices"),
    **dict.fromkeys(("nodes", "num_nodes", "nnodes"), "--trainer.num_nodes"),
    **dict.fromkeys(("device", "accelerator"), "--trainer.accelerator"),
    **dict.fromkeys(("precision", "fp16", "bf16", "amp"), "--trainer.precision bf16-mixed"),
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "--trainer.accumulate_grad_batches"),
    **dict.fromkeys(("gradient_checkpointing", "grad_checkpointing"), "--trainer.callbacks+ GradientCheckpointing"),
    **dict.fromkeys(("chunk_size", "mini_batch_size"), "--trainer.callbacks+ GradientCaching"),
    **dict.fromkeys(("trunk", "backbone", "arch", "model_name", "pretrained"), "--config trunk/NAME.yaml"),
    **dict.fromkeys(("embedding_size", "embedding_dim", "dim", "embed_dim"), "--model.embedding_size"),
    **dict.fromkeys(("loss", "criterion"), "--model.loss"),
    "margin": "--model.loss.margin",
    "miner": "--model.miner",
    "sampler": "--data.sampler",
    "fold": "--data.fold",
    **dict.fromkeys(("seed", "random_seed"), "--seed_everything"),
    **dict.fromkeys(("output_dir", "out_dir", "save_dir", "logdir"), "--output"),
    **dict.fromkeys(("checkpoint", "ckpt", "weights", "load"), "--ckpt_path"),
    **dict.fromkeys(("wandb", "use_wandb"), "--config logger/wandb.yaml"),
}
OF_A_STUDY = {
    **OF_TRAINING,
    **dict.fromkeys(("loss", "criterion", "method", "methods"), "--add-method"),
    **dict.fromkeys(("trials", "num_trials", "n_trials"), "--search.trials"),
    **dict.fromkeys(("workers", "num_workers", "jobs", "n_jobs"), "--executor.workers"),
    **dict.fromkeys(("gpus", "gpu", "devices"), "--executor.devices"),
    **dict.fromkeys(("metric", "metrics"), "--metrics"),
    **dict.fromkeys(("seed", "random_seed"), "--seed"),
    "force": "--recompute METHOD",
}
OF_COMPARE = {
    **OF_A_STUDY,
    **dict.fromkeys(("epochs", "epoch", "num_epochs", "max_epochs", "steps", "max_steps", "time"), "--minutes"),
    **dict.fromkeys(("trunk", "backbone", "arch", "model_name"), "--trunk configs/trunk/NAME.yaml"),
}
OF_A_CHECKPOINT = {
    **dict.fromkeys(("checkpoint", "ckpt", "model", "weights", "load"), "--ckpt_path"),
    **dict.fromkeys(("output_dir", "out", "out_dir", "save_dir"), "--output"),
}
OF_AN_EVALUATION = {
    **OF_A_CHECKPOINT,
    **{name: option for name, option in OF_TRAINING.items() if option in ("--trainer.devices", "--data.num_workers")},
    **dict.fromkeys(("batch_size", "bs", "eval_batch_size"), "--data.eval_batch_size"),
    **dict.fromkeys(("device", "accelerator"), "--trainer.accelerator"),
    **dict.fromkeys(("root", "data_dir", "data_path"), "--data.root"),
    "precision": "--trainer.precision",
}


def option_here(name: str, names: Mapping[str, str]) -> str | None:
    """What to give for an option of another program, with or without its dashes and its section.

    Example:
        >>> option_here("--trainer.num-epochs", OF_TRAINING)
        '--trainer.max_epochs'
    """
    return names.get(name.rpartition(".")[2].lstrip("-").lower().replace("-", "_"))
