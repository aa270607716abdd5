"""Stanford Online Products: 22,634 products, with a few photographs of each."""

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.lists import check_listed_once, read_columns
from levelfield.data.index import SampleIndex, index_of_classes

COLUMNS = {"image_id": int, "class_id": int, "super_class_id": int, "path": str}


class StanfordOnlineProducts(NamedDataset):
    """Song, Xiang, Jegelka and Savarese, "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.

    Classes are in the order of their official numbers: 1 to 11318 are the official training half, 11319 to 22634 the
    test half.
    Tested with: a small replica.

    Args:
        root: holds `sop/Stanford_Online_Products/` with `Ebay_train.txt`, `Ebay_test.txt` and the folders of images,
            as in the official archive; None takes the environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a list that is missing or malformed, or a class in both lists.
    """

    name = "sop"
    inner_folder = "Stanford_Online_Products"
    licence = "see LICENSE in the archive"
    source = "https://cvgl.stanford.edu/projects/lifted_struct/"
    num_classes_published = 22634
    num_samples_published = 120053
    splits = "half, official, vasilev-dyakonov"
    archives = (
        Archive(
            "Stanford_Online_Products.zip",
            gives="Stanford_Online_Products",
            url="http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            size=3083860082,
            sha256="b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
        ),
    )

    def read_index(self) -> SampleIndex:
        remedy = self.remedy
        samples: list[tuple[str, int]] = []
        name_of: dict[int, str] = {}
        train_classes: set[int] = set()
        for part in ("train", "test"):
            file = self.named_folder() / f"Ebay_{part}.txt"
            rows = read_columns(file, COLUMNS, remedy, headers=1)
            check_listed_once(file, [path for *_, path in rows], remedy)
            for _, class_id, _, path in rows:
                if class_id in train_classes:
                    raise UserError(f"{file}: class {class_id} of {path} is already in Ebay_train.txt: {remedy}")
                samples.append((path, class_id))
                name_of.setdefault(class_id, f"{path.partition('_final/')[0]}/{class_id}")
            if part == "train":
                train_classes = set(name_of)
        names = dict(sorted(name_of.items()))
        tested = tuple(label for label, class_id in enumerate(names) if class_id not in train_classes)
        return index_of_classes(samples, names, test_classes=tested)
