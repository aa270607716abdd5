"""The options of `levelfield study run` as its engine gets them."""

from argparse import Namespace
from collections.abc import Sequence

from levelfield.cli.options import read
from levelfield.cli.study import with_overrides


def parse(words: Sequence[str]) -> Namespace:
    return with_overrides(read("study", words))
