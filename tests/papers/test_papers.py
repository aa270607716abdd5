"""`python papers`: each table and figure is a command, study files keep what the paper says, and they run."""

import re
from pathlib import Path

import pytest
from begun_study import begun
from small_fit import small_config
from tiny_fit import REPOSITORY

from levelfield.study.jobs import study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline
from levelfield.training.build import Training
from papers.__main__ import exhibits, main
from papers.published import papers, read_table, searches

PAPERS = REPOSITORY / "papers"
# As the papers number them.
TABLES = {"reality_check": 8, "zhai_wu": 6, "fehervari": 4, "vasilev_dyakonov": 7}
FIGURES = {"reality_check": 3, "zhai_wu": 4, "fehervari": 2, "vasilev_dyakonov": 4}
FURTHER = {"reality_check/validation_and_test", "vasilev_dyakonov/ranks"}
FILES = [path for paper in TABLES for path in sorted((PAPERS / paper).glob("*.yaml"))]
EXTENDED = {path.parent / name for path in FILES for name in re.findall(r"(?m)^extends: (\S+)$", path.read_text())}


STUDIES = sorted({file for exhibit in exhibits().values() for file in exhibit.files})


def test_every_table_and_figure_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    numbered = {f"{paper}/table{n}" for paper, count in TABLES.items() for n in range(1, count + 1)}
    numbered |= {f"{paper}/figure{n}" for paper, count in FIGURES.items() for n in range(1, count + 1)}
    assert set(exhibits()) == numbered | FURTHER
    for exhibit in exhibits().values():
        assert all(file in FILES for file in exhibit.files)
        if exhibit.read:
            assert exhibit.read == "levelfield data list" or (REPOSITORY / exhibit.read).is_file()
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in exhibits() if f" {name} " not in printed] == []


def test_every_study_file_resolves_and_opens_with_what_it_takes() -> None:
    assert set(FILES) - set(STUDIES) <= EXTENDED, "of no table, and nothing extends it"
    for path in STUDIES:
        assert load_spec(path).name == f"{path.parent.name}_{path.stem}"
        opening = re.match(r"(?:#.*\n)+", path.read_text())
        assert opening is not None
        command = f"levelfield study run {path.relative_to(REPOSITORY)} --data.root DIR"
        assert all(part in opening[0] for part in ("Reaches in the paper:", "Takes:", command)), path


@pytest.mark.full
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parent.name}_{file.stem}")
def test_each_method_of_a_study_takes_two_steps_on_letters(file: Path, tmp_path: Path) -> None:
    """With its loss, embedder, sampler, optimizer and schedule; of a sweep the first value and the last."""
    methods: dict[str, list[str]] = {}
    for name in (spec := load_spec(file)).methods:
        methods.setdefault(name.partition("[")[0], []).append(name)
    for name in (name for names in methods.values() for name in {names[0], names[-1]}):
        config = spec.methods[name]
        own = {key: value for key, value in config["data"].items() if key not in ("root", "cache", "split")}
        model = {"trunk": small_config()["model"]["trunk"]}
        if "LayerNormEmbedder" in str(config["model"].get("embedder")):
            model["embedding_size"] = 96  # its only size
        small = {"max_epochs": 2, "check_val_every_n_epoch": 1, "accelerator": "cpu", "log_every_n_steps": 1}
        data = {"dataset": {"class_path": "Glyphs", "init_args": {"num_classes": 60, "image_size": 32}}}
        data |= {"steps_per_epoch": 1, "num_workers": 0, "transforms": {"crop_size": 32, "resize": 32}}
        of_job = {
            "model": {"loss": "ContrastiveLoss"} | config["model"] | model,
            "data": own | data,
            "trainer": config["trainer"] | small,
        }
        training = Training(of_job, tmp_path / name).build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        assert training.trainer.global_step == 2


def test_run_trains_the_studies_and_beside_shows_the_paper_s_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    file = PAPERS / "zhai_wu/table4.yaml"
    title, told = papers()["zhai_wu"]["title"][:13], []
    monkeypatch.setattr("papers.__main__.levelfield", lambda words: told.append(words) or 0)
    for more in ([], ["--dry-run"]):
        begun(tmp_path / "zhai_wu_table4", file)
        assert main(["run", "zhai_wu/table4", "--output", str(tmp_path), *more]) == 0
        assert told.pop() == ["study", "run", str(file), "--output", str(tmp_path / "zhai_wu_table4"), *more]
        assert (title in capsys.readouterr().out) == (more == [])
    assert main(["beside", str(tmp_path / "zhai_wu_table4"), "--dataset", "cars196"]) == 0
    printed = capsys.readouterr().out
    assert (title in printed, "data set cub200 here, cars196 there" in printed) == (True, True)


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in (
        ("run reality_check/table9", "reality_check/table9"),
        ("run reality_check/table1 --data.rot DIR", "data.rot"),
        ("run reality_check/figure3", "figures/figure3.md"),
        ("beside nowhere", "nowhere"),
    ):
        assert main(words.split()) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert named in line


# The data set and the batch of the paper's tables; every how many epochs a training is evaluated, and how many
# evaluations without a better one end it.
FULL_SIZE = {"table4_cub": ("cub200", 32, 2, 5), "table8": ("cub200", 256, 2, 5)}
FULL_SIZE |= {"table5_cars": ("cars196", 32, 5, 3), "table6_sop": ("sop", 32, 20, 2)}


def test_each_study_scores_what_its_paper_s_table_has() -> None:
    """recall@1 is precision_at_1, which every study has, as MAP@R; Fehervari et al. take NMI's geometric mean."""
    for name, dataset in {
        **{f"fehervari/{table}": "cub200" for table in ("table2_bn_inception", "table2_resnet50")},
        **{"fehervari/table3": "cars196", "fehervari/table4": "sop"},
        **{f"zhai_wu/table{table}_cub": "cub200" for table in (1, 2, 3, 6)},
        **{f"zhai_wu/table{table}_sop": "sop" for table in (1, 2, 3, 5)},
        **{"zhai_wu/table5_inshop": "inshop", "zhai_wu/table6_cars": "cars196"},
        **{f"vasilev_dyakonov/{name}": name for name in ("cub200", "cars196", "sop", "dogs130", "news20", "wos134")},
    }.items():
        paper = name.partition("/")[0]
        there = {row["metric"] for row in read_table(paper, "tables.csv") if row["dataset"] == dataset}
        expected = there - {"recall_at_1", "reported_recall_at_1", "map_at_r"}
        if paper == "fehervari":
            expected = {"nmi_geometric" if metric == "nmi" else metric for metric in expected}
        spec = load_spec(PAPERS / f"{name}.yaml")
        if name == "fehervari/table2_bn_inception" or paper == "vasilev_dyakonov":
            assert len(spec.methods) == (11 if paper == "fehervari" else 16)  # all but DREML
        # Zhai and Wu's R@40 and R@50 of In-shop are its own paper's.
        assert set(spec.metrics) - {"recall_at_40", "recall_at_50"} == expected, name


def test_what_the_papers_say_and_no_table_of_protocols_has() -> None:
    """Zhai and Wu, section 4.1; Fehervari et al., sections 2.9 and 4.1; Vasilev and D'yakonov, section 4.2."""
    for method in load_spec(PAPERS / "zhai_wu/table6_cub.yaml").methods.values():
        rates = {method["model"][key] for key in ("trunk_lr", "embedder_lr", "loss_lr")}
        assert (method["data"]["replacement"], rates) == (True, {0.001})
    fehervari = load_spec(PAPERS / "fehervari/table2_bn_inception.yaml").methods
    softmax = fehervari["proxy_softmax"]["model"]["embedder"]["init_args"]
    assert softmax == {"bias": False, "dropout": 0.5, "weight_norm": True}
    assert fehervari["structured_clustering"]["model"]["loss"]["init_args"]["gamma_decay"] < 1
    # Table 1, last column.
    raw = {name for name, method in fehervari.items() if not method["model"].get("normalize", True)}
    assert raw == {"triplet_semihard", "lifted_structure", "n_pairs", "angular", "prototypical"}
    for name in ("vasilev_dyakonov/cub200", "vasilev_dyakonov/news20"):
        for method in load_spec(PAPERS / f"{name}.yaml").methods.values():
            assert "init_args" not in method["model"]["loss"]  # library defaults


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_study_is_the_paper_s(name: str) -> None:
    dataset, batch_size, every, patience = FULL_SIZE[name]
    spec = load_spec(PAPERS / "reality_check" / f"{name}.yaml")
    jobs = study_jobs(spec)
    assert len(jobs) == 14 * (50 + 10) * 4 + 4 + 1  # with the one PCA
    # Of the three tables with batches of 32 they are the paper's ten thousand trainings.
    assert 3 * sum(not is_baseline(job.method) for job in jobs) == 10_080
    spaces = {(each["loss"], each["dataset"], each["batch_size"]): each["space"] for each in searches()}
    for method, config in spec.methods.items():
        assert config["data"]["batch_size"] == batch_size
        assert config["trainer"]["check_val_every_n_epoch"] == every
        (stopping,) = config["trainer"]["callbacks"]
        assert stopping["init_args"] == {"monitor": "val/map_at_r", "mode": "max", "patience": patience}
        searched = {key.rpartition(".")[2]: (it.low, it.high, it.scale) for key, it in spec.space(method).items()}
        space = spaces[method, dataset, batch_size]
        assert searched == {name: (it["low"], it["high"], it["scale"]) for name, it in space.items()}
