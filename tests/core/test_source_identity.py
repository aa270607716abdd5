"""A row's source is the files of its classes: an edit there changes it, an edit elsewhere does not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import levelfield
from levelfield.core import source_identity
from levelfield.core.source_identity import sources

LOSSES = """import math
from my_parts.distances import squared
SCALE = 3
class First:
    def forward(self, x):  # a comment
        return squared(x) * SCALE
if SCALE:
    class Second:
        pass
"""
DISTANCES = "def squared(x):\n    return x * x\n"
OTHER = """class Third:
    def forward(self, x):
        '''
        Not changed, # this.

        '''
        return '''
        # a text'''
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_parts").mkdir()
    (tmp_path / "my_parts" / "distances.py").write_text(DISTANCES)
    (tmp_path / "my_losses.py").write_text(LOSSES)
    (tmp_path / "my_other.py").write_text(OTHER)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))
    source_identity._read.cache_clear()  # an edit of the same size in the same tick of the clock


def test_a_class_is_made_of_the_files_that_it_reaches(own: Path) -> None:
    assert list(sources("my_losses.First")) == ["my_losses.py", "my_parts/distances.py"]
    assert "my_losses.py" in sources({"model": {"loss": {"class_path": "my_losses.Second"}}})
    (own / "my_folder" / "one").mkdir(parents=True)  # without __init__.py
    (own / "my_folder" / "one" / "my_loss.py").write_text("class MyLoss:\n    pass\n")
    assert list(sources("my_folder.one.my_loss.MyLoss")) == ["my_folder/one/my_loss.py"]
    assert sources("torch.optim.Adam") == sources("my_losses.Missing") == sources("glyphs.csv") == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("my_losses.py", "  # a comment", "  # another", []),
        ("my_losses.py", "SCALE = 3", "# three\n\n\nSCALE = 3  # times", []),
        ("my_losses.py", "SCALE = 3", "SCALE = 4", ["First", "Second"]),
        ("my_losses.py", "import math\n", "import my_other\n", ["First", "Second"]),
        ("my_parts/distances.py", "x * x", "x ** 2", ["First", "Second"]),
        ("my_other.py", "Not changed, # this.", "Changed.\n", []),
        ("my_other.py", "# a text", "# another text", ["Third"]),
    ],
)
def test_an_edit_changes_the_rows_of_its_file(own: Path, file: str, old: str, new: str, stale: list[str]) -> None:
    names = {"First": "my_losses", "Second": "my_losses", "Third": "my_other"}
    before = {name: sources(f"{module}.{name}") for name, module in names.items()}
    edit(own / file, old, new)
    assert [name for name, module in names.items() if sources(f"{module}.{name}") != before[name]] == stale


def test_modules_that_import_each_other_end(own: Path) -> None:
    (own / "my_parts" / "__init__.py").write_text("from my_parts.distances import *\n")
    edit(own / "my_parts" / "distances.py", "def squared", "from my_parts import other\n\n\ndef squared")
    edit(own / "my_losses.py", "my_parts.distances", "my_parts")
    assert list(sources("my_losses.First")) == ["my_losses.py", "my_parts/__init__.py", "my_parts/distances.py"]


def test_a_class_that_extends_one_of_levelfield_has_its_files_too(own: Path) -> None:
    files = [
        *("levelfield/core/numerics.py", "levelfield/losses/base.py", "levelfield/losses/contrastive.py"),
        *("levelfield/losses/pairs.py", "my_losses.py", "my_parts/distances.py"),
    ]
    old = "import math\n"
    edit(own / "my_losses.py", old, "from levelfield.losses import ContrastiveLoss\n" + old)
    assert list(sources("my_losses.First")) == files
    edit(own / "my_losses.py", old, "from levelfield.training.learner import MetricLearner\nimport torch\n" + old)
    assert list(sources("my_losses.First")) == files


# The file, an edit of it, and the rows that it makes stale; most files are used without being named. `untrained` has a
# trunk and data only, as in `StudySpec.class_settings`.
EDITS = [
    ("losses/contrastive.py", "class ContrastiveLoss", "# mine\nclass ContrastiveLoss", ""),
    ("losses/pairs.py", "class PairLoss", "class Mine:\n    pass\n\n\nclass PairLoss", "pairs"),
    ("losses/mine.py", "", "class MyLoss:\n    pass\n", ""),
    ("data/datasets/mine.py", "", "class MySet:\n    pass\n", ""),
    ("metrics/definitions.py", "import", "import os\nimport", ""),
    ("data/transforms.py", "v2.RandomCrop(self.crop_size)", "v2.RandomCrop(self.crop_size, padding=4)", "all"),
    ("data/loaders.py", '("sample", self.seed', '("view", self.seed', "all"),
    ("data/splits.py", "half = len(classes) // 2", "half = len(classes) // 3", "all"),
    ("core/seeds.py", "hashlib.sha256", "hashlib.sha512", "all"),
    ("models/trunks.py", "1 / 255", "1 / 256", "all"),
    ("models/embedders.py", "nn.Dropout(", "nn.AlphaDropout(", "trained"),
    ("data/samplers.py", "divmod(self.batch_size", "divmod(1 + self.batch_size", "trained"),
    ("core/numerics.py", "_Unit.apply(vectors)[0]", "_Unit.apply(2 * vectors)[0]", "trained"),
    ("data/datamodule.py", "fold: int", "fold:  int", ""),
    ("training/optimization.py", "import", "import ", ""),
]
EDIT = """import json, pathlib, sys
import levelfield
from levelfield.core.source_identity import sources
def ask():
    data = {"dataset": "Glyphs", "transforms": {"crop_size": 32}}
    trained = {"model": {"loss": "NormalizedSoftmaxLoss", "embedder": {"init_args": {"bias": False}}}, "data": data}
    pairs = {"model": {"loss": {"class_path": "ContrastiveLoss"}}, "data": {"dataset": "Banking77"}}
    rows = {"trained": trained, "untrained": ["levelfield.models.TimmTrunk", data], "pairs": pairs}
    return {row: sources(settings) for row, settings in rows.items()}
stale, before = [], ask()
for name, old, new, _ in json.load(sys.stdin):
    file = pathlib.Path(levelfield.__file__).parent / name
    text = file.read_text() if old else ""
    assert old in text, (name, old)
    file.write_text(text.replace(old, new) if old else new)
    now = ask()
    stale.append([row for row in now if now[row] != before[row]])
    before = now
print(json.dumps(stale))
"""


def test_an_edit_of_what_a_row_uses_without_naming_it_is_seen(tmp_path: Path) -> None:
    shutil.copytree(Path(levelfield.__file__).parent, tmp_path / "levelfield")
    command, clone = [sys.executable, "-c", EDIT], {"PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, input=json.dumps(EDITS), env=clone, stdout=subprocess.PIPE, text=True, check=True)
    rows = {"all": ["trained", "untrained", "pairs"], "trained": ["trained", "pairs"], "pairs": ["pairs"], "": []}
    assert json.loads(found.stdout) == [rows[stale] for *_, stale in EDITS]


def test_a_name_that_levelfield_data_imports_on_first_use_is_found() -> None:
    found = sources("levelfield.data.samplers.ShuffledBatchSampler")
    assert found == sources("levelfield.data.ShuffledBatchSampler") == sources("ShuffledBatchSampler") != {}
