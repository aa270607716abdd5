"""The answers of a search as a sheet of images (PNG), or a page (HTML) of images or texts."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.data.images import open_image
from levelfield.use.gallery import SHOWN, Answer
from levelfield.use.samples import Samples

SUFFIXES = {"image": (".png", ".html"), "text": (".html",)}
# Pixels of a thumbnail, of the text below it and of the gap between two.
SIDE, WORDS, GAP = 160, 34, 8
COLUMNS = 6
LONGEST = 24
STYLE = """
body { font: 15px sans-serif; margin: 2em; color-scheme: light dark }
figure { display: inline-block; margin: 0 12px 12px 0; width: 168px; vertical-align: top; overflow-wrap: anywhere }
td { padding: 4px 12px 4px 0; vertical-align: top }
"""


def check_output(path: Path, modality: str) -> None:
    """Raise UserError for an unsupported suffix, before anything is embedded."""
    if path.suffix.lower() not in SUFFIXES[modality]:
        raise UserError(f"--output {path}: give a file ending in {' or '.join(SUFFIXES[modality])}")


def write_answers(query: Samples, answers: Sequence[Answer], distance: str, path: Path) -> None:
    """Write the query and its answers, with their similarities.

    Raises:
        UserError: an unsupported suffix, or a file that cannot be written.
    """
    check_output(path, query.modality)
    if path.suffix.lower() == ".png":
        content = io.BytesIO()
        contact_sheet(query, answers).save(content, "PNG")
        write_atomically(path, content.getvalue())
    else:
        write_atomically(path, page(query, answers, distance).encode())


def contact_sheet(query: Samples, answers: Sequence[Answer]) -> Image.Image:
    """The query, then the answers, nearest first, in rows of six."""
    tiles = [(query.keys[0], "query", query.names[0])]
    tiles += [(each.key, f"{each.likeness:.3f}", each.label or each.name) for each in answers]
    rows = -(-len(tiles) // COLUMNS)
    width = min(len(tiles), COLUMNS) * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, rows * (SIDE + WORDS + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for number, (key, first, second) in enumerate(tiles):
        left = GAP + number % COLUMNS * (SIDE + GAP)
        top = GAP + number // COLUMNS * (SIDE + WORDS + GAP)
        picture = thumbnail(key)
        sheet.paste(picture, (left + (SIDE - picture.width) // 2, top + (SIDE - picture.height) // 2))
        if number == 0:
            pen.rectangle((left - 3, top - 3, left + SIDE + 2, top + SIDE + 2), outline="black", width=3)
        short = second if len(second) <= LONGEST else "…" + second[1 - LONGEST :]
        pen.multiline_text((left, top + SIDE + 3), f"{first}\n{short}", fill="black", font=font, spacing=1)
    return sheet


def thumbnail(key: Path) -> Image.Image:
    """An image within a square of 160 pixels."""
    return ImageOps.contain(open_image(key), (SIDE, SIDE))


def page(query: Samples, answers: Sequence[Answer], distance: str) -> str:
    """One HTML file that contains its images."""
    asked = html.escape(query.names[0])
    if query.modality == "image":
        body = _figure(query.keys[0], "query", query.names[0])
        body += "".join(_figure(each.key, f"{each.likeness:.4f}", each.name, each.label) for each in answers)
    else:
        lines = "".join(
            f"<tr><td>{each.likeness:.4f}</td><td>{html.escape(each.name)}</td><td>{html.escape(each.label)}</td></tr>"
            for each in answers
        )
        body = f"<p>{asked}</p><table><tr><th>{SHOWN[distance]}</th><th>text</th><th>label</th></tr>{lines}</table>"
    head = f'<meta charset="utf-8"><title>{asked}</title><style>{STYLE}</style>'
    return f"<!DOCTYPE html>\n<html lang=en><head>{head}</head><body><h1>Nearest neighbours</h1>{body}</body></html>\n"


def _figure(key: Path, *words: str) -> str:
    content = io.BytesIO()
    thumbnail(key).save(content, "JPEG", quality=85)
    source = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    said = "<br>".join(html.escape(word) for word in words if word)
    return f'<figure><img src="{source}" alt="{html.escape(words[1])}"><figcaption>{said}</figcaption></figure>'
