"""The corrections of a policy by search that a checkpoint's card holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.json_files import check
from engine.search.human import Aim, Correction
from model.card import HumanSearch

Corrections = dict[Aim, Correction]
"""Corrections by what they aim at; empty for a network that was not calibrated."""


def read_corrections(path: Path, card: Mapping[str, Any], refusal: type[UserError]) -> Corrections:
    """Return the corrections in the card at `path`; raises `refusal` for an entry that does not fit
    its schema.
    """
    entry = card.get("human_search")
    if entry is None:
        return {}
    check(path, entry, HumanSearch, refusal)
    aims: tuple[Aim, ...] = ("likelihood", "strength")
    return {aim: Correction(**entry[aim], simulations=entry["simulations"]) for aim in aims}
