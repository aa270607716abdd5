"""`data.keep_groups`: classes that share a group stay in one half and in one fold."""

from pathlib import Path

import networkx
import numpy as np
import pytest

from levelfield.core.errors import UserError
from levelfield.data import MetricDataModule
from levelfield.data.datasets import TextTable
from levelfield.data.splits import joined_classes

CLASSES, SAMPLES = 48, 4


def texts(folder: Path, group_of: list[str], split_of: list[str] | None = None) -> TextTable:
    """Four texts of each class, with the group of each text."""
    rows = [(f"text {n}", f"class {n // SAMPLES:02}", group_of[n]) for n in range(CLASSES * SAMPLES)]
    lines = [",".join(row) + (f",{split_of[n // SAMPLES]}" if split_of else "") for n, row in enumerate(rows)]
    head = "text,label,group" + (",split" if split_of else "")
    (folder / "texts.csv").write_text("\n".join([head, *lines]) + "\n")
    return TextTable(folder / "texts.csv")


def chained() -> list[str]:
    """Classes 0 and 9 share a session, 9 and 30 another, 40 and 41 a third; all others have two of their own."""
    groups = [f"own {n // 2}" for n in range(CLASSES * SAMPLES)]
    for shared, members in {"a": (0, 9), "b": (9, 30), "c": (40, 41)}.items():
        for each in members:
            groups[each * SAMPLES + (shared == "b")] = shared
    return groups


@pytest.mark.parametrize("seed", range(5))
def test_joined_classes_are_the_components_of_the_graph_of_classes_and_groups(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, 30, 60), rng.integers(0, 40, 60)
    graph = networkx.Graph()
    graph.add_nodes_from(("class", label) for label in range(30))
    graph.add_edges_from((("class", label), ("group", group)) for label, group in zip(labels, groups, strict=True))
    components = [{n for kind, n in part if kind == "class"} for part in networkx.connected_components(graph)]
    ordered = sorted(filter(None, components), key=min)
    found = joined_classes(labels, groups, 30)
    assert [set(np.flatnonzero(found == number).tolist()) for number in range(len(ordered))] == ordered


@pytest.mark.parametrize("split", ["half", "random", "powerful-benchmarker", "vasilev-dyakonov"])
def test_a_group_is_in_one_half_and_one_fold_with_each_split(split: str, tmp_path: Path) -> None:
    dataset = texts(tmp_path, chained())
    folds = [MetricDataModule(dataset, split=split, fold=fold, keep_groups=True) for fold in range(4)]
    others = [MetricDataModule(dataset, split=split, fold=fold) for fold in range(4)]
    together = [{"class 00", "class 09", "class 30"}, {"class 40", "class 41"}]

    def parts(data: MetricDataModule) -> list[set[str]]:
        found = data.identity()
        return [set(found["train_classes"]), set(found["val_classes"]), set(data.test_classes())]

    for data in folds:
        assert sorted(name for part in parts(data) for name in part) == sorted(dataset.class_names) or split[0] == "p"
        for group in together:
            assert sum(not group.isdisjoint(part) for part in parts(data)) <= 1, group
    cut = [sum(not group.isdisjoint(part) for part in parts(data)) for data in others for group in together]
    assert max(cut) > 1, "without the option a group is cut"


def test_groups_that_no_split_keeps_whole_are_one_line(tmp_path: Path) -> None:
    own, halves = chained(), ["train" if label < 24 else "test" for label in range(CLASSES)]
    few = [f"{n // SAMPLES % 8} {n % 2}" for n in range(len(own))]
    for groups, splits, said in (
        (["one"] * len(own), None, "join all classes"),
        (few, None, "24 classes of the training half into 4, too few for 4 folds"),
        (own, halves, "both halves of the official split"),
    ):
        with pytest.raises(UserError, match=said):
            MetricDataModule(texts(tmp_path, groups, splits), keep_groups=True).setup("fit")
    (tmp_path / "plain.csv").write_text("text,label\na,b\n")
    with pytest.raises(UserError, match="column group"):
        MetricDataModule(TextTable(tmp_path / "plain.csv"), keep_groups=True).setup("fit")
