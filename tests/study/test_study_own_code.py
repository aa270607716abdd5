"""One's own code is part of what a study is: an edited loss is never mixed with what it was."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from levelfield.cli.main import main
from levelfield.runtime.own_code import own_code
from levelfield.study.spec import StudySpec
from levelfield.study.definition.study_file import load_spec, spec_from_yaml

LOSS = """
from torch import nn
from levelfield.losses import ContrastiveLoss
import my_parts.distances, numpy


class MyLoss(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.square().mean() * my_parts.distances.SCALE
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a loss of one's own that imports a package of one's own."""
    files = {
        "my_loss.py": LOSS,
        "my_parts/__init__.py": "",
        "my_parts/distances.py": "from . import scales\nSCALE = scales.SCALE\ndef no():\n  from .. import above\n",
        "my_parts/scales.py": "SCALE = 1.0\n",
        "my_parts/unused.py": "",
        "words.py": "from csv import reader\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(path for path in sys.path if path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("my_loss", "my_parts"):
            del sys.modules[name]


OWN = ["my_loss.py", "my_parts/__init__.py", "my_parts/distances.py", "my_parts/scales.py"]


def test_a_class_brings_its_module_and_the_local_modules_that_this_imports(desk: Path) -> None:
    found = own_code({"model": {"loss": "my_loss.MyLoss"}})
    assert found == {name: hashlib.sha256((desk / name).read_bytes()).hexdigest() for name in OWN}
    assert "my_loss" not in sys.modules, "nothing was imported"


def test_of_a_class_in_folders_that_are_no_packages(desk: Path) -> None:
    """As of `papers/fehervari/dreml.py`: neither folder has an `__init__.py`, and neither is imported."""
    file = desk / "my_papers" / "one" / "its_loss.py"
    file.parent.mkdir(parents=True)
    file.write_text(LOSS)
    found = own_code({"model": {"loss": "my_papers.one.its_loss.MyLoss"}})
    assert list(found) == ["my_papers/one/its_loss.py", *OWN[1:]]


def test_of_a_class_that_is_searched_too(desk: Path, spec: StudySpec) -> None:
    space = {"model.loss": {"values": ["my_loss.MyLoss", "levelfield.losses.ContrastiveLoss"]}}
    searched = replace(spec, spaces={**spec.spaces, "arcface": space}).with_own_code()
    assert list(searched.own_code["arcface"]) == OWN
    assert "contrastive" not in searched.own_code


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": {"callbacks": [{"class_path": "my_loss.MyLoss"}]}},
        {"model": {"miner": {"class_path": "Miner", "init_args": {"of": {"class_path": "my_loss.MyLoss"}}}}},
        {"data": {"dataset": "my_loss.MyLoss"}},
    ],
)
def test_wherever_it_is_named(desk: Path, config: dict) -> None:
    assert list(own_code(config)) == OWN


def test_what_is_installed_or_no_class_is_not_ones_own(desk: Path) -> None:
    config = {
        "loss": "levelfield.losses.ContrastiveLoss",
        "optimizer": "torch.optim.AdamW",
        "decoder": "json.JSONDecoder",
        "table": "words.csv",
        "missing": "my_loss.YourLoss",
        "name": "resnet50.a1_in1k",
    }
    assert own_code(config) == {}


def test_a_file_that_does_not_parse_is_hashed_all_the_same(desk: Path) -> None:
    (desk / "my_parts" / "scales.py").write_text("SCALE = = 1\n")
    assert "my_parts/scales.py" in own_code({"loss": "my_loss.MyLoss"})


def test_studies_without_own_code_keep_their_hashes(toy_file: Path) -> None:
    """Obtained at commit d48a53b, before one's own code was looked at."""
    spec = load_spec(toy_file)
    assert spec.configuration_hash() == "38dbb51ff5e790ba905e8e1cbba15a65995d32446d5065c7eca52463e9d09c52"
    assert spec.method_hash("arcface") == "45c1000aade1bc0563e95e178bc53e410ed606b42481252bdf73a530ba2144b4"
    assert spec.baseline_hash() == "9494822c1c368ddf17d96630e81069509f16b5c45b8b2b81111abd6cf34bab54"


def test_an_edited_loss_is_refused_with_a_result_deleted_or_not(
    desk: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, methods = toy_file.read_text().split("methods:")
    tail = methods[methods.index("folds:") :]
    (desk / "study.yaml").write_text(f"{head}methods:\n  contrastive: {{model: {{loss: ContrastiveLoss}}}}\n{tail}")
    words = ["study.yaml", "--output", "out", "--add-method", "my_loss.MyLoss", "--runs=1", "--trainer.max_epochs=1"]

    def study(command: str) -> tuple[int, list[str]]:
        code = main(["study", command, *(words if command == "run" else ["out"])])
        printed = capsys.readouterr()
        return code, (printed.out if command == "verify" else printed.err).splitlines()

    assert study("run")[0] == 0
    assert list(spec_from_yaml(Path("out/study.yaml")).own_code) == ["my_loss"]
    assert study("verify")[0] == 0
    tables = Path("out/results.csv").read_bytes()
    scales = desk / "my_parts" / "scales.py"
    for remove in (None, Path("out/jobs/my_loss/run0/fold1/result.json")):
        if remove is not None:
            remove.unlink()
        scales.write_text("SCALE = 2.0\n")
        code, (line,) = study("run")
        assert code == 2
        assert line.startswith("levelfield: out/jobs/my_loss was computed with another my_parts/scales.py (SHA-256 ")
        assert line.endswith("restore it, choose another --output, or delete that folder to compute it again")
        code, problems = study("verify")
        assert code == 2
        assert [line for line in problems if line.startswith("my_parts/scales.py: my_loss was computed with another")]
    assert Path("out/results.csv").read_bytes() == tables
    shutil.rmtree("out/jobs/my_loss")
    code, (line,) = study("run")
    assert "opened once already" in line, "another loss is another look at the test classes"
    scales.unlink()
    (desk / "my_loss.py").rename(desk / "their_loss.py")
    words[3:5] = []
    code, lines = study("verify")
    assert any(line.startswith("not compared: my_loss.py, which my_loss uses (not found here)") for line in lines)


def test_a_loss_that_gives_none_is_refused_before_it_is_part_of_a_study(
    desk: Path, toy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished study to which it was added would not be finished any more."""
    (desk / "my_loss.py").write_text(LOSS.replace("square().mean()", "square().sum(1)"))
    code = main(
        ["study", "run", str(toy_file), "--output", "out", "--search.trials", "0", "--add-method", "my_loss.MyLoss"]
    )
    assert code == 2
    assert "--model.loss MyLoss gave a tensor of shape (16,)" in capsys.readouterr().err
    assert not Path("out").exists()
