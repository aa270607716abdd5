"""YAML in which a key stands once, and which does not grow as it is read.

Of two equal keys in one mapping the usual readers take the last and say nothing.
"""

from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError

MOST_VALUES = 1_000_000


class RepeatedKey(yaml.YAMLError):
    """A mapping with a key twice; says in which line and which."""


class OnceLoader(yaml.SafeLoader):
    """Safe YAML that refuses a mapping with a key twice, and aliases by which a small file holds a huge content."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases make more than {MOST_VALUES:,} values, or one of them holds itself")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    line = key.start_mark.line + 1
                    raise RepeatedKey(f"line {line}: {key.value!r} stands twice in one mapping; leave one of them out")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _values(node: yaml.Node, counted: dict[int, float]) -> float:
    """How many values a node stands for, each alias counted as what it stands for; infinitely many in a circle."""
    if id(node) not in counted:
        counted[id(node)] = float("inf")  # met again before it is counted: a circle
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
        counted[id(node)] = 1 + sum(_values(part, counted) for part in inner)
    return counted[id(node)]


def refuse_repeated_keys(path: Path) -> None:
    """Raises UserError for a YAML file with a key twice; what else is wrong with it is left to its reader."""
    try:
        yaml.load(path.read_text(encoding="utf-8"), OnceLoader)
    except RepeatedKey as error:
        raise UserError(f"{path}, {error}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return
