"""A fork's own learner: the page's example fits, comes back and stands in a study; what is no learner is one line."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml
from refused import refused
from tiny_fit import REPOSITORY
from toy_study import TOY

from levelfield.study.rows import load_spec
from levelfield.study.same_study import row_sources
from levelfield.training.learner import MetricLearner

PAGE = (REPOSITORY / "docs" / "own_parts.md").read_text()
SOURCE, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(STUDY,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FIT = shlex.split(re.findall(r"^    levelfield (fit .*NoisyLearner.*)", PAGE, re.MULTILINE)[0])
VALIDATE = shlex.split("validate --ckpt_path outputs/fit/Glyphs-ContrastiveLoss/0/best.ckpt --trust my_learner")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    (folder / "my_learner.py").write_text(SOURCE)
    (folder / "narrow.py").write_text(
        "from levelfield.training.learner import MetricLearner\nclass Narrow(MetricLearner):\n"
        "    def __init__(self, trunk, loss):\n        super().__init__(trunk, loss)\n"
    )
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    return folder


@pytest.fixture(autouse=True)
def at_the_desk(desk, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.syspath_prepend(str(desk))


def test_the_page_s_learner_fits_and_comes_back(desk, tiny, run):
    assert len(SOURCE.splitlines()) <= 16
    code, printed, complaint = run(*FIT, *tiny, "--trainer.max_epochs", "1")
    assert code == 0, complaint
    assert f"next: levelfield {shlex.join(VALIDATE)}\n" in printed
    best = desk / VALIDATE[VALIDATE.index("--ckpt_path") + 1]
    arguments = torch.load(best, weights_only=True)["hyper_parameters"]
    assert (arguments["learner"], arguments["noise"]) == ("my_learner.NoisyLearner", 0.2)
    learner = MetricLearner.load_from_checkpoint(best)
    assert type(learner).__name__ == "NoisyLearner"
    assert learner.noise == 0.2
    embeddings, labels = torch.eye(8)[torch.arange(8) // 2], torch.arange(8) // 2
    assert float(learner.compute_loss(embeddings, labels)) > 0 == float(learner.loss(embeddings, labels)), (
        "its own step"
    )

    code, _, complaint = run(*VALIDATE, "--model", "narrow.Narrow")
    assert code == 2
    del sys.modules["my_learner"]  # as in another process
    refused(run(*[word for word in VALIDATE if word not in ("--trust", "my_learner")]), "--trust my_learner")
    assert "my_learner" not in sys.modules, "nothing was imported"
    code, printed, complaint = run(*VALIDATE)
    assert code == 0, complaint
    refused(run(*VALIDATE, "--model.noise", "0.3"), "--model.noise")


@pytest.mark.full
def test_the_page_s_study_compares_it(desk, run):
    study, toy = yaml.safe_load(STUDY), yaml.safe_load(TOY)["base"]
    loss = {"model": {"loss": "ContrastiveLoss"}}
    toy[0]["trainer"]["max_epochs"] = 1
    study |= {"base": [*toy, loss], "folds": 2, "runs": 1, "threads": 1}
    Path("mine.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    code, printed, complaint = run("study", "run", "mine.yaml")
    assert code == 0, complaint
    assert "noisy" in printed
    page = Path("outputs/mine/report/index.html").read_text()
    assert "model.learner is" in page, "unequal conditions are on the page"
    weights = []
    for method, kind in (("plain", "MetricLearner"), ("noisy", "NoisyLearner")):
        learner = MetricLearner.load_from_checkpoint(desk / f"outputs/mine/jobs/{method}/run0/fold0/best.ckpt")
        assert type(learner).__name__ == kind
        weights.append(learner.embedder.linear.weight)
    assert not torch.equal(*weights)


def test_an_option_gives_it_to_every_method_and_its_source_is_part_of_them(toy_file, run):
    words = ["study", "run", toy_file, "--model", "narrow.Narrow", "--output", "never"]
    refused(run(*words), "--model narrow.Narrow", "embedder")
    plain = load_spec(toy_file)
    spec = load_spec(toy_file, {"model.learner": "my_learner.NoisyLearner"})
    sources = row_sources(spec)
    for method in plain.methods:
        assert "my_learner.py" in {Path(file).name for file in sources[method]}
        assert spec.row_hashes[method] != plain.row_hashes[method]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("my_learner.NoisyLerner", "'NoisyLearner'"),
        ("no_such.Learner", "'no_such'"),
        ("NoisyLearner", "my_module.NoisyLearner"),
        ("torch.nn.Linear", "extends MetricLearner"),
        ("narrow.Narrow", "distance, embedder, embedder_init, ..."),
    ],
)
def test_what_is_no_learner_is_one_line(name, key, tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--model.noise", "0.2", "--output", tmp_path]
    (tmp_path / "it.yaml").write_text(yaml.safe_dump({"model": {"learner": name}}))
    refused(run(*words, "--config", tmp_path / "it.yaml"), f"--model {name}", key)


def test_a_configuration_of_the_working_directory_names_it_in_short(desk, tiny, run):
    Path("configs").unlink()  # a folder of one's own
    Path("configs").mkdir()
    Path("configs/noisy.yaml").write_text("model: {learner: my_learner.NoisyLearner, noise: 0.2}\n")
    for words in (["--config", "noisy"], ["-c", "configs/noisy.yaml"]):
        code, printed, complaint = run("fit", *words, *tiny, "--model.loss", "ContrastiveLoss", "--print_config")
        assert code == 0, complaint
        assert "learner: my_learner.NoisyLearner" in printed
