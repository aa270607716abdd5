"""Export a checkpoint for other programs (torch.export, ONNX, safetensors) and compare the programs with the learner.

Shapes: B samples, C x C pixels of the crop, T tokens, F features, D dimensions.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, write_atomically, write_json
from levelfield.core.seeds import seed_of
from levelfield.data.transforms import ImageTransforms, as_floats, stacked
from levelfield.models.adapters import merge_adapter, save_adapter
from levelfield.models.text import TransformersTrunk, pooled
from levelfield.study.test_scores import concatenate
from levelfield.training.learner import MetricLearner
from levelfield.use.card import write_card
from levelfield.use.encoder import Encoder
from levelfield.use.samples import samples_of

# The largest allowed difference of a coordinate of unit vectors; ONNX kernels differ by 1e-4.
BOUND = 5e-4
COMPARED = 10
NEEDED = ("onnx", "onnxscript", "onnxruntime")
# Its beginnings are compared if no texts are given.
SENTENCE = "I would like to close my account, and to have what is left on it sent to another one."


class EmbedImages(nn.Module):
    """(B, 3, C, C) float32 from 0 to 1 -> (B, D): embeddings of crops; several learners are concatenated."""

    def __init__(self, learners: Sequence[MetricLearner]) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(learner.trunk for learner in learners)
        self.heads = nn.ModuleList(Head(learner) for learner in learners)

    def forward(self, images: Float[Tensor, "batch 3 crop crop"]) -> Float[Tensor, "batch dim"]:
        return concatenate([head(trunk(images)) for trunk, head in zip(self.trunks, self.heads, strict=True)])


class EmbedTexts(nn.Module):
    """(B, T) token ids and (B, T) mask (1 token, 0 padding) -> (B, D)."""

    def __init__(self, learners: Sequence[Any]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(learner.trunk.model for learner in learners)
        self.pooling = [learner.trunk.pooling for learner in learners]
        self.heads = nn.ModuleList(Head(learner) for learner in learners)

    def forward(
        self, input_ids: Int[Tensor, "batch tokens"], attention_mask: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch dim"]:
        parts = []
        for encoder, pooling, head in zip(self.encoders, self.pooling, self.heads, strict=True):
            states_BTF = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            parts.append(head(pooled(states_BTF, attention_mask, pooling)))
        return concatenate(parts)


class Head(nn.Module):
    """Features -> embedding, as in `MetricLearner.embed_features`; the program has no part of the loss."""

    def __init__(self, learner: MetricLearner) -> None:
        super().__init__()
        self.embedder, self.normalize = learner.embedder, learner.normalize

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        embeddings = self.embedder(features)
        return nn.functional.normalize(embeddings) if self.normalize else embeddings


def export(encoder: Encoder, output: Path, data: Any = None) -> dict[str, float]:
    """Write a checkpoint into a folder, in formats of other programs.

    - `embed.pt2` (torch.export) and `embed.onnx`: `images` (B, 3, C, C) float32 from 0 to 1, or `input_ids` and
      `attention_mask` (B, T), to `embeddings` (B, D); it includes the standardization of images.
    - `tokenizer.json` of texts.
    - `trunk.safetensors`, which `timm.create_model(..., checkpoint_path=...)` reads, and `embedder.safetensors`.
    - `adapter`, a folder for peft, if an adapter was trained; the other files have it merged into the trunk.
    - `export.json`: inputs, with the size and interpolation of crops, outputs and differences.

    Args:
        encoder: on the CPU.
        output: a new folder.
        data: its first ten samples are compared; None takes random crops, or the beginnings of a sentence.

    Returns:
        For each program, the largest difference of a coordinate from the learner's embeddings.

    Raises:
        UserError: a package is missing, the learner cannot be exported, the folder exists, or a program differs by
            more than 5e-4. Then nothing is written.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {', '.join(missing)}: run pip install 'levelfield[export]'")
    for learner in encoder.learners:
        kind = type(learner)
        if any(getattr(kind, name, 0) is not getattr(MetricLearner, name) for name in ("forward", "embed_features")):
            raise UserError(
                f"'{encoder.origin}' is a {kind.__name__}, which embeds in its own way: call torch.export yourself"
            )
        if learner.trunk.modality == "text" and not isinstance(learner.trunk, TransformersTrunk):
            raise UserError(
                f"'{encoder.origin}' has the text trunk {type(learner.trunk).__name__}: only TransformersTrunk can be "
                "exported"
            )
    if output.exists():
        raise UserError(f"--output {output} already exists: give a new folder")
    with explain_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        several = len(encoder.learners) > 1
        for number, learner in enumerate(encoder.learners):
            if learner.trunk.adapter is not None:
                save_adapter(learner.trunk, made / (f"adapter_{number}" if several else "adapter"))
                merge_adapter(learner.trunk)
        found, inputs = (_texts if encoder.modality == "text" else _images)(encoder, made, data)
        for number, learner in enumerate(encoder.learners):
            of_model = learner.trunk.model if hasattr(learner.trunk, "model") else learner.trunk
            for part, module in (("trunk", of_model), ("embedder", learner.embedder)):
                tensors = {key: each.contiguous() for key, each in module.state_dict().items() if torch.is_tensor(each)}
                write_atomically(made / f"{part}{f'_{number}' * several}.safetensors", save(tensors))
        content = {"checkpoint": encoder.hash, "distance": encoder.distance, "inputs": inputs}
        size = sum(learner.embedding_size for learner in encoder.learners)
        content["outputs"] = {"embeddings": f"(B, {size}) float32"}
        write_json(made / "export.json", {**content, "differences_from_the_learner": found, "bound": BOUND})
        write_card(made, encoder.paths, encoder.checkpoints, encoder.modality)
        for file, difference in found.items():
            if not difference <= BOUND:
                raise UserError(
                    f"{file} differs from the learner by {difference:.1e}, more than {BOUND:.0e}: '{encoder.origin}' "
                    "was not exported"
                )
        os.chmod(made, 0o755)
        with explain_write_errors(output):
            os.replace(made, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _images(encoder: Encoder, folder: Path, data: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Write the programs for crops; returns their differences and a description of their inputs."""
    transforms = encoder.transforms
    if transforms is None:
        raise UserError(f"'{encoder.origin}' was trained on your own loaders and has no transforms to export")
    if not isinstance(transforms, ImageTransforms):
        raise UserError(
            f"'{encoder.origin}' has your own transforms, which export cannot write: train with ImageTransforms"
        )
    if data is None:
        draws = torch.Generator().manual_seed(seed_of("crops to compare"))
        crops = torch.rand(COMPARED, 3, transforms.crop_size, transforms.crop_size, generator=draws)
    else:
        samples = samples_of(data, "image", encoder.origin)
        pictures = [samples.source.load(key) for key in samples.keys[:COMPARED]]
        crops = as_floats(stacked([*map(transforms.evaluate(), pictures)])).contiguous()
    with torch.inference_mode():
        expected = encoder.module(crops)
    given = {"images": (crops, {0: torch.export.Dim("batch")})}
    trunks = [learner.trunk for learner in encoder.learners]
    return _differences(EmbedImages(encoder.learners), given, expected, folder), {
        **{"images": "(B, 3, C, C) float32, 0 to 1", "resize": transforms.eval_side, "square": transforms.square},
        **{"crop": transforms.crop_size, "interpolation": transforms.interpolation},
        "standardized_inside": [{"mean": trunk.mean, "std": trunk.std} for trunk in trunks],
    }


def _texts(encoder: Encoder, folder: Path, data: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Write the programs for tokens, and the tokenizer; returns as `_images`."""
    trunk: Any = encoder.learners[0].trunk
    words = SENTENCE.split()
    texts = [" ".join(words[: 1 + number]) for number in range(COMPARED)]
    if data is not None:
        texts = [*samples_of(data, "text", encoder.origin).names[:COMPARED]]
    with torch.inference_mode():
        expected = encoder.module(texts)
    sides = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=trunk.max_length)}
    tokens = trunk.padded([trunk.token_ids(text) for text in texts])
    given = {name: (each, sides) for name, each in zip(("input_ids", "attention_mask"), tokens, strict=True)}
    trunk.tokenizer.save(str(folder / "tokenizer.json"))
    inputs = dict.fromkeys(given, "(B, T) int64") | {"pad_token_id": trunk.model.config.pad_token_id or 0}
    inputs |= {"max_length": trunk.max_length, "tokenizer": "tokenizer.json"}
    inputs |= {"prefix": trunk.prefix} if trunk.prefix else {}
    return _differences(EmbedTexts(encoder.learners), given, expected, folder), inputs


def _differences(
    program: nn.Module, given: Mapping[str, tuple[Tensor, dict[int, Any]]], expected: Tensor, folder: Path
) -> dict[str, float]:
    """Write a program as two files, and run each: the largest difference of a coordinate from the expected ones.

    It is relative to the longest vector if that is longer than 1.

    Args:
        given: name of each input to its value and its dynamic dimensions.
    """
    import onnxruntime

    arguments, dynamic = zip(*given.values(), strict=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # deprecations in torch's own code
        exported = torch.export.export(program.eval(), arguments, dynamic_shapes=dynamic)
        named: dict[str, Any] = {"input_names": [*given], "output_names": ["embeddings"]}
        onnx: Any = torch.onnx.export(exported, dynamo=True, verbose=False, dynamic_shapes=dynamic, **named)
        torch.export.save(exported, folder / "embed.pt2")
        onnx.save(folder / "embed.onnx")
        found = {"embed.pt2": torch.export.load(folder / "embed.pt2").module()(*arguments)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "embed.onnx", options, providers=["CPUExecutionProvider"])
    inputs = {name: value.numpy() for name, (value, _) in given.items()}
    found["embed.onnx"] = torch.from_numpy(session.run(None, inputs)[0])
    longest = max(1.0, float(expected.norm(dim=1).max()))
    return {file: float((each - expected).abs().max()) / longest for file, each in found.items()}
