"""Read from a checkpoint's card whom it imitates (pipeline/imitation), without importing torch."""

from pathlib import Path

from engine.json_files import parse_json
from model.card import CARD, Imitated


def read_player(directory: Path) -> Imitated | None:
    """Return the player whom a checkpoint imitates, or None, also for an unreadable card: loading
    it raises the reason.
    """
    try:
        return Imitated.model_validate(
            parse_json((directory / CARD).read_bytes())["data"]["player"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
