"""The folder of a text model, as the hub has them: where it lies, and what is in it."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.models.weights import quiet_hub

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
HUB_FILES = ["README.md", "config.json", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt", WEIGHT_FILES[0]]
REMEDY = "give --model.trunk.name a folder with config.json and tokenizer.json, or package:<import name>"


def model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, the one in a package, or the hub's in its cache on this machine.

    Raises:
        UserError: there is no such folder, package or model.
    """
    if name.startswith("package:"):
        package = name.removeprefix("package:")
        spec = importlib.util.find_spec(package)
        roots = [Path(root) for root in (spec.submodule_search_locations if spec else None) or ()]
        if not roots:
            raise UserError(f"trunk '{name}': no installed package '{package}'; install it with pip, or {REMEDY}")
        found = sorted(p.parent for root in roots for p in root.rglob("config.json") if _has_tokenizer(p.parent))
        if len(found) != 1:
            raise UserError(f"trunk '{name}': expected one folder of a text model in the package, found {len(found)}")
        return found[0]
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        try:
            return Path(snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
        except LocalEntryNotFoundError:
            with quiet_hub():
                return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"trunk '{name}' is no folder, and the hub gives none: {problem}; {REMEDY}") from None


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no {file}: {REMEDY}") from None
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read {file} ({error}): fetch it again") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{file} is not the configuration of a model of transformers: it has no model_type")
    return config


# Entries of a configuration by which transformers fetches code or weights while it makes a model.
FETCHING = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config", "backbone", "timm")


def check_architecture(config: Any, origin: str) -> None:
    """Raises unless an architecture in a checkpoint is all there, and makes transformers fetch nothing.

    Raises:
        UserError: no configuration, or an entry that names something to fetch.
    """
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"'{origin}' does not hold the configuration of its trunk: it is not loaded")
    entries: list[Any] = [config]
    while entries:
        entry = entries.pop()
        for key, value in entry.items() if isinstance(entry, dict) else enumerate(entry):
            if any(word in str(key) for word in FETCHING) and value not in (None, False, "eager", "sdpa"):
                raise UserError(f"'{origin}' has '{key}' in the configuration of its trunk, which may fetch code")
            if isinstance(value, dict | list | tuple):
                entries.append(value)


def read_tokenizer(folder: Path) -> str:
    if (folder / "tokenizer.json").is_file():
        return (folder / "tokenizer.json").read_text(encoding="utf-8")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return tokenizer.backend_tokenizer.to_str()
    except Exception as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(f"no tokenizer in {folder} ({problem}): {REMEDY}") from None


def weights_beside(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f"no weights in {folder}: put {WEIGHT_FILES[0]} there, or give --model.trunk.weights a file or null"
    )


def read_licence(folder: Path) -> str | None:
    """What the first lines of the model card say."""
    card = folder / "README.md"
    found = re.search(r"^license: *(\S+)$", card.read_text(encoding="utf-8"), re.MULTILINE) if card.is_file() else None
    return found.group(1) if found else None
