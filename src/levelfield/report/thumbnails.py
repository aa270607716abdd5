"""Small images inside a page, each one CSS rule, so that an image shown twice is stored once."""

import base64
import io

from PIL import Image, ImageOps

from levelfield.errors import UserError
from levelfield.report.scored_samples import ScoredSamples

MOST_BYTES = 5_000_000
QUALITY = 72


class Thumbnails:
    """Thumbnails of test samples as WebP, at most 5 MB of the page.

    Attributes:
        rules: CSS rule by the sample's position.
        left_out: Number of images that could not be opened or did not fit.
    """

    def __init__(self, samples: ScoredSamples) -> None:
        self._samples = samples
        self._bytes = 0
        self.rules: dict[int, str] = {}
        self.left_out = 0

    def add(self, position: int, side: int) -> None:
        """Add a sample's image, within a square of `side` pixels, unless it is there already."""
        if position in self.rules:
            return
        try:
            image = self._samples.load(position)
        except UserError:
            self.left_out += 1
            return
        rule = f".s{position}{{background-image:url(data:image/webp;base64,{_webp(image, side)})}}"
        if self._bytes + len(rule) > MOST_BYTES:
            self.left_out += 1
            return
        self._bytes += len(rule)
        self.rules[position] = rule

    @property
    def style(self) -> str:
        return "\n".join(self.rules[position] for position in sorted(self.rules))


def _webp(image: Image.Image, side: int) -> str:
    content = io.BytesIO()
    ImageOps.contain(image.convert("RGB"), (side, side)).save(content, "WEBP", quality=QUALITY, method=4)
    return base64.b64encode(content.getvalue()).decode()
