"""The folder of a text model in the hub's format: where it is, and what is in it."""

import importlib.util
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.models.weights import quiet_hub

# The weights in one file, or in parts that end with their number, as `-00001-of-00003`.
WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
HUB_FILES = ["README.md", "config.json", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt"]
# The types of transformers models that a text trunk may have. None reads files, downloads or runs other code.
MODEL_TYPES = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "gemma3_text", "gpt2", "llama"),
    *("mistral", "modernbert", "mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta"),
)
# Entries that hold words, lists of them, or the numbers of rotary positions.
IN_WORDS = frozenset(
    {"activation", "activation_function", "classifier_activation", "classifier_pooling", "hidden_act"}
    | {"hidden_activation", "layer_types", "norm_rel_ebd", "pooler_hidden_act", "pos_att_type"}
    | {"position_embedding_type", "rope_parameters", "rope_scaling"}
)
UNUSED = frozenset({"model_type", "num_labels"})  # `num_labels` makes a table of names
# Parts of the names of entries that make transformers download code or weights while it builds a model.
FETCHING = ("auto_map", "attn_implementation", "experts_implementation", "quantization", "backbone", "timm", "kernel")
WORD = re.compile(r"[\w.|+-]{1,64}")
MOST, MOST_LAYERS = 2**31, 1024
REMEDY = "give --model.trunk.name a folder with config.json and tokenizer.json, or package:<import name>"


def model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, the one in a package, or the one in the hub's cache.

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
        with suppress(LocalEntryNotFoundError):
            kept = Path(snapshot_download(name, allow_patterns="config.json", local_files_only=True))
            if _has_tokenizer(kept) and _weights_in(kept):  # another program may have fetched less
                return kept
        with quiet_hub():
            for weights in (WEIGHT_FILES[:2], WEIGHT_FILES[2:]):
                folder = Path(snapshot_download(name, allow_patterns=[*HUB_FILES, *weights]))
                if _weights_in(folder):
                    break
            return folder
    except Exception as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"trunk '{name}' is no folder, and the hub gives none: {problem}; {REMEDY}") from None


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json"))


def _weights_in(folder: Path) -> list[Path]:
    """The weight files of the first kind that is complete; empty without one."""
    for kind in WEIGHT_FILES:
        files = sorted(folder.glob(kind))
        if files and ("*" not in kind or files[0].stem.endswith(f"-of-{len(files):05d}")):
            return files
    return []


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no {file}: {REMEDY}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"cannot read {file} ({error}): fetch it again") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{file} is not the configuration of a model of transformers: it has no model_type")
    return config


def architecture(config: Any, origin: str) -> dict[str, Any]:
    """The entries of a text model's configuration that describe its network.

    A configuration may come from a stranger, in a checkpoint or a `config.json`, and transformers downloads or runs
    what some entries name. So only known types are built, from numbers and from words that name no file or code.

    Raises:
        UserError: no configuration, an unknown type, or an entry that makes transformers download code or weights.
    """
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{origin} does not hold the configuration of its trunk, which needs a model_type")
    if config["model_type"] not in MODEL_TYPES:
        raise UserError(
            f"{origin}: model_type {str(config['model_type'])[:80]!r} is none of those that a text trunk may have: "
            f"{', '.join(MODEL_TYPES)}"
        )
    kept = {"model_type": config["model_type"]}
    for key, value in config.items():
        if any(word in str(key) for word in FETCHING) and value not in (None, False):
            raise UserError(f"{origin}: '{str(key)[:80]}' in the configuration of the trunk may fetch code or weights")
        if key not in UNUSED and (_is_number(value) or (key in IN_WORDS and _is_plain(value))):
            if isinstance(value, int) and abs(value) > (MOST_LAYERS if "layer" in str(key) else MOST):
                raise UserError(f"{origin}: '{str(key)[:80]}' in the configuration of the trunk is too large")
            kept[key] = value
    return kept


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _is_plain(value: Any) -> bool:
    """Whether a value is made of numbers and words."""
    if isinstance(value, dict):
        return len(value) <= MOST_LAYERS and all(isinstance(key, str) for key in value) and _is_plain([*value.values()])
    if isinstance(value, list | tuple):
        return len(value) <= MOST_LAYERS and all(_is_plain(part) for part in value)
    return _is_number(value) or (isinstance(value, str) and WORD.fullmatch(value) is not None)


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


def weights_beside(folder: Path) -> list[Path]:
    """The weight file next to a configuration, or its parts.

    Raises:
        UserError: there are none, or a part is missing.
    """
    if not (files := _weights_in(folder)):
        raise UserError(
            f"no weights in {folder}: put {WEIGHT_FILES[0]} there, or give --model.trunk.weights a file or null"
        )
    return files


def read_licence(folder: Path) -> str | None:
    """The licence in the header of the model card, if it has one."""
    card = folder / "README.md"
    found = re.search(r"^license: *(\S+)$", card.read_text(encoding="utf-8"), re.MULTILINE) if card.is_file() else None
    return found.group(1) if found else None
