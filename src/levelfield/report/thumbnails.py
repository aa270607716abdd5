"""Small pictures inside a page, a rule of its style each, so that one shown in many places is there once."""

import base64
import io

from PIL import Image, ImageOps

from levelfield.errors import UserError
from levelfield.report.scored_samples import ScoredSamples

MOST_BYTES = 5_000_000
QUALITY = 72


class Thumbnails:
    """Thumbnails of test samples as WebP, at most 5 MB together as they stand in the page.

    Attributes:
        rules: Of each picture, by the sample's position.
        left_out: How many could not be opened, or would not have fitted.
    """

    def __init__(self, samples: ScoredSamples) -> None:
        self._samples = samples
        self._bytes = 0
        self.rules: dict[int, str] = {}
        self.left_out = 0

    def add(self, position: int, side: int) -> None:
        """Take a sample's picture in, within a square of `side` pixels, unless it is there."""
        if position in self.rules:
            return
        try:
            picture = self._samples.load(position)
        except UserError:
            self.left_out += 1
            return
        rule = f".s{position}{{background-image:url(data:image/webp;base64,{_webp(picture, side)})}}"
        if self._bytes + len(rule) > MOST_BYTES:
            self.left_out += 1
            return
        self._bytes += len(rule)
        self.rules[position] = rule

    @property
    def style(self) -> str:
        return "\n".join(self.rules[position] for position in sorted(self.rules))


def _webp(picture: Image.Image, side: int) -> str:
    content = io.BytesIO()
    ImageOps.contain(picture.convert("RGB"), (side, side)).save(content, "WEBP", quality=QUALITY, method=4)
    return base64.b64encode(content.getvalue()).decode()
