"""Hide expected messages of Lightning."""

import logging
import warnings

# Messages about intended choices of levelfield, or about things that the user cannot change.
EXPECTED_NOTICES = (
    ".*does not have many workers.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*The dirpath has changed from.*",  # a fit from a checkpoint writes to its own folder
    ".*is an instance of `nn.Module` and is already saved during checkpointing.*",
    ".*Experiment logs directory .* exists and is not empty.*",
    ".*You are using `torch.load` with `weights_only=False`.*",
    ".*It is recommended to use .*sync_dist=True.*",
    ".*The number of training batches .* is smaller than the logging interval.*",
    ".*in eval mode at the start of training.*",  # frozen batch norm
    ".*WeightAveraging callback with a model that overrides the configure_model.*",
    ".*LeafSpec.* is deprecated.*",
    ".*GPU available but not used.*",  # `accelerator: cpu` is intended
    ".*`srun` command is available on your system but is not used.*",  # not every process on a SLURM machine is a job
)


def silence_expected_notices() -> None:
    for notice in EXPECTED_NOTICES:
        warnings.filterwarnings("ignore", notice)
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for package in ("callbacks", "profilers"):  # a user asks for these
        logging.getLogger(f"lightning.pytorch.{package}").setLevel(logging.INFO)
