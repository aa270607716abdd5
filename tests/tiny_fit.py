"""Options that make a fit take a second or two."""

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent

# 40 letters at 32 px and a random trunk: a fit takes a second or two.
TINY = [
    "--config", str(REPOSITORY / "configs/data/glyphs.yaml"),
    "--config", str(REPOSITORY / "configs/trunk/tiny.yaml"),
    "--config", str(REPOSITORY / "configs/trainer/debug.yaml"),
    "--data.dataset.num_classes", "40",
    "--data.transforms.crop_size", "32",
    "--data.transforms.resize", "32",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip
