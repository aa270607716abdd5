"""In-shop Clothes: garments of an online shop, each from several views."""

from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.lists import check_listed_once, read_columns, read_lines
from levelfield.data.index import Role, SampleIndex, index_of_classes

PARTITION = "list_eval_partition.txt"
COLUMNS = {"image_name": str, "item_id": str, "evaluation_status": str}
ROLE_OF: dict[str, Role] = {"train": "", "query": "query", "gallery": "gallery"}


class InShopClothes(NamedDataset):
    """Liu, Luo, Qiu, Wang and Tang, "DeepFashion: Powering Robust Clothes Recognition and Retrieval", CVPR 2016.

    The In-shop Clothes Retrieval Benchmark: 25,882 training images of 3,997 items; 14,218 queries and a gallery of
    12,612 images of 3,985 other items. Classes are in the order of their item numbers.
    Tested with: a small replica.

    Args:
        root: holds `inshop/` with `list_eval_partition.txt` (there or in `Eval/`) and the images `img/` (there or in
            `Img/`); None takes the environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a partition that is missing or malformed, or an item in both halves.
    """

    name = "inshop"
    licence = "non-commercial research, by agreement"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    splits = "official, query and gallery"
    own_split_by_default = True
    num_classes_published = 7982
    num_samples_published = 52712
    archives = (Archive("img.zip", gives="img"), Archive(PARTITION))

    def read_index(self) -> SampleIndex:
        remedy = self.remedy
        folder = self.named_folder()
        file = folder / "Eval" / PARTITION
        file = file if file.is_file() else folder / PARTITION
        rows = read_columns(file, COLUMNS, remedy, headers=2)
        announced = read_lines(file, remedy)[:1]
        if announced and announced[0] != str(len(rows)):
            raise UserError(f"{file}: row 1 announces {announced[0]} images, but {len(rows)} are listed: {remedy}")
        check_listed_once(file, [path for path, _, _ in rows], remedy)
        trains: dict[str, bool] = {}
        for path, item, status in rows:
            if status not in ROLE_OF:
                raise UserError(f"{file}: {status} of {path} is not train, query or gallery: {remedy}")
            if trains.setdefault(item, status == "train") != (status == "train"):
                raise UserError(f"{file}: {item} is in both halves: {remedy}")
        items = sorted(trains)
        return index_of_classes(
            ((path, item) for path, item, _ in rows),
            {item: item for item in items},
            test_classes=tuple(label for label, item in enumerate(items) if not trains[item]),
            roles=tuple(ROLE_OF[status] for _, _, status in rows),
        )

    def file_of(self, key: str) -> Path:
        return self._images() / key

    def _images(self) -> Path:
        """The folder that the paths of the partition are relative to; each begins with `img/`."""
        folder = self.named_folder()
        return folder / "Img" if (folder / "Img").is_dir() else folder
