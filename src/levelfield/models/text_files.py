"""The folder of a text model in the hub's format: where it is, and what is in it."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.models.weights import first_line, in_package, quiet_hub

# The weights in one file, or in parts that end with their number, as `-00001-of-00003`.
WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
HUB_FILES = ["README.md", "config.json", "tokenizer.json"]
# Numbers and words, also in lists and mappings, as JSON: none names a file or an address.
WORDS = re.compile(r'(?:[\w\s.+\-{}\[\],:]|"[\w.|+-]{0,64}"){1,20000}', re.ASCII)
# The types of transformers models that a text trunk may have. None reads files, downloads or runs other code.
MODEL_TYPES = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "gemma3_text", "gpt2", "llama"),
    *("mistral", "modernbert", "mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta"),
)
# Entries that hold words, lists of them, or the numbers of rotary positions.
IN_WORDS = frozenset(
    {"activation", "activation_function", "classifier_activation", "classifier_pooling", "hidden_act"}
    | {"hidden_activation", "layer_types", "model_type", "norm_rel_ebd", "pooler_hidden_act", "pos_att_type"}
    | {"position_embedding_type", "rope_parameters", "rope_scaling"}
)
# Parts of the names of entries that make transformers download code or weights while it builds a model.
FETCHING = ("auto_map", "attn_implementation", "experts_implementation", "quantization", "backbone", "timm", "kernel")
MAX_NUMBER, MAX_LAYERS = 2**31, 1024
REMEDY = "give --model.trunk.name a folder with config.json and tokenizer.json, or package:<import name>"


def model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, the one in a package, or the one in the hub's cache."""
    if name.startswith("package:"):
        return in_package(name, lambda file: file.name == "tokenizer.json", "tokenizer.json").parent
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, allow_patterns="config.json", local_files_only=True))
            if (folder / "tokenizer.json").is_file() and weights_in(folder):  # another program may have fetched less
                return folder
        with quiet_hub():
            folder = Path(snapshot_download(name, allow_patterns=[*HUB_FILES, *WEIGHT_FILES[:2]]))
            return folder if weights_in(folder) else Path(snapshot_download(name, allow_patterns=[*WEIGHT_FILES[2:]]))
    except Exception as error:
        raise UserError(f"trunk '{name}' is no folder, and the hub gives none: {first_line(error)}; {REMEDY}") from None


def weights_in(folder: Path) -> list[Path]:
    """The weight file of a model, or its parts; empty without one, or without all parts."""
    for kind in WEIGHT_FILES:
        files = sorted(folder.glob(kind))
        if files and ("*" not in kind or files[0].stem.endswith(f"-of-{len(files):05d}")):
            return files
    return []


def read_file(file: Path, parse: Callable[[str], Any] = str) -> Any:
    """The content of `config.json` or `tokenizer.json`; raises UserError without one."""
    try:
        return parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no {file}: {REMEDY}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"cannot read {file} ({error}): fetch it again") from None


def architecture(config: Any, origin: str) -> dict[str, Any]:
    """The entries of a text model's configuration that describe its network.

    A configuration may come from a stranger, in a checkpoint or a `config.json`, and transformers downloads or runs
    what some entries name. So only known types are built, from numbers and from words that name no file or code.

    Raises:
        UserError: no configuration, an unknown type, or an entry that makes transformers download code or weights.
    """
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{origin}: its configuration is not that of a model of transformers: it has no model_type")
    if config["model_type"] not in MODEL_TYPES:
        raise UserError(
            f"{origin}: model_type {str(config['model_type'])[:80]!r} is none of those that a text trunk may have: "
            f"{', '.join(MODEL_TYPES)}"
        )
    kept = {}
    for key, value in config.items():
        if any(word in str(key) for word in FETCHING) and value not in (None, False):
            raise UserError(f"{origin}: '{str(key)[:80]}' in the configuration of the trunk may fetch code or weights")
        if isinstance(value, int) and abs(value) > (MAX_LAYERS if "layer" in str(key) else MAX_NUMBER):
            raise UserError(f"{origin}: '{str(key)[:80]}' in the configuration of the trunk is too large")
        is_number = value is None or isinstance(value, bool | int | float)
        if is_number or (key in IN_WORDS and WORDS.fullmatch(json.dumps(value, default=str))):
            kept[key] = value
    kept.pop("num_labels", None)  # it makes a table of names
    return kept


def read_licence(folder: Path) -> str | None:
    """The licence in the header of the model card, if it has one."""
    card = folder / "README.md"
    found = re.search(r"(?m)^license: *(\S+)$", card.read_text(encoding="utf-8")) if card.is_file() else None
    return found and found[1]
