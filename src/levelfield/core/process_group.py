"""Leave the process group before the process ends."""

import atexit

import torch
import torch.distributed as dist


def leave_group_at_exit() -> None:
    """Leave the gloo group, if there is one, before the interpreter shuts down.

    Lightning leaves the group at the very end. If a thread of gloo then frees a tensor, the process aborts (signal 6)
    after its work is finished, and the launcher reports a failure.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
        atexit.register(dist.destroy_process_group)


def stay_in_group(random_state: torch.Tensor) -> None:
    """Undo `leave_group_at_exit` for a new stage: leaving waits for other processes, and a failing one must not wait.

    Lightning sets a new seed when it forms a group. Restoring `random_state` draws the same numbers as one process.
    """
    if dist.is_available():
        atexit.unregister(dist.destroy_process_group)
        if dist.is_initialized() and dist.get_world_size() > 1:
            torch.set_rng_state(random_state)
