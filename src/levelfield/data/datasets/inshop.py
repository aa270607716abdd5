"""In-shop Clothes: garments of an online shop, each from several views."""

from levelfield.data.dataset import NamedDataset, Role, SampleIndex, index_of_classes

PARTITION = "list_eval_partition.txt"
ROLE_OF: dict[str, Role] = {"train": "", "query": "query", "gallery": "gallery"}


class InShopClothes(NamedDataset):
    """Liu, Luo, Qiu, Wang and Tang, "DeepFashion: Powering Robust Clothes Recognition and Retrieval", CVPR 2016.

    The In-shop Clothes Retrieval Benchmark: 25,882 training images of 3,997 items; 14,218 queries and a gallery of
    12,612 images of 3,985 other items. Classes are in the order of their item numbers.
    Tested with: a small replica.

    Args:
        root: holds `inshop/` with `list_eval_partition.txt` and the images in `img/`; None takes the environment's
            LEVELFIELD_DATA.
    """

    name = "inshop"
    own_split_by_default = True

    def read_index(self) -> SampleIndex:
        with self.sound(self.named_folder() / PARTITION):
            rows = [(path, item, ROLE_OF[status]) for path, item, status in map(str.split, self.lines(PARTITION)[2:])]
        tested = {item for _, item, role in rows if role}
        items = sorted({item for _, item, _ in rows})
        return index_of_classes(
            ((path, item) for path, item, _ in rows),
            {item: item for item in items},
            test_classes=tuple(label for label, item in enumerate(items) if item in tested),
            roles=tuple(role for _, _, role in rows),
        )
