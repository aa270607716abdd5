"""Processes that have trained together part before they end."""

import atexit

import torch
import torch.distributed as dist


def leave_group_at_exit() -> None:
    """Let this process leave its gloo group, if it is in one, while the interpreter is still whole.

    Lightning leaves that to the end of the process, where gloo's threads may still hold a tensor: one that they free
    then aborts the process (signal 6) after its work is done, and the launcher says that it failed.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
        atexit.register(dist.destroy_process_group)


def stay_in_group(random_state: torch.Tensor) -> None:
    """Take it back, for a stage that begins: leaving waits for the others, and one that fails must not.

    Lightning seeds anew where it forms a group; from `random_state` on, it draws what one process would.
    """
    if dist.is_available():
        atexit.unregister(dist.destroy_process_group)
        if dist.is_initialized() and dist.get_world_size() > 1:
            torch.set_rng_state(random_state)
