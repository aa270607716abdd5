"""A checkpoint as modules of tensors for torch.export and ONNX: from crops or tokens to embeddings.

Shapes: B samples, C x C pixels of the crop, T tokens, F features, D dimensions.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.models.text import TransformersTrunk, pooled
from levelfield.study.test_scores import concatenate
from levelfield.training.learner import MetricLearner


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

    def __init__(self, learners: Sequence[MetricLearner]) -> None:
        super().__init__()
        trunks: list[Any] = [learner.trunk for learner in learners]
        self.encoders = nn.ModuleList(trunk.model for trunk in trunks)
        self.pooling = [trunk.pooling for trunk in trunks]
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
    """Features -> embedding, as in `MetricLearner.embed_features`."""

    def __init__(self, learner: MetricLearner) -> None:
        super().__init__()
        self.embedder, self.normalize = learner.embedder, learner.normalize

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        embeddings = self.embedder(features)
        return nn.functional.normalize(embeddings) if self.normalize else embeddings


def check_can_be_exported(learners: Sequence[MetricLearner], origin: str) -> None:
    """Raise UserError for a learner with its own `forward` or `embed_features`, or its own text trunk."""
    for learner in learners:
        kind = type(learner)
        usual = all(getattr(kind, name, 0) is getattr(MetricLearner, name) for name in ("forward", "embed_features"))
        if not usual:
            raise UserError(f"'{origin}' is a {kind.__name__}, which embeds in its own way: call torch.export yourself")
        trunk = learner.trunk
        if trunk.modality == "text" and not isinstance(trunk, TransformersTrunk):
            raise UserError(
                f"'{origin}' has the text trunk {type(trunk).__name__}: only TransformersTrunk can be exported"
            )
