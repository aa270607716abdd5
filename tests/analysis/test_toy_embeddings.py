"""The Reality Check's toy examples: its Table 3, and what its text says of Figure 1."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from levelfield.analysis.toy_embeddings import BLOCKS, CORRECT_PLACES, hypothetical_scores, toy_embeddings, toy_scores

TABLE_3 = [(100, 10, 10), (100, 20, 12), (100, 20, 20), (100, 100, 100)]


@pytest.mark.parametrize(("correct", "printed"), list(zip(CORRECT_PLACES, TABLE_3, strict=True)))
def test_hypothetical_results_score_as_in_table_3(correct: tuple[int, ...], printed: tuple[int, ...]) -> None:
    scores = hypothetical_scores(correct)
    assert tuple(100 * score for score in scores.values()) == pytest.approx(printed)


def test_recall_nmi_and_f1_hide_what_map_at_r_shows() -> None:
    scores = {panel: toy_scores(panel) for panel in BLOCKS}
    for panel in BLOCKS:
        assert scores[panel]["precision_at_1"] > 0.99, panel  # "nearly 100% Recall@1"
    for name in ("nmi", "f1"):  # "roughly equal scores for all three"
        assert max(s[name] for s in scores.values()) - min(s[name] for s in scores.values()) < 0.1
    # "Figure 1(c) shows a better separation of the classes than Figure 1(a)"
    assert scores["a"]["map_at_r"] < scores["b"]["map_at_r"] - 0.05 < scores["c"]["map_at_r"] - 0.2


def test_the_scores_of_a_panel_by_a_plain_loop() -> None:
    embeddings, labels = (tensor.numpy() for tensor in toy_embeddings("a", points=100))
    distances = np.linalg.norm(embeddings[:, None].astype(float) - embeddings, axis=2)
    maps = []
    for query, row in enumerate(distances):
        order = [other for other in np.argsort(row, kind="stable") if other != query][:99]
        correct = [labels[other] == labels[query] for other in order]
        maps.append(sum(np.mean(correct[: i + 1]) for i, is_correct in enumerate(correct) if is_correct) / 99)
    clusters = KMeans(2, n_init=10, random_state=0).fit_predict(embeddings)
    ours = toy_scores("a", points=100)
    assert ours["map_at_r"] == pytest.approx(np.mean(maps))
    assert ours["nmi"] == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=0.02)
