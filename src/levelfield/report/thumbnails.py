"""Small images inside a page, each one CSS rule, so that an image shown twice is stored once."""

import base64
import io
from collections.abc import Iterable

from PIL import Image, ImageOps

from levelfield.core.errors import UserError
from levelfield.report.scored_samples import ScoredSamples

MOST_BYTES = 5_000_000  # of a page
SIDE, QUALITY = 96, 72


def thumbnails(samples: ScoredSamples, positions: Iterable[int]) -> tuple[list[str], int]:
    """CSS rules with samples as WebP, and the number of images that could not be opened or did not fit."""
    rules: list[str] = []
    left_out = 0
    for position in positions:
        try:
            image = _webp(samples.load(position))
        except UserError:
            left_out += 1
            continue
        rule = f".s{position}{{background-image:url(data:image/webp;base64,{image})}}"
        if sum(map(len, rules)) + len(rule) > MOST_BYTES:
            left_out += 1
        else:
            rules.append(rule)
    return rules, left_out


def _webp(image: Image.Image) -> str:
    content = io.BytesIO()
    ImageOps.contain(image.convert("RGB"), (SIDE, SIDE)).save(content, "WEBP", quality=QUALITY, method=4)
    return base64.b64encode(content.getvalue()).decode()
