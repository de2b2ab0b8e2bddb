"""The networks that the page offers, by name; each is loaded on first use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from engine.errors import UserError
from model.card import CARD, read_player
from pipeline.samples.shipped import EMBEDDED

if TYPE_CHECKING:
    from model.inference.player import Player

MAX_LOADED = 2
"""Maximum number of networks in memory; the least recently used is dropped."""
CHECKPOINTS = Path("datasets/checkpoints")
"""Folder, below the working directory, whose checkpoints are offered too."""


class Networks:
    """Networks by name. Requests hold the lock `turns` while they compute, one at a time."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        self.named, self.turns, self._loading = named, Lock(), Lock()
        self._players: dict[Path, Player] = {}

    def places(self) -> Mapping[str, Path]:
        """Return each network's folder: the named ones, the embedded one, those in CHECKPOINTS."""
        found: dict[str, Path] = {}
        for place in (*self.named, EMBEDDED, *sorted(CHECKPOINTS.glob("*"))):
            known = [path.resolve() for path in found.values()]
            if (place / CARD).is_file() and place.resolve() not in known:
                name = place.resolve().name
                found[name if name not in found else str(place)] = place
        return found

    def ratings(self) -> Mapping[str, int]:
        """Return the imitated player's rating, for each network that has one."""
        players = {name: read_player(place) for name, place in self.places().items()}
        ratings = {name: player.rating for name, player in players.items() if player is not None}
        return {name: rating for name, rating in ratings.items() if rating}

    def load(self, name: str) -> "Player":
        """Load a network. Raises UserError for an unknown name or an invalid checkpoint."""
        import model

        place = self.places().get(name)
        if place is None:
            raise UserError(f"there is no network {name!r}: choose another one")
        with self._loading:
            player = self._players.pop(place, None) or model.load(place, device="cpu")
            self._players = dict([*self._players.items(), (place, player)][-MAX_LOADED:])
            return player
