"""Embedders: what each computes and refuses."""

import pytest
import torch

from levelfield.core.errors import UserError
from levelfield.models import IdentityEmbedder, LayerNormEmbedder, LayerNormLinearEmbedder, LinearEmbedder, MLPEmbedder

FEATURES = torch.tensor([[1.0, 2.0, 3.0, 6.0], [-1.0, 0.0, 0.0, 1.0]])


def parameters(embedder: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in embedder.parameters())


@pytest.mark.parametrize("kind", [LinearEmbedder, LayerNormLinearEmbedder])
def test_dropout_leaves_half_of_the_features_out_in_training_alone(kind):
    torch.manual_seed(0)
    embedder, features, entered = kind(1000, 1, dropout=0.5), torch.randn(1, 1000), []
    embedder.linear.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    embedder(features)
    embedder.eval()(features)
    kept = entered[0] != 0
    assert 440 < kept.sum() < 560
    torch.testing.assert_close(entered[0], 2 * kept * entered[1])
    assert (entered[1] != 0).all()
    with pytest.raises(UserError, match=r"dropout 1\.0 must be"):
        kind(4, 3, dropout=1.0)


def test_layer_norm_has_nothing_to_learn():
    mean, deviation = 3.0, 14**0.5 / 2  # of 1 2 3 6, the deviation dividing by 4
    expected = (torch.tensor([1.0, 2.0, 3.0, 6.0]) - mean) / deviation
    torch.testing.assert_close(LayerNormEmbedder(4, 4)(FEATURES)[0], expected, rtol=1e-4, atol=1e-4)
    embedder = LayerNormLinearEmbedder(4, 3, bias=False)
    torch.testing.assert_close(embedder(FEATURES)[0], embedder.linear.weight @ expected, rtol=1e-4, atol=1e-4)
    assert (parameters(LayerNormEmbedder(4, 4)), parameters(embedder)) == (0, 12)


def test_a_linear_layer_starts_orthogonal_and_is_followed_by_layer_norm():
    embedder = LinearEmbedder(6, 4, orthogonal=True, layer_norm=True)
    torch.testing.assert_close(embedder.linear.weight @ embedder.linear.weight.T, torch.eye(4))
    assert embedder.linear.bias.count_nonzero() == 0
    embeddings = embedder(torch.randn(8, 6))
    torch.testing.assert_close(embeddings.mean(1), torch.zeros(8), rtol=0, atol=1e-6)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.full((8,), 2.0), rtol=1e-3, atol=0)
    assert parameters(embedder) == 28


@pytest.mark.parametrize("embedder", [IdentityEmbedder, LayerNormEmbedder])
def test_what_keeps_the_features_refuses_another_size(embedder):
    with pytest.raises(UserError, match=r"keeps the trunk's 2048 features: give --model\.embedding_size 2048, not 128"):
        embedder(2048, 128)


def test_the_text_head_of_vasilev_and_dyakonov():
    head = MLPEmbedder(768, 256, hidden_sizes=[768], dropout=0.2)
    assert [type(layer).__name__ for layer in head.layers] == ["Linear", "GELU", "Dropout", "Linear"]
    assert head.layers[2].p == 0.2
    assert parameters(head) == 768 * 768 + 768 + 768 * 256 + 256
    features = torch.randn(5, 768)
    hidden = features @ head.layers[0].weight.T + head.layers[0].bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    expected = hidden @ head.layers[3].weight.T + head.layers[3].bias
    torch.testing.assert_close(head.eval()(features), expected, rtol=1e-4, atol=1e-5)


def test_fehervaris_proxy_softmax_embeds_by_layer_norm_dropout_and_weight_norm():
    """Section 2.9: its rows' lengths are learnt apart from their directions; v g / |v| by hand."""
    embedder = LayerNormLinearEmbedder(6, 3, bias=False, dropout=0.5, weight_norm=True)
    assert parameters(embedder) == 3 + 3 * 6
    lengths, directions = (getattr(embedder.linear.parametrizations.weight, f"original{k}") for k in (0, 1))
    with torch.no_grad():
        lengths.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
        directions.mul_(7.0)  # says nothing
    features = torch.randn(5, 6)
    normed = (features - features.mean(1, keepdim=True)) / (features.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    rows = directions / directions.norm(dim=1, keepdim=True) * torch.tensor([[1.0], [2.0], [3.0]])
    torch.testing.assert_close(embedder.eval()(features), normed @ rows.T)
