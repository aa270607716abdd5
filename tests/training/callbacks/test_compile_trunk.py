"""A compiled trunk and the fused optimizer train to the numbers of the usual ones; a study knows them apart."""

import pytest
import torch
from tiny_fit import TINY

from levelfield.cli.main import main
from levelfield.models.trunks import Trunk
from levelfield.study.rows import load_spec
from levelfield.training.learner import MetricLearner

COMPILED = ["--trainer.callbacks+", "CompileTrunk", "--trainer.callbacks.backend", "eager"]
FUSED = ["--model.optimizer", "torch.optim.AdamW", "--model.optimizer.fused", "true"]


def fitted(output, *words: str) -> MetricLearner:
    assert main(["fit", *TINY, "--model.loss", "ContrastiveLoss", *words, "--output", str(output)]) == 0
    return MetricLearner.load_from_checkpoint(output / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt")


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    "words", [pytest.param(COMPILED, id="compiled", marks=pytest.mark.full), pytest.param(FUSED, id="fused")]
)
def test_the_weights_of_a_training_are_the_same_to_rounding(words, tmp_path, monkeypatch):
    compiled = []
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(Trunk, "compile", lambda self, **how: compiled.append(how) or compile_module(self, **how))
    plain, other = fitted(tmp_path / "plain"), fitted(tmp_path / "other", *words)
    assert compiled == ([{"backend": "eager"}] if words is COMPILED else [])
    expected = plain.state_dict()
    assert other.state_dict().keys() == expected.keys()
    for name, weights in other.state_dict().items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-5, atol=1e-5)


def test_a_study_has_them_in_its_identity(toy_file):
    usual = load_spec(toy_file).configuration_hash()
    compiled = {"trainer.callbacks": [{"class_path": "levelfield.training.callbacks.CompileTrunk"}]}
    fused = {"model.optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"fused": True}}}
    hashes = {usual, *(load_spec(toy_file, settings).configuration_hash() for settings in (compiled, fused))}
    assert len(hashes) == 3
