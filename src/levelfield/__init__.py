"""levelfield: deep metric learning methods compared on a level playing field."""

__version__ = "0.1.0"
