"""Export a checkpoint for other programs (torch.export, ONNX, safetensors) and compare each file with the learner."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, write_atomically, write_json
from levelfield.core.seeds import seed_of
from levelfield.data.transforms import ImageTransforms, as_floats, stacked
from levelfield.models import TimmTrunk
from levelfield.models.adapters import merge_adapter, save_adapter
from levelfield.use.card import write_card
from levelfield.use.encoder import Encoder
from levelfield.use.programs import EmbedImages, EmbedTexts, check_can_be_exported
from levelfield.use.samples import samples_of

# The largest allowed difference of a coordinate of unit vectors; ONNX kernels differ by 1e-4.
BOUND = 5e-4
COMPARED = 10
NEEDED = ("onnx", "onnxscript", "onnxruntime")
# Texts to compare if no data are given.
SENTENCES = (
    "Where is my card?",
    "It has not come yet, and I ordered it two weeks ago.",
    "Thanks",
    "What is the exchange rate for today?",
    "I would like to close my account, and to have what is left on it sent to another one.",
    "My PIN is blocked; how can I unblock it?",
    "Hello, can you help me?",
    "Is there a fee for using the card abroad?",
    "A transfer was declined twice.",
    "Why was I charged again?",
)


class Compared(NamedTuple):
    """The difference between an exported file and the learner.

    Attributes:
        file: name of the file.
        difference: the largest difference of a coordinate over all samples.
        bound: the allowed difference.
    """

    file: str
    difference: float
    bound: float


class Program(NamedTuple):
    """A module, its example arguments, and their dynamic dimensions."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    dynamic: tuple[dict[int, Any], ...]


def export(encoder: Encoder, output: Path, data: Any = None) -> list[Compared]:
    """Write a checkpoint into a folder, in formats of other programs; returns their differences from the learner.

    - `embed.pt2` (torch.export) and `embed.onnx`: `images` (B, 3, C, C) float32 from 0 to 1, or `input_ids` and
      `attention_mask` (B, T), to `embeddings` (B, D); it includes the standardization of images.
    - `tokenizer.json` of texts.
    - `trunk.safetensors`, which `timm.create_model(..., checkpoint_path=...)` reads, and `embedder.safetensors`.
    - `adapter`, a folder for peft, if an adapter was trained; the other files have it merged into the trunk.
    - `export.json`: inputs, with the size and interpolation of crops, outputs and differences.

    Args:
        encoder: on the CPU.
        output: a new folder.
        data: its first ten samples are compared; None takes random images, or sentences.

    Raises:
        UserError: a package is missing, the learner cannot be exported, the folder exists, or a file differs by more
            than 5e-4. Then nothing is written.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {', '.join(missing)}: run pip install 'levelfield[export]'")
    check_can_be_exported(encoder.learners, encoder.origin)
    if output.exists():
        raise UserError(f"--output {output} already exists: give a new folder")
    with explain_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        _adapters(encoder, made)
        found = _texts(encoder, made, data) if encoder.modality == "text" else _images(encoder, made, data)
        found += _weights(encoder, made)
        write_card(made, encoder.paths, encoder.checkpoints, encoder.modality)
        for each in found:
            if not each.difference <= each.bound:
                raise UserError(
                    f"{each.file} differs from the learner by {each.difference:.1e}, more than {each.bound:.0e}: "
                    f"'{encoder.origin}' was not exported"
                )
        os.chmod(made, 0o755)
        with explain_write_errors(output):
            os.replace(made, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _adapters(encoder: Encoder, folder: Path) -> None:
    """Write adapters for peft, and merge them into the learners."""
    for number, learner in enumerate(encoder.learners):
        if learner.trunk.adapter is not None:
            save_adapter(learner.trunk, folder / (f"adapter_{number}" if len(encoder.learners) > 1 else "adapter"))
            merge_adapter(learner.trunk)


def _images(encoder: Encoder, folder: Path, data: Any) -> list[Compared]:
    transforms = encoder.transforms
    if transforms is None:
        raise UserError(f"'{encoder.origin}' was trained on your own loaders and has no transforms to export")
    if not isinstance(transforms, ImageTransforms):
        raise UserError(
            f"'{encoder.origin}' has your own transforms, which export cannot write: train with ImageTransforms"
        )
    pictures = _pictures(encoder, data)
    crops = as_floats(stacked([*map(transforms.evaluate(), pictures)])).contiguous()
    embed = Program(EmbedImages(encoder.learners), (crops,), ("images",), ({0: torch.export.Dim("batch")},))
    with torch.inference_mode():
        expected = encoder.module(crops)
    found = [Compared(file, _difference(run(crops), expected), BOUND) for file, run in _written(embed, folder)]
    sizes = {"resize": transforms.eval_side, "square": transforms.square, "crop": transforms.crop_size}
    trunks = [learner.trunk for learner in encoder.learners]
    inside = {"standardized_inside": [{"mean": trunk.mean, "std": trunk.std} for trunk in trunks]}
    shape = {"images": "(B, 3, C, C) float32, 0 to 1", **sizes, "interpolation": transforms.interpolation}
    _describe(encoder, folder, found, {**shape, **inside})
    return found


def _texts(encoder: Encoder, folder: Path, data: Any) -> list[Compared]:
    trunk: Any = encoder.learners[0].trunk
    tokenizer, padding = trunk.tokenizer, trunk.model.config.pad_token_id or 0
    texts = SENTENCES if data is None else samples_of(data, "text", encoder.origin).names[:COMPARED]
    input_ids, mask = trunk.padded([trunk.token_ids(text) for text in texts])
    sides = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=trunk.max_length)}
    inputs = ("input_ids", "attention_mask")
    embed = Program(EmbedTexts(encoder.learners), (input_ids, mask), inputs, (sides, sides))
    with torch.inference_mode():
        expected = encoder.module(list(texts))
    written = _written(embed, folder)
    found = [Compared(file, _difference(run(input_ids, mask), expected), BOUND) for file, run in written]
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"pad_token_id": padding, "max_length": trunk.max_length, "tokenizer": "tokenizer.json"}
    if trunk.prefix:
        tokens["prefix"] = trunk.prefix
    _describe(encoder, folder, found, dict.fromkeys(inputs, "(B, T) int64") | tokens)
    return found


def _written(program: Program, folder: Path) -> list[tuple[str, Callable[..., Tensor]]]:
    """Write the program's two files; returns the name of each with a function that runs it."""
    import onnxruntime

    module = program.module.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # deprecations in torch's own code
        exported = torch.export.export(module, program.arguments, dynamic_shapes=program.dynamic)
        named: dict[str, Any] = {"input_names": list(program.inputs), "output_names": ["embeddings"]}
        onnx: Any = torch.onnx.export(exported, dynamo=True, verbose=False, dynamic_shapes=program.dynamic, **named)
        torch.export.save(exported, folder / "embed.pt2")
        onnx.save(folder / "embed.onnx")
        loaded = torch.export.load(folder / "embed.pt2").module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "embed.onnx", options, providers=["CPUExecutionProvider"])

    def by_torch(*arguments: Tensor) -> Tensor:
        with torch.inference_mode():
            return loaded(*arguments)

    def by_onnx(*arguments: Tensor) -> Tensor:
        given = {name: each.numpy() for name, each in zip(program.inputs, arguments, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return [("embed.pt2", by_torch), ("embed.onnx", by_onnx)]


def _weights(encoder: Encoder, folder: Path) -> list[Compared]:
    """Write the weights, and compare those of timm models after timm has read them."""
    found = []
    for number, learner in enumerate(encoder.learners):
        ending = f"_{number}" if len(encoder.learners) > 1 else ""
        write_atomically(folder / f"embedder{ending}.safetensors", save(_tensors(learner.embedder)))
        trunk = learner.trunk
        of_model = trunk.model if hasattr(trunk, "model") else trunk
        file = folder / f"trunk{ending}.safetensors"
        write_atomically(file, save(_tensors(of_model)))
        if isinstance(trunk, TimmTrunk):
            import timm

            again = timm.create_model(
                trunk.init_args["name"],
                num_classes=0,
                checkpoint_path=str(file),
                **trunk.init_args.get("arguments", {}),
            )
            state = again.state_dict()
            largest = max(float((state[key] - value).abs().max()) for key, value in _tensors(of_model).items())
            found.append(Compared(f"{file.name}: weights, read by timm", largest, 0.0))
    return found


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        key: value.detach().cpu().contiguous()
        for key, value in module.state_dict().items()
        if isinstance(value, Tensor)
    }


def _pictures(encoder: Encoder, data: Any) -> list[Any]:
    if data is not None:
        samples = samples_of(data, "image", encoder.origin)
        return [samples.source.load(key) for key in samples.keys[:COMPARED]]
    from PIL import Image

    draw = np.random.default_rng(seed_of("pictures to compare"))
    side = getattr(encoder.transforms, "eval_side", None)
    assert side is not None
    coarse = (draw.integers(0, 255, (6, 6 + number, 3), dtype=np.uint8) for number in range(COMPARED))
    return [
        Image.fromarray(each).resize((side + 7 * number + 40, side + 60), Image.Resampling.BICUBIC)
        for number, each in enumerate(coarse)
    ]


def _difference(given: Tensor, expected: Tensor) -> float:
    """The largest difference of a coordinate, relative to the longest vector if it is longer than 1."""
    return float((given - expected).abs().max() / max(1.0, float(expected.norm(dim=1).max())))


def _describe(encoder: Encoder, folder: Path, found: Sequence[Compared], inputs: Mapping[str, Any]) -> None:
    compared = [{"what": each.file, "difference": each.difference, "bound": each.bound} for each in found]
    write_json(
        folder / "export.json",
        {
            "checkpoint": encoder.hash,
            "distance": encoder.distance,
            "inputs": dict(inputs),
            "outputs": {"embeddings": f"(B, {sum(learner.embedding_size for learner in encoder.learners)}) float32"},
            "compared_with_the_learner": compared,
        },
    )
