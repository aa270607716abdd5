"""Trunks: networks that turn a batch of images into one feature vector each."""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.core.errors import UserError, nearest
from levelfield.core.processes import quick_imports
from levelfield.models.weights import load_weights, quiet_hub

if TYPE_CHECKING:
    from levelfield.models.adapters import LoRA

# Arguments of timm's models whose values are names, e.g. of a layer or of a pooling.
NAMED_BY_WORDS = frozenset(
    {"act_layer", "attn_layer", "fc_norm", "global_pool", "mlp_layer", "norm_layer", "pool_type", "pos_embed"}
    | {"rope_type", "stem_type", "weight_init"}
)
ModelArgument = bool | int | float | str | list[int] | None


class Trunk(nn.Module, ABC):
    """A feature extractor without its classification head.

    Attributes:
        num_features: length F of a feature vector.
        init_args: the arguments that build this trunk again, as plain values (checkpoints store them).
        mean: per-channel mean of the images in [0, 1], RGB, that the weights were trained with; empty for texts.
        std: likewise.
        licence: of the pretrained weights; None if unknown.
        weights_origin: where the weights came from, in words (checkpoints store them).
        modality: what the trunk takes, as in data sets; None if unknown.
        checkpoint_args: further arguments that build the trunk without the files that it was made from.
        adapter: the part that trains while the trunk's weights are frozen (`levelfield.models.adapters`); usually None.
    """

    num_features: int
    init_args: dict[str, Any]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    licence: str | None = None
    weights_origin: str = "random"
    modality: Literal["image", "text"] | None = "image"
    checkpoint_args: Mapping[str, Any] = MappingProxyType({})
    adapter: Any = None

    @abstractmethod
    def forward(self, samples: Any) -> Float[Tensor, "batch features"]:
        """Features of a batch."""

    def check_takes(self, dataset: object) -> None:
        """Raise UserError for a data set of another modality. A data set without `modality` is accepted."""
        given = getattr(dataset, "modality", self.modality)
        if self.modality is not None and given != self.modality:
            known = {"text": "configs/trunk/minilm.yaml", "image": "configs/trunk/efficientnet_lite0.yaml"}
            raise UserError(
                f"{type(dataset).__name__} holds {given}s, {type(self).__name__} takes {self.modality}s: "
                f"give another --model.trunk{f', e.g. --config {known[given]}' if given in known else ''}"
            )

    def freeze(self) -> None:
        """Freeze all weights.

        Raises:
            UserError: the trunk has an adapter.
        """
        if self.adapter is not None:
            raise UserError(
                "--model.trunk.adapter LoRA learns beside the weights of a trunk, which stay as they are: leave "
                "--model.freeze_trunk true out"
            )
        self.requires_grad_(False)

    def keep_frozen(self, whole: bool, batch_norm: bool) -> None:
        """Put the frozen part back into eval mode during training: the whole trunk, or its batch norm."""
        for part in self.modules() if whole or batch_norm or self.adapter is not None else ():
            if whole or isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.training = False

    def _check_features(self, features: Any, name: str) -> Float[Tensor, "batch features"]:
        """The features, if they are one vector of `num_features` numbers a sample.

        Raises:
            UserError: another shape or type, with the trunk's name.
        """
        if isinstance(features, Tensor) and features.ndim == 2 and features.shape[1] == self.num_features:
            return features
        kind = f"features of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"{name} gives {kind}: its forward must return one vector of num_features={self.num_features} numbers a "
            "sample, in one tensor"
        )

    def _with(self, adapter: "LoRA | None") -> None:
        """Add the adapter, if there is one, to this trunk after its weights are loaded."""
        if adapter is not None:
            from levelfield.models.adapters import add_adapter

            add_adapter(self, adapter)
            self.init_args["adapter"] = adapter.spec

    def summary(self) -> str:
        """One line: features, where the weights came from, and their licence if it is known."""
        licence = f" ({self.licence})" if self.licence else ""
        adapter = ""
        if self.adapter is not None:
            weights = sum(weight.numel() for weight in self.parameters() if weight.requires_grad)
            adapter = f"; {type(self.adapter).__name__} with {weights:,} weights that learn"
        return (
            f"{type(self).__name__}, {self.num_features:,} features; weights: {self.weights_origin}{licence}{adapter}"
        )


class ModuleTrunk(Trunk):
    """Any module that turns samples into feature vectors, as a trunk.

    Args:
        module: gets images from 0 to 1, or a list of texts. This trunk takes over attributes of a `Trunk` that it has.
        num_features: length F of a feature vector; None takes the module's attribute of that name.

    Raises:
        UserError: the length of a feature vector is unknown, or the module gives features of another shape.
    """

    def __init__(self, module: nn.Module, num_features: int | None = None) -> None:
        super().__init__()
        kind = type(module)
        if num_features is None:
            num_features = getattr(module, "num_features", None)
        if not isinstance(num_features, int):
            raise UserError(
                f"{kind.__name__} has no number num_features: set self.num_features in its __init__, or give "
                "ModuleTrunk(module, num_features)"
            )
        self.module = module
        self.init_args = getattr(module, "init_args", {})
        self.num_features = num_features
        self.modality = getattr(module, "modality", None)
        self.weights_origin = getattr(module, "weights_origin", f"as {kind.__module__}.{kind.__qualname__} makes them")
        self.checkpoint_args = getattr(module, "checkpoint_args", {})
        self.mean, self.std = getattr(module, "mean", ()), getattr(module, "std", ())
        self.licence = getattr(module, "licence", None)

    def forward(self, samples: Any) -> Float[Tensor, "batch features"]:
        if isinstance(samples, Tensor):
            samples = samples.contiguous()  # a module may convert images to channels_last itself
        return self._check_features(self.module(samples), type(self.module).__name__)

    def summary(self) -> str:
        return super().summary().replace(type(self).__name__, type(self.module).__name__, 1)


def as_trunk(module: nn.Module) -> Trunk:
    """The module if it is a `Trunk`, else a `ModuleTrunk` of it."""
    return module if isinstance(module, Trunk) else ModuleTrunk(module)


class TimmTrunk(Trunk):
    """Any image model of timm by name, pooled, without its head. Images are in [0, 1]; the trunk standardises them.

    Args:
        name: a model that `timm.list_models()` lists, e.g. `resnet50`, `tf_efficientnet_lite0`.
        weights: `pretrained` (downloaded from the hub), a file (timm's, or one of the layouts that timm converts into
            its own: DINOv2's, DINOv3's, CLIP's and ConvNeXt's authors'), `package:<import name>` (an installed package
            that carries one weight file), or None for random weights.
        mean: per-channel mean of the images in [0, 1]; None takes the model's own.
        std: likewise.
        arguments: further arguments of the model itself, e.g. `{"drop_path_rate": 0.1}`, `{"img_size": 224}`, or
            `{"global_pool": "avgmax"}`: half the sum of average and maximum, which Proxy Anchor's trunks add (Kim et
            al. 2020, arXiv:2003.13911; a factor of 2 changes no direction).
        adapter: trains in the trunk, whose own weights are frozen (docs/trunks.md).

    Raises:
        UserError: no such model (with the nearest name), an argument that it does not take or that this class sets
            itself, or weights that are not available.

    Example:
        >>> trunk = TimmTrunk("resnet10t", weights=None)
        >>> trunk(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 512])
    """

    def __init__(
        self,
        name: str,
        weights: str | None = "pretrained",
        mean: list[float] | None = None,
        std: list[float] | None = None,
        arguments: dict[str, ModelArgument] | None = None,
        adapter: "LoRA | None" = None,
    ) -> None:
        super().__init__()
        with quick_imports():
            import timm

        self.init_args = {"name": name, "weights": weights, "mean": mean, "std": std}
        if arguments:
            self.init_args["arguments"] = arguments
        if not timm.is_model(name.split(".")[0]):
            hint = nearest(name, timm.list_models(), "; timm.list_models() lists them")
            raise UserError(f"no such trunk '{name}'{hint}")
        given: dict[str, Any] = dict(arguments or {})
        reserved = {"num_classes", "features_only", *inspect.signature(timm.create_model).parameters} - {"kwargs"}
        if refused := sorted(reserved & set(given)):
            raise UserError(f"--model.trunk.arguments: {refused[0]} is not for the model, or set already: leave it out")
        try:
            with quiet_hub():
                self.model = timm.create_model(name, pretrained=weights == "pretrained", num_classes=0, **given)
        except Exception as error:
            if given and isinstance(error, TypeError):
                line = f"'{name}' does not take them: {_first_line(error)}"
                raise UserError(f"--model.trunk.arguments {given}: {line}") from error
            raise UserError(
                f"trunk '{name}': {_first_line(error)}; with no hub in reach, give --model.trunk.weights a file, "
                "package:<import name>, or null"
            ) from error
        model: Any = self.model
        known = model.pretrained_cfg
        if weights == "pretrained":
            self.licence = known.get("license")
            self.weights_origin = f"hub {known.get('hf_hub_id') or known.get('url')}"
        else:
            self.weights_origin = load_weights(self.model, weights, convert=_conversion(model))
        # timm's `num_features` leaves out layers of the head, and `head_hidden_size` leaves out what arguments change.
        length = None if given else getattr(model, "head_hidden_size", None)
        self.num_features: int = length or _features_given(model, given)
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.ndim == 4:  # convolutions: 1.6 times faster on 2 CPU cores; `model.to` refuses others of rank 5
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
        self.mean, self.std = tuple(mean or known["mean"]), tuple(std or known["std"])
        self.standardise = Standardise(self.mean, self.std)
        self._with(adapter)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        self._refuse_size(*images.shape[2:])
        features = self.model(self.standardise(images).contiguous(memory_format=torch.channels_last))
        return self._check_features(features, f"trunk '{self.init_args['name']}'")

    def _refuse_size(self, height: int, width: int) -> None:
        """Raise UserError for a size that patches do not tile, or that the position embeddings do not have."""
        patches: Any = getattr(self.model, "patch_embed", None)
        is_padded = getattr(patches, "dynamic_img_pad", False)
        if is_padded or not getattr(patches, "img_size", None) or not hasattr(patches, "strict_img_size"):
            return
        found, name, side = f"images of {height} x {width} px", self.init_args["name"], patches.patch_size[0]
        if patches.strict_img_size and (height, width) != tuple(patches.img_size):
            raise UserError(
                f"{found}: trunk '{name}' takes {patches.img_size[0]}; give --data.transforms.crop_size "
                f"{patches.img_size[0]}, or --model.trunk.arguments '{{dynamic_img_size: true}}' and a multiple of "
                f"{side}"
            )
        if height % side or width % side:
            raise UserError(
                f"{found}: trunk '{name}' cuts images into patches of {side} px; give --data.transforms.crop_size "
                f"{max(side, height // side * side)}, or another multiple of {side}"
            )


def check_timm_arguments(arguments: Any, origin: str) -> None:
    """Check that a checkpoint's arguments of an image model are numbers, or words that name a layer.

    Raises:
        UserError: another argument, which timm might use as a file name.
    """
    for name, value in arguments.items():
        numbers = value if isinstance(value, list) else [value]
        in_words = name in NAMED_BY_WORDS and isinstance(value, str) and value.isidentifier()
        if not in_words and not all(part is None or isinstance(part, bool | int | float) for part in numbers):
            raise UserError(f"{origin} has the argument {str(name)[:80]!r} for its trunk, which may name a file")


@torch.no_grad()
def _features_given(model: Any, arguments: dict[str, Any]) -> int:
    """Length of a feature vector with these arguments, from shapes only: nothing is computed.

    Raises:
        UserError: the features are not a vector, or the network does not take images of that size.
    """
    size = arguments.get("img_size") or model.pretrained_cfg["input_size"][1:]
    height, width = size if isinstance(size, list | tuple) else (size, size)
    shapes = {name: value.to("meta") for name, value in (*model.named_parameters(), *model.named_buffers())}
    image = torch.zeros(1, 3, height, width, device="meta")
    try:
        features = torch.func.functional_call(model.eval(), shapes, (image,))
    except AssertionError as error:
        raise UserError(f"--model.trunk.arguments {arguments}: {_first_line(error)}") from error
    model.train()
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) != 2:
        raise UserError(
            f"--model.trunk.arguments {arguments}: an image's features have shape {shape[1:]}; a trunk gives a vector"
        )
    return shape[1]


def _conversion(model: nn.Module) -> Callable[[dict[str, Tensor]], dict[str, Tensor]] | None:
    """timm's conversion of other layouts of an architecture's weights; None if it has none."""
    known = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return None if known is None else lambda state: known(dict(state), model)


class Standardise(nn.Module):
    """(images - mean) / std for each channel; bytes, which loaders for a GPU give, become floats."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        floats = images.to(self.mean.dtype) * (1 / 255) if images.dtype == torch.uint8 else images
        return (floats - self.mean) / self.std


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
