"""Configurations are found by their names from any folder, the working directory's first, from a wheel too."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from refused import refused
from tiny_fit import REPOSITORY

from levelfield.core.configuration import find_configuration
from levelfield.errors import UserError
from levelfield.study.study_file import find_study

CONFIGS = REPOSITORY / "configs"
NAMES = ("configs/data/glyphs.yaml", "data/glyphs.yaml", "data/glyphs")


def test_the_working_directory_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        assert find_configuration(name) == CONFIGS / "data/glyphs.yaml"
    for name in ("quickstart", "quickstart.yaml", "study/quickstart", "configs/study/quickstart.yaml"):
        assert find_study(name) == CONFIGS / "study/quickstart.yaml"
    for place in ("configs/data", "configs/study", "data"):
        Path(place).mkdir(parents=True)
    for file in (CONFIGS / "data/glyphs.yaml", CONFIGS / "study/quickstart.yaml"):
        Path("configs", file.relative_to(CONFIGS)).write_text(file.read_text())
    assert {str(find_configuration(name)) for name in NAMES} == {"configs/data/glyphs.yaml"}
    assert find_study("quickstart") == Path("configs/study/quickstart.yaml")
    Path("data/glyphs.yaml").touch()
    assert find_configuration("data/glyphs") == Path("data/glyphs.yaml")
    with pytest.raises(UserError, match=r"no study file 'quikstart'; did you mean 'quickstart'\?"):
        find_study("quikstart")


def test_a_fit_stacks_shipped_files_and_sets_a_methods_search_aside(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "data/glyphs.yaml", "--config=configs/trunk/tiny.yaml", "--config", "method/arcface"]
    code, printed, complaint = run("fit", *words, "--print_config")
    assert code == 0, complaint
    shown, shipped = yaml.safe_load(printed), yaml.safe_load((CONFIGS / "method/arcface.yaml").read_text())
    assert "search" not in shown
    assert shown["model"]["loss"]["init_args"].items() >= shipped["model"]["loss"]["init_args"].items()
    assert shown["data"]["samples_per_class"] == shipped["data"]["samples_per_class"]
    for wrong in (["--config", "data/glyhps.yaml"], ["--config=data/glyhps.yaml"]):
        refused(run("fit", *wrong), "--config: no file 'data/glyhps.yaml'; did you mean 'data/glyphs.yaml'?")


def test_a_copied_study_finds_the_files_that_it_names(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text((CONFIGS / "study/smoke.yaml").read_text())
    refused(run("study", "status", "mine.yaml"), "no study in outputs/smoke; begin it with levelfield study run")
    Path("mine.yaml").write_text("base: ../data/glyhps.yaml\nmethods: {arcface: method/arcface.yaml}\n")
    refused(run("study", "status", "mine.yaml"), "did you mean 'data/glyphs.yaml'?")


def test_the_wheel_carries_every_configuration(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name.removeprefix("levelfield/configs/"): wheel.read(name) for name in wheel.namelist()}
        wheel.extractall(tmp_path / "site")
    for file in CONFIGS.rglob("*.yaml"):
        assert packed[file.relative_to(CONFIGS).as_posix()] == file.read_bytes()
    (tmp_path / "empty").mkdir()
    code = "from levelfield.core import configuration; print(configuration.find_configuration('data/glyphs.yaml'))"
    found = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    printed = subprocess.run(found, cwd=tmp_path / "empty", env=environment, check=True, capture_output=True, text=True)
    assert Path(printed.stdout.strip()) == tmp_path / "site/levelfield/configs/data/glyphs.yaml"
