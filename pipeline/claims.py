"""What a folder of work is of: written down when the work begins, and compared by whoever would go on with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError
from pipeline.stores import publish_json

TOLD = 4
"""Differences that a refusal names."""


def claim(path: Path, identity: Mapping[str, Any], refusal: type[UserError]) -> None:
    """Publish `identity` as the JSON file `path` where there is none, or find the same there.

    Raises `refusal`, naming what differs, where the folder was begun otherwise, or `path` is no such file.
    """
    if not path.exists():
        publish_json(path.parent, path.name, identity)
        return
    try:
        before = flat({**json.loads(path.read_bytes())})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise refusal(f"{path} cannot be read: choose another directory") from error
    told = differences(before, flat(json.loads(json.dumps(identity))))
    if told:
        message = (
            f"{path.parent} was begun otherwise ({'; '.join(told[:TOLD])}): choose another directory, or remove it"
        )
        raise refusal(message)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Tell in which names two flat objects differ, a phrase each."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {before.get(name)!r}, not {now.get(name)!r}" for name in names]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Give the leaves of nested objects by their dotted names."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves
