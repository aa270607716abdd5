"""Pooling and prefix of text trunks, against what their authors' model cards compute with transformers."""

from pathlib import Path

import pytest
import torch
import yaml
from tiny_text import tiny_text_model

from levelfield.models import TransformersTrunk

FOLDER = Path(__file__).parents[2] / "configs" / "trunk"
TEXTS = ["card", "Where is my new card?", "it has not come.", "Why was I charged twice?"]
SMALL = {
    "vocab_size": 200,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def saved(folder: Path, kind: str):
    """A model of random weights in the folder that transformers writes, with a tokenizer, and the model."""
    import transformers

    torch.manual_seed(0)
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**SMALL, max_position_embeddings=64))
    else:
        config = transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
        model = transformers.Qwen3Model(config)
    vocabulary = tiny_text_model(folder)
    written = (vocabulary / "tokenizer.json").read_text()
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(written)
    return model


@pytest.mark.parametrize(
    ("kind", "pooling", "prefix"),
    [("bert", "mean", "query: "), ("bert", "cls", ""), ("qwen3", "last", "Instruct: find the like\nQuery: ")],
)
def test_each_text_alone_as_its_authors_pool_it(tmp_path, kind, pooling, prefix):
    """The model cards of E5 (mean of `query: ` and the text), BGE (first state) and Qwen3-Embedding (last state)."""
    model = saved(tmp_path, kind)
    trunk = TransformersTrunk(str(tmp_path), pooling=pooling, max_length=64, prefix=prefix).eval()
    tokenizer = trunk.tokenizer
    with torch.no_grad():
        found = trunk(TEXTS)
        for row, text in zip(found, TEXTS, strict=True):
            states = model(input_ids=torch.tensor([tokenizer.encode(prefix + text).ids])).last_hidden_state[0]
            expected = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling]
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-6)
        without = TransformersTrunk(str(tmp_path), pooling=pooling, max_length=64).eval()(TEXTS)
        assert torch.allclose(found, without, atol=1e-3) == (not prefix)
    assert ("prefix" in trunk.init_args) == bool(prefix)
    again = TransformersTrunk(**trunk.init_args).eval()
    with torch.no_grad():
        assert torch.equal(again(TEXTS), found)


# Of the model cards: intfloat/e5-*, thenlper/gte-*, BAAI/bge-*-en-v1.5, sentence-transformers/all-MiniLM-L6-v2.
CARDS = {"e5": ("mean", "query: "), "multilingual": ("mean", "query: "), "gte": ("mean", ""), "bge": ("cls", "")}


@pytest.mark.parametrize(
    "file", sorted(p for kind in CARDS for p in FOLDER.glob(f"{kind}_*.yaml")), ids=lambda p: p.stem
)
def test_a_file_says_what_the_model_card_says(tmp_path, file):
    arguments = yaml.safe_load(file.read_text())["model"]["trunk"]["init_args"]
    assert (arguments["pooling"], arguments.get("prefix", "")) == CARDS[file.stem.partition("_")[0]]
    given = {**arguments, "name": str(tiny_text_model(tmp_path)), "weights": None, "max_length": 64}
    assert TransformersTrunk(**given).num_features == 16
