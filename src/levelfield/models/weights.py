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


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def load_weights(
    model: nn.Module, source: str | None, url: str = "", sha256: str = "", convert: Callable[..., Any] | None = None
) -> str:
    """Load weights into a trunk's network and return their origin in words, without paths on this machine.

    Args:
        source: None (random weights stay), `pretrained` (the file at `url`), or what `find_weights` takes.
        sha256: checksum of the file at `url`, or the beginning of it.
        convert: converts other layouts that it knows to the network's own, given tensors by name and the network.

    Raises:
        UserError: weights that are not available, damaged, or of another architecture.
    """
    if source is None:
        return "random"
    path = download_weights(url, sha256) if source == "pretrained" else find_weights(source)
    state, target = read_state_dict(path), model.state_dict()
    is_whole = all(name in state and state[name].shape == tensor.shape for name, tensor in target.items())
    if convert is not None and not is_whole:
        # timm prints what it misses. If it cannot convert the weights, they are matched or rejected unchanged.
        with suppress(Exception), redirect_stdout(StringIO()):
            state = convert(dict(state), model)
    model.load_state_dict(match_tensors(state, target, source), strict=False)
    if source == "pretrained":
        return url
    return f"{source if source.startswith('package:') else path.name} (sha256 {file_hash(path)[:16]})"


def download_weights(url: str, sha256: str) -> Path:
    """The file at `url`, downloaded once into torch's hub folder (`TORCH_HOME`), and checked each time."""
    path = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=sha256, progress=False)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"cannot download {url} ({' '.join(str(error).split())}): put the file into {path.parent}, or give "
                "--model.trunk.weights a file, package:<import name> or null"
            ) from error
    if not (digest := file_hash(path)).startswith(sha256):
        raise UserError(
            f"{path} is damaged or another file: its SHA-256 is {digest}, that of {url} begins with {sha256[:16]}; "
            "delete it, or give its path as --model.trunk.weights"
        )
    return path


def find_weights(source: str) -> Path:
    """The weight file of a path, or of `package:<import name>`, an installed package that carries only one."""
    if source.startswith("package:"):
        return in_package(source, lambda path: path.suffix in SUFFIXES, "weight file")
    if not (path := Path(source).expanduser()).is_file():
        raise UserError(f"no weight file '{source}': give a file, 'pretrained' (the hub) or 'package:<import name>'")
    return path


def in_package(source: str, is_wanted: Callable[[Path], bool], what: str) -> Path:
    """The one wanted file in the installed package of `package:<import name>`."""
    package = source.removeprefix("package:")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"'{source}': no installed package '{package}'; install it with pip, or give a path")
    found = [path for root in spec.submodule_search_locations for path in Path(root).rglob("*") if is_wanted(path)]
    if len(found) != 1:
        raise UserError(f"'{source}': expected one {what} in the package, found {len(found)}; give its path")
    return found[0]


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

    try:
        is_safe = path.suffix == ".safetensors"
        content: Any = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        reason = type(error).__name__
        raise UserError(f"cannot read weights from '{path}' ({reason}): is it a complete file?") from error
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
    """
    has_counters = any(name.endswith("num_batches_tracked") for name in state)
    names = [n for n in target if has_counters or not n.endswith("num_batches_tracked")]
    if len(state) < len(names):
        raise UserError(f"weights from '{origin}' have {len(state)} tensors, this trunk needs {len(names)}")
    given = [state[name] for name in names] if state.keys() >= set(names) else state.values()
    matched = {}
    for name, tensor in zip(names, given, strict=False):
        shape = target[name].shape
        matched[name] = tensor[0] if tensor.shape == (1, *shape) else tensor
        if matched[name].shape != shape:
            raise UserError(
                f"weights from '{origin}' are of another architecture: '{name}' is {tuple(shape)} here, "
                f"{tuple(tensor.shape)} there"
            )
    return matched
