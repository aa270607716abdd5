"""Tsinghua Dogs-130 in the low-resolution layout, and the published split of the real folders."""

from pathlib import Path

import numpy as np
from miniatures import dogs130

from levelfield.data.datasets import TsinghuaDogs130
from levelfield.data.splits import split_classes

# The folders of the low-resolution archive: number of images, number and name of the breed.
FOLDERS = """
1043-n000001-Shiba_Dog  1121-n000002-French_bulldog  1160-n000003-Siberian_husky  1324-n000004-malamute
1936-n000005-Pomeranian  200-n000008-Airedale  200-n000010-miniature_poodle  200-n000012-affenpinscher
201-n000024-schipperke  202-n000020-Australian_terrier  202-n000023-Welsh_springer_spaniel
202-n000028-curly_coated_retriever  203-n000015-Staffordshire_bullterrier  203-n000016-Norwich_terrier
203-n000021-Tibetan_terrier  203-n000022-English_setter  203-n000027-Norfolk_terrier  205-n000029-Pembroke
205-n000030-Tibetan_mastiff  206-n000007-Border_terrier  206-n000035-Great_Dane  206-n000037-Scotch_terrier
206-n000047-flat_coated_retriever  206-n000051-Saluki  207-n000011-Irish_setter  207-n000026-Blenheim_spaniel
207-n000036-Irish_terrier  207-n000044-bloodhound  207-n000045-redbone  209-n000040-West_Highland_white_terrier
209-n000042-Brabancon_griffo  209-n000043-dhole  209-n000049-kelpie  209-n000054-Doberman  210-n000006-Ibizan_hound
210-n000048-vizsla  211-n000009-cairn  211-n000018-German_shepherd  211-n000025-African_hunting_dog
211-n000052-Dandie_Dinmont  211-n000058-Sealyham_terrier  211-n000059-German_short_haired_pointer
211-n000061-Bernese_mountain_dog  211-n000068-Saint_Bernard  214-n000019-Leonberg  214-n000033-Bedlington_terrier
215-n000031-Newfoundland  215-n000038-Lhasa  215-n000075-Chesapeake_Bay_retriever  216-n000017-Lakeland_terrier
216-n000063-Walker_hound  216-n000078-American_Staffordshire_terrier  217-n000014-otterhound
217-n000034-Sussex_spaniel  217-n000046-Norwegian_elkhound  217-n000050-bluetick  217-n000079-dingo
219-n000066-Irish_water_spaniel  2192-n000088-Samoyed  220-n000032-Fila_Braziliero  220-n000053-standard_schnauzer
220-n000069-Mexican_hairless  221-n000055-EntleBucher  222-n000013-Afghan_hound  223-n000067-kuvasz
223-n000074-English_foxhound  223-n000092-keeshond  224-n000039-Irish_wolfhound  224-n000056-Scottish_deerhound
224-n000060-Rottweiler  225-n000062-black_and_tan_coonhound  225-n000073-Great_Pyrenees  225-n000082-boxer
226-n000057-wire_haired_fox_terrier  226-n000064-borzoi  227-n000070-groenendael  227-n000094-collie
228-n000085-Gordon_setter  229-n000087-Kerry_blue_terrier  230-n000041-briard  230-n000080-Rhodesian_ridgeback
230-n000084-Boston_bull  231-n000077-bull_mastiff  231-n000081-silky_terrier  232-n000076-Brittany_spaniel
232-n000083-Eskimo_dog  232-n000089-giant_schnauzer  233-n000071-malinois  233-n000072-Bouvier_des_Flandres
234-n000065-whippet  234-n000091-Appenzeller  234-n000093-Chinese_Crested_Dog  2342-n000102-miniature_schnauzer
235-n000090-soft_coated_wheaten_terrier  235-n000096-Weimaraner  235-n000097-clumber
237-n000086-Greater_Swiss_Mountain_dog  237-n000095-toy_terrier  238-n000099-Italian_greyhound  241-n000100-basset
243-n000103-basenji  245-n000098-Australian_Shepherd  249-n000101-Maltese_dog  249-n000106-Japanese_spaniel
253-n000105-Cane_Carso  253-n000107-Japanese_Spitzes  257-n000108-Old_English_sheepdog  258-n000104-Black_sable
2594-n000109-Border_collie  274-n000110-Shetland_sheepdog  276-n000112-English_springer  276-n000113-beagle
286-n000111-cocker_spaniel  2909-n000116-Cardigan  2925-n000114-toy_poodle  3083-n000117-Bichon_Frise
316-n000118-standard_poodle  318-n000115-komondor  329-n000119-chow  3336-n000121-chinese_rural_dog
340-n000120-Yorkshire_terrier  3580-n000122-Labrador_retriever  361-n000123-Shih_Tzu  420-n000124-Chihuahua
480-n000125-Pekinese  5355-n000126-golden_retriever  561-n000127-miniature_pinscher  7449-n000128-teddy
798-n000130-pug  806-n000129-papillon
"""
# The publishers count 70,428 images, as the names of the folders do; the archive holds 70,432, and the sizes of
# Vasilev and D'yakonov's halves say that the other four are of breeds in their training half.
NOT_COUNTED = 4


def test_the_published_split(tmp_path: Path) -> None:
    for folder in FOLDERS.split():
        # One breed's name has a blank in it.
        path = tmp_path / "dogs130" / "low-resolution" / folder.replace("Fila_", "Fila ")
        path.mkdir(parents=True)
        (path / "n1.jpg").touch()
    index = TsinghuaDogs130(tmp_path).read_index()
    images = np.array([int(name.partition("-")[0]) for name in index.class_names])
    assert len(images) == TsinghuaDogs130.num_classes_published == 130
    assert images.sum() + NOT_COUNTED == TsinghuaDogs130.num_samples_published == 70432
    train, test = split_classes(index.labels, "vasilev-dyakonov")
    # Vasilev and D'yakonov's table 1: 65 and 65 breeds, 36,904 and 33,528 images.
    assert (len(train), len(test)) == (65, 65)
    assert (images[train].sum() + NOT_COUNTED, images[test].sum()) == (36904, 33528)


def test_every_image_in_the_folders_is_a_sample(tmp_path: Path) -> None:
    dogs130(tmp_path, classes=5, samples=3)
    index = TsinghuaDogs130(tmp_path).read_index()
    assert len(index.keys) == 15
    assert index.class_names[3] == "3-n000004-Fila Braziliero"
    assert index.keys[9] == "3-n000004-Fila Braziliero/n100009.jpg"
    assert TsinghuaDogs130(tmp_path)[9][0].size == (40, 36)
    problems = TsinghuaDogs130(tmp_path).verify().problems
    assert problems == ["5 classes instead of 130", "15 samples instead of 70432"]
