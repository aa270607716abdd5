"""Pages that contain their style and figures."""

import base64
from typing import Any
from xml.etree import ElementTree


def render(template: str, **contents: Any) -> str:
    """Fill in a template of this package; text is escaped, a missing name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("levelfield.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(contents)


def inside(svg: bytes) -> str:
    """A figure as a data URL, so that the page is one file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def size_of(svg: bytes) -> tuple[int, int]:
    """Width and height in pixels, so that the page reserves the figure's space."""
    drawing = ElementTree.fromstring(svg)
    width, height = (round(float(drawing.attrib[side].removesuffix("pt")) * 96 / 72) for side in ("width", "height"))
    return width, height
