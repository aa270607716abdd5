"""constraints.txt has each direct dependency in a version that pyproject.toml allows, and nothing of one machine."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiny_fit import REPOSITORY

# Ray is installed by `make test-full` alone, and faiss-gpu-cu12 by nobody who has faiss-cpu.
NOT_IN_CI = {"ray", "faiss-gpu-cu12"}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
DIRECT = [
    requirement
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, lines)
    if requirement.name not in {PROJECT["name"], *NOT_IN_CI}
]
LINES = (REPOSITORY / "constraints.txt").read_text().splitlines()[1:]
VERSIONS = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_the_constraint_is_within_the_bounds(requirement: Requirement) -> None:
    assert requirement.specifier, "give it the lowest version that make test-oldest passes with"
    assert VERSIONS[canonicalize_name(requirement.name)] in requirement.specifier


def test_constraints_are_names_and_versions_for_every_platform() -> None:
    assert len(VERSIONS) == len(LINES)
    for line in LINES:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line  # no path, address, hash or build such as +cpu
        assert not line.startswith(("nvidia", "cuda", "triton", "levelfield")), line


def test_a_clone_can_be_installed_editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make quickstart` does it. hatchling refuses Python files that the wheel has at another place."""
    build = pytest.importorskip("hatchling.build")
    monkeypatch.chdir(REPOSITORY)
    with zipfile.ZipFile(tmp_path / build.build_editable(str(tmp_path))) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith(".pth")]
        assert wheel.read(path).decode().strip() == str(REPOSITORY / "src")
