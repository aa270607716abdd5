"""`levelfield study`: what it prints, what it finds, and one line for each mistake."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from printed import numbers

from levelfield.cli.main import main as levelfield
from levelfield.cli.study import main, parse
from levelfield.errors import UserError
from levelfield.study.added_method import method_of_loss
from levelfield.study.rows import load_spec

TEN_LINE_LOSS = '''
from torch import nn


class MyLoss(nn.Module):
    """Pulls pairs of a class together and pushes others below a cosine of 0.5."""

    def forward(self, embeddings, labels):
        cosines = embeddings @ embeddings.T
        same = labels[:, None] == labels[None, :]
        return (1 - cosines[same]).mean() + (cosines[~same] - 0.5).clamp(min=0).mean()
'''


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_file: Path) -> Path:
    """A working directory with configs/study/toy.yaml."""
    (tmp_path / "configs" / "study").mkdir(parents=True)
    shutil.copy(toy_file, tmp_path / "configs" / "study" / "toy.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def test_report_prints_the_table_and_derives_the_files_anew(
    desk: Path, finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(desk / "cache"))  # of a user who has evaluated nothing else
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    for name in ("results.csv", "summary.csv"):
        (folder / name).unlink()
    assert main(["report", "toy"]) == 0
    for name in ("results.csv", "summary.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    printed = capsys.readouterr().out
    for word in ("features, PCA to 16", "Contrastive", "ArcFace", "too few runs", "once"):
        assert word in printed
    assert [line.split()[-1] for line in printed.splitlines()[-2:]] == ["outputs/toy/report/index.html", "outputs/toy"]
    page = (folder / "report" / "index.html").read_text()
    (differs,) = (line for line in page.splitlines() if "data.samples_per_class" in line)
    assert "ArcFace: " in differs
    assert numbers(differs)[-2:] == [1, 4]


def test_status_counts_jobs_and_tells_the_time_left(
    desk: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, desk / "somewhere"))
    for run in range(2):
        (folder / f"jobs/arcface/run{run}/fold1/result.json").unlink()
    for path in (folder / "jobs" / "arcface").glob("*/fold*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 60.0}))
    assert main(["status", "toy.yaml", "--output", "somewhere"]) == 0
    counts = {line.split()[0]: numbers(line) for line in capsys.readouterr().out.splitlines() if line}
    assert [counts[key] for key in ("done", "running", "to", "left")] == [[20, 22], [], [2], [2]]


def test_resume_takes_the_settings_from_the_folder(
    desk: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    file = desk / "configs" / "study" / "toy.yaml"
    file.write_text(file.read_text().replace("runs: 2", "runs: 3"))
    with pytest.raises(UserError, match=r"runs .*2 .*3"):
        main(["run", "toy"])
    capsys.readouterr()
    assert main(["resume", "toy"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    for word in ("outputs/toy/study.yaml", "runs ", "configs/study/toy.yaml"):
        assert word in said
    file.unlink()
    for command in ("resume", "status", "report", "verify"):
        assert main([command, "outputs/toy"]) == 0
    assert main(["resume", "outputs/toy", "--data.root", "elsewhere"]) == 0, "where the data lie changes no number"
    assert "root: elsewhere" in (folder / "study.yaml").read_text()
    for name in ("results.csv", "summary.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    for words, key in {
        "resume outputs/toy --runs 3": "runs",
        "resume outputs/toy --search.trials 4": r"search\.trials .*--recompute",
        "resume outputs/toy --trainer.max_epochs 4": r"max_epochs .*--recompute",
        "resume outputs/toy --add-method TripletMarginLoss": "--add-method",
        "resume outputs/toy --output other": "--output other",
        "resume outputs/toy --rusn.x 1": r"--rusn\.x",
        "run outputs/toy": "outputs/toy .*levelfield study resume",
    }.items():
        with pytest.raises(UserError, match=key) as caught:
            main(words.split())
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("output", ["file", "file/within"])
@pytest.mark.parametrize("command", ["run", "resume", "status", "report", "verify"])
def test_an_output_that_is_a_file_is_one_line(
    command: str, output: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("mine")
    assert levelfield(["study", command, "toy", "--output", output]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "file" in error
    assert Path("file").read_text() == "mine"


@pytest.mark.slow
def test_add_method_compares_a_loss_of_the_working_directory(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "my_loss.py").write_text(TEN_LINE_LOSS)
    words = ["run", "toy.yaml", "--add-method", "my_loss.MyLoss", "--runs", "1", "--trainer.max_epochs=1"]
    words += ["--search.trials", "1"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("  ") and line.strip()]
    assert rows[-4] == "features,"
    assert set(rows[-3:]) == {"Contrastive", "ArcFace", "my_loss"}
    assert (desk / "outputs" / "toy" / "jobs" / "my_loss" / "run0" / "test" / "result.json").exists()
    assert "mean of 1 run\n" in printed, "the override of the number of runs"
    assert "my_loss (" in printed, "nothing says what to search"


@pytest.mark.slow
def test_the_command_printed_next_adds_a_loss_to_a_study_that_was_given_options(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "more.yaml").write_text("model: {embedding_size: 12}\n")
    (desk / "my_loss.py").write_text(TEN_LINE_LOSS)
    options = ["--config", "more.yaml", "--search.trials", "1", "--runs=1", "--trainer.max_epochs=1"]
    assert main(["run", "toy.yaml", *options, "--output", "here"]) == 0
    printed = capsys.readouterr().out
    again = next(line for line in printed.splitlines() if line.startswith("next: "))
    words = shlex.split(again[again.index("levelfield ") :])
    assert levelfield(words[1:]) == 0
    assert (desk / "here/jobs/my_loss/run0/test/result.json").exists()
    assert "my_loss" in (desk / "here/results.csv").read_text()
    assert "--add-method" not in capsys.readouterr().out


def test_an_added_loss_with_class_weights_draws_one_sample_a_class() -> None:
    name, config = method_of_loss("levelfield.losses.NormalizedSoftmaxLoss")
    assert name == "normalized_softmax_loss"
    assert config["data"] == {"samples_per_class": 1}
    assert "data" not in method_of_loss("ContrastiveLoss")[1]


def test_dotted_options_are_overrides_wherever_they_stand() -> None:
    words = ["run", "--data.root", "DIR", "toy.yaml", "--trainer.max_epochs=2", "--runs", "3", "--output", "x"]
    arguments = parse(
        [*words, "--data.dataset.table", "t.csv", "--data.dataset=Omniglot", "--executor.devices", "[1, 0]"]
    )
    assert (arguments.file, arguments.output, arguments.options) == ("toy.yaml", Path("x"), {"devices": [1, 0]})
    assert list(arguments.overrides.items()) == [
        ("runs", 3),
        ("data.root", "DIR"),
        ("trainer.max_epochs", 2),
        ("data.dataset.table", "t.csv"),
        ("data.dataset", "Omniglot"),
    ]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("rnu toy.yaml", "'run'"),
        ("run tyo.yaml", "'toy'"),
        ("run toy --outptu x", "'--output'"),
        ("run toy --out x", "'--output'"),
        ("run toy --search.trails 1", "'trials'"),
        ("run toy --search.sampler gpp", r"search\.sampler .*'gp'"),
        ("run toy --executor.worker 2", "'--executor.workers'"),
        ("run toy --executor.workers 0", r"--executor\.workers 0"),
        ("run toy --executor.workers two", r"--executor\.workers two: .*int, 'auto'$"),
        ("run toy --executor locale", "--executor locale: .*'local'"),
        ("run toy --executor cloud", "--executor cloud: .*local"),
        ("run toy --executor.devices a", r"--executor\.devices a: .*int, \S*Sequence\[int\], null$"),
        ("run toy --runs many", "--runs many: .*int$"),
        ("run toy --rusn 1", "'--runs'"),
        ("run toy --data.root", r"--data\.root"),
        ("run", "FILE"),
        ("run toy --data.datset.num_classes 5", "datset"),
        ("run toy --data.dataset.num_clases 5", "num_clases.*'num_classes'"),
        ("status toy", "outputs/toy"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_computes_nothing(desk: Path, words: str, key: str) -> None:
    with pytest.raises(UserError, match=key) as caught:
        main(words.split())
    assert len(str(caught.value).splitlines()) == 1
    assert [path for path in desk.glob("outputs/toy/*") if not path.name.startswith(".")] == []


def test_the_command_line_prints_that_line_and_exits_with_2(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert levelfield(["study", "rnu", "toy.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("title", ["../elsewhere", "a/b", "..", "/tmp/x", ""])
def test_a_title_leads_out_of_no_folder(desk: Path, title: str) -> None:
    file = desk / "configs" / "study" / "toy.yaml"
    file.write_text(file.read_text().replace("name: toy", f"name: {title!r}"))
    with pytest.raises(UserError, match=r"^name: .*--output"):
        main(["run", "toy"])
    assert not (desk / "outputs").exists()


@pytest.mark.parametrize(
    ("command", "used", "others"),
    [
        ("run", ["--add-method", "--from", "--recompute", "--runs", "--json"], ["--figures", "--to ", "--with"]),
        ("resume", ["--recompute", "--runs", "--json"], ["--add-method", "--from", "--figures", "--to "]),
        ("status", ["--output", "--json"], ["--recompute", "--figures", "--to ", "--runs"]),
        ("report", ["--output", "--figures", "--with"], ["--json", "--recompute", "--to "]),
        ("verify", ["--output"], ["--json", "--recompute", "--figures", "--to "]),
        ("archive", ["--output", "--to "], ["--json", "--recompute", "--figures"]),
    ],
)
def test_the_help_of_a_command_has_its_own_options_only(
    command: str, used: list[str], others: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    options = [line.split()[0] + " " for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    assert [name for name in used if not any(option.startswith(name) for option in options)] == []
    assert [name for name in others if any(option.startswith(name) for option in options)] == []


def test_help_shows_the_commands_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for word in ("run", "resume", "status", "report", "levelfield study run quickstart.yaml", "--add-method"):
        assert word in printed


def test_a_key_that_appends_may_be_given_several_times(toy_file: Path) -> None:
    words = ["run", str(toy_file)]
    for callback in ("ValidateFirst", "LearningRateMonitor"):
        words += ["--trainer.callbacks+", callback]
    spec = load_spec(toy_file, parse(words).overrides)
    assert spec.methods["arcface"]["trainer"]["callbacks"] == ["ValidateFirst", "LearningRateMonitor"]
