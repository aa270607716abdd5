"""Store a frozen trunk once for many checkpoints, which contain only trained weights and the hash of their trunk.

The same holds for the trunk below an adapter. A study stores it as `trunks/<SHA-256 of its content>.pt` in its folder,
for the checkpoints in all folders below.
"""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.models.adapters import WEIGHTS, beside_adapter, own_state, without_adapter
from levelfield.models.weights import content_hash

TRUNKS = "trunks"
PREFIX = "trunk."
KEY = "frozen_trunk"  # in a checkpoint's own part


def trunk_hash(trunk: nn.Module) -> str:
    """SHA-256 of a trunk's state, computed again only if a tensor has changed."""
    has_adapter = getattr(trunk, "adapter", None) is not None
    tensors = [each for each in (*trunk.parameters(), *trunk.buffers()) if not (has_adapter and each.requires_grad)]
    seen = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    before = trunk.__dict__.get("_hashed")
    if before is None or before[0] != seen:
        before = trunk.__dict__["_hashed"] = seen, content_hash(own_state(trunk))
    return before[1]


def without_trunk(checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The checkpoint of a learner without its frozen trunk, which is stored in `folder`.

    Args:
        folder: `trunks` of a study; created if missing. Several processes may store the same trunk.
    """
    name = checkpoint["levelfield"].get(KEY)
    if name is None:
        return checkpoint
    state = checkpoint["state_dict"]
    whole = {key: value for key, value in state.items() if key.startswith(PREFIX)}
    trunk = {key.removeprefix(PREFIX): value for key, value in whole.items()}
    if any(map(WEIGHTS.search, whole)):
        trunk = without_adapter(trunk)
    file = folder / f"{name}.pt"
    if not file.exists():
        buffer = io.BytesIO()
        on_cpu = {key: value.detach().cpu() if isinstance(value, Tensor) else value for key, value in trunk.items()}
        torch.save(on_cpu, buffer)
        write_atomically(file, buffer.getvalue())
    kept = {key: value for key, value in state.items() if key not in whole or WEIGHTS.search(key)}
    return {**checkpoint, "state_dict": kept}


def with_trunk(checkpoint: dict[str, Any], path: str | Path, given: nn.Module | None = None) -> dict[str, Any]:
    """The checkpoint with its trunk, which may be in the study's folder.

    Args:
        given: a trunk that may be the same; then its weights are used without a file.

    Raises:
        UserError: the trunk is missing, or its file has changed.
    """
    name = checkpoint.get("levelfield", {}).get(KEY)
    of_trunk = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith(PREFIX)}
    if name is None or not all(map(WEIGHTS.search, of_trunk)):
        return checkpoint
    trunk = own_state(given) if given is not None and trunk_hash(given) == name else _stored(name, path)
    named = beside_adapter({f"{PREFIX}{key}": value for key, value in trunk.items()}, of_trunk)
    return {**checkpoint, "state_dict": {**named, **checkpoint["state_dict"]}}


def _stored(name: Any, path: str | Path) -> Mapping[str, Any]:
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{64}", name):
        raise UserError(f"'{path}' has no trunk and names no frozen one: is it a complete file?")
    places = [folder / TRUNKS / f"{name}.pt" for folder in Path(path).resolve().parents]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UserError(f"'{path}' needs {TRUNKS}/{name}.pt of its study, in no folder above: copy it to {places[0]}")
    try:
        trunk = torch.load(file, map_location="cpu", weights_only=True)
        whole = content_hash(trunk) == name
    except Exception:  # a damaged file can raise anything
        whole = False
    if not whole:
        raise UserError(f"{file} has changed since it was written: restore it from a copy of the study's folder")
    return trunk
