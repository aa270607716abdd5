"""YAML in which a key stands once: of two in one mapping the usual readers take the last and say nothing."""

from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError


class RepeatedKey(yaml.YAMLError):
    """A mapping with a key twice; says in which line and which."""


class OnceLoader(yaml.SafeLoader):
    """Safe YAML that refuses a mapping with a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    line = key.start_mark.line + 1
                    raise RepeatedKey(f"line {line}: {key.value!r} stands twice in one mapping; leave one of them out")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def refuse_repeated_keys(path: Path) -> None:
    """Raises UserError for a YAML file with a key twice; what else is wrong with it is left to its reader."""
    try:
        yaml.load(path.read_text(encoding="utf-8"), OnceLoader)
    except RepeatedKey as error:
        raise UserError(f"{path}, {error}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return
