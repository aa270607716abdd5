"""A fork's own learner: the page's example fits, comes back and stands in a study; what is no learner is one line."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml
from refused import refused, succeeded
from tiny_fit import REPOSITORY

from levelfield.study.rows import load_spec
from levelfield.study.same_study import row_sources
from levelfield.training.learner import MetricLearner

PAGE = (REPOSITORY / "docs" / "own_parts.md").read_text()
SOURCE, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIT = shlex.split(re.findall(r"^    levelfield (fit .*NoisyLearner.*)", PAGE, re.MULTILINE)[0])
VALIDATE = shlex.split("validate --ckpt_path outputs/fit/Glyphs-ContrastiveLoss/0/best.ckpt --trust my_learner")


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    (tmp_path / "my_learner.py").write_text(SOURCE)
    (tmp_path / "narrow.py").write_text(
        "from levelfield.training.learner import MetricLearner\nclass Narrow(MetricLearner):\n"
        "    def __init__(self, trunk, loss):\n        super().__init__(trunk, loss)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_page_s_learner_fits_and_comes_back(desk, tiny, run):
    assert len(SOURCE.splitlines()) <= 16
    printed = succeeded(run(*FIT, *tiny, "--trainer.max_epochs", "1"))
    assert f"next: levelfield {shlex.join(VALIDATE)}\n" in printed
    best = desk / VALIDATE[VALIDATE.index("--ckpt_path") + 1]
    arguments = torch.load(best, weights_only=True)["hyper_parameters"]
    assert (arguments["learner"], arguments["noise"]) == ("my_learner.NoisyLearner", 0.2)
    learner = MetricLearner.load_from_checkpoint(best)
    assert (type(learner).__name__, learner.noise) == ("NoisyLearner", 0.2)
    embeddings, labels = torch.eye(8)[torch.arange(8) // 2], torch.arange(8) // 2
    assert float(learner.compute_loss(embeddings, labels)) > 0 == float(learner.loss(embeddings, labels)), "its step"
    assert run(*VALIDATE, "--model", "narrow.Narrow")[0] == 2
    del sys.modules["my_learner"]  # as in another process
    refused(run(*[word for word in VALIDATE if word not in ("--trust", "my_learner")]), "--trust my_learner")
    assert "my_learner" not in sys.modules, "nothing was imported"
    printed = succeeded(run(*VALIDATE))
    refused(run(*VALIDATE, "--model.noise", "0.3"), "--model.noise")


def test_an_option_gives_it_to_every_method_and_its_source_is_part_of_them(toy_file, run):
    words = ["study", "run", toy_file, "--model", "narrow.Narrow", "--output", "never"]
    refused(run(*words), "--model narrow.Narrow", "embedder")
    plain = load_spec(toy_file)
    spec = load_spec(toy_file, {"model.learner": "my_learner.NoisyLearner"})
    sources = row_sources(spec)
    for method in plain.methods:
        assert "my_learner.py" in {Path(file).name for file in sources[method]}
        assert spec.row_hashes[method] != plain.row_hashes[method]


NO_LEARNERS = {
    "NoisyLearner": "my_module.NoisyLearner",
    "torch.nn.Linear": "extends MetricLearner",
    "narrow.Narrow": "distance, embedder, embedder_init, ...",
}


@pytest.mark.parametrize(("name", "key"), NO_LEARNERS.items())
def test_what_is_no_learner_is_one_line(name, key, tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--model.noise", "0.2", "--output", tmp_path]
    (tmp_path / "it.yaml").write_text(yaml.safe_dump({"model": {"learner": name}}))
    refused(run(*words, "--config", tmp_path / "it.yaml"), f"--model {name}", key)
