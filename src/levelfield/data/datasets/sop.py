"""Stanford Online Products: 22,634 products, with a few photographs of each."""

from levelfield.data.dataset import NamedDataset, SampleIndex, index_of_classes


class StanfordOnlineProducts(NamedDataset):
    """Song, Xiang, Jegelka and Savarese, "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.

    Classes are in the order of their official numbers: 1 to 11318 are the official training half, 11319 to 22634 the
    test half.
    Tested with: a small replica.

    Args:
        root: holds `sop/Stanford_Online_Products/` with `Ebay_train.txt`, `Ebay_test.txt` and the folders of images,
            as in the official archive; None takes the environment's LEVELFIELD_DATA.
    """

    name = "sop"

    def read_index(self) -> SampleIndex:
        with self.sound(self.named_folder()):
            # image_id class_id super_class_id path
            train, test = (
                [(path, int(product)) for _, product, _, path in map(str.split, self.lines(f"Ebay_{part}.txt")[1:])]
                for part in ("train", "test")
            )
        names = {product: f"{path.partition('_final/')[0]}/{product}" for path, product in reversed(train + test)}
        products, tested = sorted(names), {product for _, product in test}
        return index_of_classes(
            train + test,
            {product: names[product] for product in products},
            test_classes=tuple(label for label, product in enumerate(products) if product in tested),
        )
