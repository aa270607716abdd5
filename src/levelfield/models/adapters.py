"""LoRA through peft: a few added weights at the layers of a frozen trunk."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from levelfield.core.errors import UserError, refuse_below
from levelfield.core.files import explain_write_errors, write_atomically
from levelfield.models.weights import first_line

# How peft names an adapter's weights, and the original layer.
WEIGHTS = re.compile(r"\.lora_")
BESIDE = ".base_layer."


class LoRA:
    """The product of two thin matrices, added to a layer's weights; 0 at the start.

        W x + alpha / r B A x,  A of r x in, B of out x r

    Paper: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.

    Args:
        rank: r.
        alpha: the product is multiplied by alpha / r; None takes r, a factor of 1.
        target_modules: how the names of the layers end, e.g. `[qkv]`; None takes all linear layers.
        dropout: share of x that is 0 for the product, in training.

    Attributes:
        spec: import path and arguments that build this adapter again, as plain values.

    Example:
        >>> LoRA(rank=4).alpha
        4
    """

    def __init__(
        self, rank: int = 8, alpha: float | None = None, target_modules: list[str] | None = None, dropout: float = 0.0
    ) -> None:
        refuse_below(1, "model.trunk.adapter", rank=rank)
        given = {"rank": rank, "alpha": alpha, "target_modules": target_modules, "dropout": dropout}
        self.spec = {"class_path": "levelfield.models.LoRA", "init_args": given}
        self.rank, self.alpha = rank, rank if alpha is None else alpha
        self.target_modules, self.dropout = target_modules, dropout


def add_adapter(trunk: Any, adapter: LoRA) -> None:
    """Add an adapter to a trunk, in place, and freeze all other weights. At first the features do not change."""
    try:
        import peft
    except ImportError:
        raise UserError("adapters need peft: pip install 'levelfield[adapters]'") from None
    network = _network(trunk)
    if trunk.adapter is not None:
        raise UserError("--model.trunk.adapter: this trunk has an adapter already; give a new trunk")
    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    ends = adapter.target_modules
    targets: Any = [name for name in layers if f".{name}".endswith(tuple(f".{end}" for end in ends or ()))] or ends
    given: dict[str, Any] = {"r": adapter.rank, "lora_alpha": adapter.alpha, "lora_dropout": adapter.dropout}
    trunk.requires_grad_(False)
    try:
        peft.inject_adapter_in_model(peft.LoraConfig(**given, target_modules=targets or "all-linear"), network)
    except ValueError as error:  # no such layers, or e.g. depthwise convolutions
        known = dict.fromkeys(".".join(name.split(".")[-2:]) for name in layers)
        raise UserError(
            f"--model.trunk.adapter.target_modules {ends or 'all-linear'}: {first_line(error)[:200]}; the layers of "
            f"{trunk.summary().partition(',')[0]} end in {', '.join([*known][:12])}"
        ) from error
    trunk.adapter = adapter
    trunk.init_args["adapter"] = adapter.spec


def merge_adapter(trunk: Any) -> None:
    """Add an adapter's weights to the original weights, in place. Then the trunk has no adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    network = _network(trunk)
    for name, module in [*network.named_modules()]:
        if isinstance(module, BaseTunerLayer):
            module.merge()
            owner, _, last = name.rpartition(".")
            setattr(network.get_submodule(owner), last, module.get_base_layer())
    del network.peft_config
    trunk.adapter = None


def save_adapter(trunk: Any, folder: Path) -> None:
    """Write an adapter as peft does: `adapter_config.json` and `adapter_model.safetensors`.

    `peft.PeftModel.from_pretrained(network, folder)` adds it to the original network of timm or transformers.
    """
    import peft
    from safetensors.torch import save

    network = _network(trunk)
    weights = peft.get_peft_model_state_dict(network, save_embedding_layers=False)
    named = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
    settings = copy.copy(network.peft_config["default"])
    settings.inference_mode, settings.base_model_name_or_path = True, trunk.init_args.get("name")
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        settings.save_pretrained(str(folder))
    write_atomically(folder / "adapter_model.safetensors", save(named))


def own_state(trunk: nn.Module) -> dict[str, Any]:
    """A trunk's state without its adapter, under the names of the trunk without it."""
    return trunk.state_dict() if getattr(trunk, "adapter", None) is None else without_adapter(trunk.state_dict())


def without_adapter(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state without the adapter's weights, under the names of the trunk without it."""
    return {key.replace(BESIDE, "."): value for key, value in state.items() if not WEIGHTS.search(key)}


def beside_adapter(state: Mapping[str, Any], adapter: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inverse of `without_adapter`: a state under the names of the trunk with its adapter."""
    adapted = {WEIGHTS.split(key)[0] for key in adapter if WEIGHTS.search(key)}
    places = ((key, key.rpartition(".")) for key in state)
    return {f"{at}{BESIDE}{last}" if at in adapted else key: state[key] for key, (at, _, last) in places}


def _network(trunk: Any) -> Any:
    """The module of timm or transformers in a trunk, or the user's own."""
    return getattr(trunk, "model", getattr(trunk, "module", trunk))
