"""WOS-134: abstracts of papers in the Web of Science, in 134 areas.

Put `WOS46985/` from https://data.mendeley.com/datasets/9rw3vkcfy4/6 into `DIR/wos134/`. Then, in the
folder of the repository:

levelfield fit --config data/own_texts --data.dataset examples.datasets.wos134.WOS134 --data.root DIR \
    --config trunk/distilbert --data.split vasilev-dyakonov --model.loss ContrastiveLoss
"""

from collections.abc import Iterator
from pathlib import Path

from levelfield.data.dataset import NamedTextDataset


class WOS134(NamedTextDataset):
    """Kowsari et al., "HDLTex: Hierarchical Deep Learning for Text Classification", 2017: the set WOS-46985.

    A line of `X.txt` is an abstract; the same line of `Y.txt` is the number of its area, the class.

    Args:
        root: holds `wos134/WOS46985/` with `X.txt` and `Y.txt`, as in the official archive; None takes the
            environment's LEVELFIELD_DATA.
    """

    name = "wos134"
    inner_folder = "WOS46985"
    licence = "CC BY 4.0"
    source = "https://data.mendeley.com/datasets/9rw3vkcfy4/6"
    num_classes_published = 134
    num_samples_published = 46985

    def read_samples(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        texts, areas = ([line.strip() for line in self.lines(name)] for name in ("X.txt", "Y.txt"))
        for row, (text, area) in enumerate(zip(texts, areas, strict=True), start=1):
            yield f"X.txt row {row}", text, str(int(area))
