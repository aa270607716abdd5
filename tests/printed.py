"""What a printed sentence says, whatever its words."""

import re


def numbers(text: str) -> list[float]:
    """Its numbers in their order."""
    return [float(found.replace(",", "")) for found in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)]
