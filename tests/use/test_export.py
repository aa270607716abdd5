"""What is exported gives what the learner gives, from files alone."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from refused import refused, succeeded
from safetensors.torch import load_file
from small_fit import small_trunk
from tiny_fit import REPOSITORY
from tiny_text import own_texts
from tokenizers import Tokenizer

from levelfield import MetricLearner
from levelfield.data import ImageTransforms
from levelfield.data.transforms import as_floats, stacked
from levelfield.losses import ContrastiveLoss
from levelfield.use import export
from levelfield.use.encoder import Encoder
from levelfield.use.export import EmbedImages

(SNIPPET,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/export.md").read_text(), re.DOTALL)


@pytest.mark.full
def test_images_go_from_pixels_to_the_learners_embedding(fitted: Path, tmp_path: Path, run, monkeypatch) -> None:
    import timm

    printed = succeeded(run("export", "--ckpt_path", fitted / "best.ckpt", "--output", tmp_path / "out"))
    assert "embed.onnx" in printed
    learner = MetricLearner.load_from_checkpoint(fitted / "best.ckpt")
    images = torch.rand(5, 3, 32, 32)
    expected = learner(images).detach()
    for some in (5, 1):
        by_torch = torch.export.load(tmp_path / "out/embed.pt2").module()(images[:some])
        torch.testing.assert_close(by_torch, expected[:some], atol=1e-5, rtol=0)
        session = onnxruntime.InferenceSession(tmp_path / "out/embed.onnx", providers=["CPUExecutionProvider"])
        (by_onnx,) = session.run(None, {"images": images[:some].numpy()})
        np.testing.assert_allclose(by_onnx, expected[:some], atol=5e-4)
    assert session.get_inputs()[0].shape == ["batch", *images.shape[1:]]
    told = json.loads((tmp_path / "out/export.json").read_text())
    assert told["inputs"]["standardized_inside"] == [{"mean": list(learner.trunk.mean), "std": list(learner.trunk.std)}]
    (image := Image.effect_noise((61, 44), 60).convert("RGB").resize((90, 70))).save(tmp_path / "my_image.png")
    monkeypatch.chdir(tmp_path)
    exec(SNIPPET.replace("exported/", "out/").replace(".jpg", ".png"), by_page := {})
    square = ImageTransforms(crop_size=32, resize=32).evaluate()(image)
    np.testing.assert_allclose(by_page["embeddings"], learner(as_floats(stacked([square]))).detach(), atol=5e-4)
    trunk = timm.create_model("test_resnet", num_classes=0, checkpoint_path=str(tmp_path / "out/trunk.safetensors"))
    standardised = learner.trunk.standardise(images)
    with torch.inference_mode():
        features = trunk.eval()(standardised)
        torch.testing.assert_close(features, learner.trunk(images), atol=1e-5, rtol=1e-5)
        head = torch.nn.Linear(96, expected.shape[1])
        stored = load_file(tmp_path / "out/embedder.safetensors")
        head.load_state_dict({name.partition(".")[2]: weight for name, weight in stored.items()})
        torch.testing.assert_close(torch.nn.functional.normalize(head(features)), expected, atol=1e-5, rtol=0)
    assert [*told["differences_from_the_learner"]] == ["embed.pt2", "embed.onnx"]
    assert max(told["differences_from_the_learner"].values()) <= told["bound"] == 5e-4
    refused(run("export", "--ckpt_path", fitted / "best.ckpt", "--output", tmp_path / "out"), "already exists")


@pytest.mark.full
def test_texts_go_from_tokens_to_the_learners_embedding(of_texts: Path, tmp_path: Path, run) -> None:
    best, table = of_texts, own_texts(tmp_path)
    succeeded(run("export", "--ckpt_path", best, "--output", tmp_path / "out", "--data", table))
    texts = ["Where is it?", "A longer sentence, about the thing that nobody has seen.", "x"]
    expected = MetricLearner.load_from_checkpoint(best)(texts).detach()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    inputs = json.loads((tmp_path / "out/export.json").read_text())["inputs"]
    tokenizer.enable_padding(pad_id=inputs["pad_token_id"])
    encoded = tokenizer.encode_batch(texts)
    ids, mask = (np.array([getattr(each, name) for each in encoded]) for name in ("ids", "attention_mask"))
    session = onnxruntime.InferenceSession(tmp_path / "out/embed.onnx", providers=["CPUExecutionProvider"])
    assert [given.shape for given in session.get_inputs()] == [["batch", "tokens"]] * 2
    (by_onnx,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    np.testing.assert_allclose(by_onnx, expected, atol=5e-4)
    by_torch = torch.export.load(tmp_path / "out/embed.pt2").module()(torch.from_numpy(ids), torch.from_numpy(mask))
    torch.testing.assert_close(by_torch, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("several", [1, 3])
def test_the_program_is_the_learner(several: int) -> None:
    learners = [MetricLearner(small_trunk(), ContrastiveLoss(), embedding_size=8).eval() for _ in range(several)]
    images = torch.rand(3, 3, 32, 32)
    expected = torch.nn.functional.normalize(torch.cat([learner(images) for learner in learners], dim=1))
    torch.testing.assert_close(EmbedImages(learners).eval()(images), expected, atol=1e-6, rtol=0)


SIZES = [((50, 37), 24, False), ((37, 50), 23, False), ((64, 40), 24, True), ((29, 29), 24, False)]


@pytest.mark.parametrize(("size", "crop", "square"), SIZES)
def test_the_page_crops_as_evaluation_does(size: tuple[int, int], crop: int, square: bool) -> None:
    transforms = ImageTransforms(crop_size=crop, resize=29, square=square, interpolation="bicubic")
    picture = Image.effect_noise((9, 9), 120).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    exec(SNIPPET.partition("\nwith open(")[0], names := {})
    found = names["crop"](picture, resize=29, square=square, crop=crop, interpolation="bicubic")
    np.testing.assert_allclose(found, as_floats(stacked([transforms.evaluate()(picture)]))[0], rtol=1e-6)


def test_a_program_beyond_the_bound_and_mistakes_are_refused_and_nothing_is_left(fitted, tmp_path, run, monkeypatch):
    asked = ("export", "--ckpt_path", fitted / "best.ckpt", "--output", tmp_path / "out")
    refused(run(*asked[:3]), "needs --output")
    refused(run(*asked, "--data", tmp_path / "no"), "no file or folder")
    refused(run(*asked, "--device", "cpu"), "--device is an option of predict")
    monkeypatch.setattr(export, "_differences", lambda *given: {"embed.onnx": 0.01})
    with pytest.raises(ValueError, match=r"embed\.onnx differs from the learner by"):
        export.export(Encoder(fitted / "best.ckpt", "cpu"), tmp_path / "out")
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnx" else sys)
    refused(run(*asked), "onnx", "pip install 'levelfield[export]'")
    assert list(tmp_path.iterdir()) == []
