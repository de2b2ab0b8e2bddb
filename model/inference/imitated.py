"""Whom a checkpoint imitates, by its card (pipeline/imitation); torch is not imported."""

from pathlib import Path

from engine.json_files import parse_json
from model.card import CARD, Imitated


def read_player(directory: Path) -> Imitated | None:
    """Return the player whom a checkpoint imitates; None for nobody, or a card that cannot be read: loading it says why."""
    try:
        return Imitated.model_validate(parse_json((directory / CARD).read_bytes())["data"]["player"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
