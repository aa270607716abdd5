"""Trunks: networks that turn a batch of images into one feature vector each."""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.core.errors import UserError, nearest
from levelfield.models.adapters import LoRA, add_adapter
from levelfield.models.weights import first_line, load_weights, quiet_hub

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
            known = {"text": ", e.g. --config trunk/minilm", "image": ", e.g. --config trunk/efficientnet_lite0"}
            raise UserError(
                f"{type(dataset).__name__} holds {given}s, {type(self).__name__} takes {self.modality}s: "
                f"give another --model.trunk{known.get(str(given), '')}"
            )

    def freeze(self) -> None:
        """Freeze all weights. Raises UserError if the trunk has an adapter."""
        if self.adapter is not None:
            raise UserError("--model.trunk.adapter LoRA freezes the trunk already: leave --model.freeze_trunk true out")
        self.requires_grad_(False)

    def keep_frozen(self, whole: bool, batch_norm: bool) -> None:
        """Put the frozen part back into eval mode during training: the whole trunk, or its batch norm."""
        for part in self.modules() if whole or batch_norm or self.adapter is not None else ():
            if whole or isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.training = False

    def summary(self) -> str:
        """One line: features, where the weights came from, and their licence if it is known."""
        name = type(getattr(self, "module", self)).__name__
        line = f"{name}, {self.num_features:,} features; weights: {self.weights_origin}"
        line += f" ({self.licence})" if self.licence else ""
        if self.adapter is not None:
            weights = sum(weight.numel() for weight in self.parameters() if weight.requires_grad)
            line += f"; {type(self.adapter).__name__} with {weights:,} weights that learn"
        return line


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
        length = getattr(module, "num_features", None) if num_features is None else num_features
        if not isinstance(length, int):
            raise UserError(
                f"{kind.__name__} has no number num_features: set self.num_features in its __init__, or give "
                "ModuleTrunk(module, num_features)"
            )
        self.module, self.num_features = module, length
        self.init_args, self.modality = {}, None
        self.weights_origin = f"as {kind.__module__}.{kind.__qualname__} makes them"
        for name in ("init_args", "modality", "weights_origin", "checkpoint_args", "mean", "std", "licence"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))

    def forward(self, samples: Any) -> Float[Tensor, "batch features"]:
        if isinstance(samples, Tensor):
            samples = samples.contiguous()  # a module may convert images to channels_last itself
        features = self.module(samples)
        if isinstance(features, Tensor) and features.ndim == 2 and features.shape[1] == self.num_features:
            return features
        shape = tuple(getattr(features, "shape", ()))
        found = f"features of shape {shape}" if shape else type(features).__name__
        raise UserError(
            f"{type(self.module).__name__} gives {found}: its forward must return one vector of "
            f"num_features={self.num_features} numbers a sample, in one tensor"
        )


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
        adapter: LoRA | None = None,
    ) -> None:
        super().__init__()
        import timm  # slow to import

        given: dict[str, Any] = {**(arguments or {})}
        self.init_args = {"name": name, "weights": weights, "mean": mean, "std": std}
        self.init_args |= {"arguments": given} if given else {}
        if not timm.is_model(name.split(".")[0]):
            raise UserError(f"no such trunk '{name}'{nearest(name, timm.list_models(), '; see timm.list_models()')}")
        reserved = {"num_classes", "features_only", *inspect.signature(timm.create_model).parameters} - {"kwargs"}
        if refused := sorted(reserved & given.keys()):
            raise UserError(f"--model.trunk.arguments: {refused[0]} is not for the model, or set already: leave it out")
        try:
            with quiet_hub():
                model: Any = timm.create_model(name, pretrained=weights == "pretrained", num_classes=0, **given)
            # What timm says is without what arguments change; to try it takes up to a second.
            length = None if given else getattr(model, "head_hidden_size", None)
            size = given.get("img_size") or model.pretrained_cfg["input_size"][1:]
            self.num_features = length or _num_features(model, size)
        except Exception as error:
            option = f"--model.trunk.arguments {given}: " if given else ""
            remedy = "; with no hub in reach, give --model.trunk.weights a file, package:<import name>, or null"
            raise UserError(
                f"{option}trunk '{name}': {first_line(error)}{remedy if weights == 'pretrained' else ''}"
            ) from error
        self.model, known = model, model.pretrained_cfg
        if weights == "pretrained":
            self.licence = known.get("license")
            self.weights_origin = f"hub {known.get('hf_hub_id') or known.get('url')}"
        else:
            # timm's conversion of other layouts of an architecture's weights, if it has one.
            convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
            self.weights_origin = load_weights(model, weights, convert=convert)
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.ndim == 4:  # convolutions: 1.6 times faster on 2 CPU cores; `model.to` refuses others of rank 5
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
        self.mean, self.std = tuple(mean or known["mean"]), tuple(std or known["std"])
        self.standardise = Standardise(self.mean, self.std)
        if adapter is not None:
            add_adapter(self, adapter)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        try:
            return self.model(self.standardise(images).contiguous(memory_format=torch.channels_last))
        except AssertionError as error:  # patches do not tile this size, or have no positions for it
            raise UserError(
                f"images of {images.shape[2]} x {images.shape[3]} px: {first_line(error)}; give trunk "
                f"'{self.init_args['name']}' its --data.transforms.crop_size, or --model.trunk.arguments "
                "'{dynamic_img_size: true}'"
            ) from error


@torch.no_grad()
def _num_features(model: Any, size: Any) -> int:
    """Length of a feature vector of an image of this side, or of both: from its shape, for nothing is computed."""
    height, width = size if isinstance(size, list | tuple) else (size, size)
    shapes = {name: value.to("meta") for name, value in (*model.named_parameters(), *model.named_buffers())}
    features = torch.func.functional_call(model.eval(), shapes, (torch.zeros(1, 3, height, width, device="meta"),))
    model.train()
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise ValueError(f"an image's features have shape {getattr(features, 'shape', (0,))[1:]}: not a vector")
    return features.shape[1]


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
