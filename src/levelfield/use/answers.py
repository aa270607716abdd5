"""The answers of a search among images as one sheet (PNG)."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.data.images import open_image
from levelfield.use.gallery import Answer
from levelfield.use.samples import Samples

# Pixels of a thumbnail, of the text below it and of the gap between two.
SIDE, WORDS, GAP = 160, 34, 8
COLUMNS = 6
LONGEST = 24


def check_output(path: Path, modality: str) -> None:
    """Raise UserError for texts or another suffix, before anything is embedded."""
    if modality == "text":
        raise UserError(f"--output {path}: the answers to a text are printed; leave the option out")
    if path.suffix.lower() != ".png":
        raise UserError(f"--output {path}: give a file ending in .png")


def write_answers(query: Samples, answers: Sequence[Answer], path: Path) -> None:
    """Write the query, then its answers with their similarities, nearest first, in rows of six.

    Raises:
        UserError: the file cannot be written.
    """
    tiles = [(query.keys[0], "query", query.names[0])]
    tiles += [(each.key, f"{each.likeness:.3f}", each.label or each.name) for each in answers]
    rows = -(-len(tiles) // COLUMNS)
    width = min(len(tiles), COLUMNS) * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, rows * (SIDE + WORDS + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for number, (key, first, second) in enumerate(tiles):
        left = GAP + number % COLUMNS * (SIDE + GAP)
        top = GAP + number // COLUMNS * (SIDE + WORDS + GAP)
        picture = ImageOps.contain(open_image(key), (SIDE, SIDE))
        sheet.paste(picture, (left + (SIDE - picture.width) // 2, top + (SIDE - picture.height) // 2))
        if number == 0:
            pen.rectangle((left - 3, top - 3, left + SIDE + 2, top + SIDE + 2), outline="black", width=3)
        short = second if len(second) <= LONGEST else "…" + second[1 - LONGEST :]
        pen.multiline_text((left, top + SIDE + 3), f"{first}\n{short}", fill="black", font=font, spacing=1)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_atomically(path, content.getvalue())
