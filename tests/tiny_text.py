"""A text model and texts that a test makes: a folder as the hub has them, and a table of one's own."""

import json
import string
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DISTILBERT = {
    "model_type": "distilbert", "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip


def tiny_text_model(folder: Path, config: dict | None = None) -> Path:
    """`config.json` of a DistilBERT of 4,000 parameters and a `tokenizer.json` that spells words out; no weights."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    vocab = {token: n for n, token in enumerate((*SPECIAL, *letters, *(f"##{letter}" for letter in letters)))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_padding(length=60)  # as the files of many a model have it: each text would be 60 tokens long
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({**(config or DISTILBERT), "vocab_size": len(vocab)}))
    return folder


def own_texts(folder: Path, classes: int = 16, samples: int = 4) -> Path:
    """A table of sentences about one thing a class."""
    rows = ["text,label"]
    for number in range(classes):
        thing = string.ascii_lowercase[number] * 3
        rows += [f'"Sentence {sample}, about {thing}.",thing {number:02d}' for sample in range(samples)]
    table = folder / "texts.csv"
    table.write_text("\n".join(rows) + "\n")
    return table
