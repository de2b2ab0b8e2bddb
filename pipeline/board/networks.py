"""The networks that the page offers, by name; each is loaded on first use."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from engine.cores import count_cores
from engine.errors import UserError
from engine.json_files import parse_json
from engine.search.human import ASSUMED_RATING
from model.card import CARD_FILE, read_player
from pipeline.samples.shipped import EMBEDDED

if TYPE_CHECKING:
    from model.inference.player import Player

MAX_LOADED = 2
"""Maximum number of networks in memory; the least recently used is dropped."""
CHECKPOINTS = Path("datasets/checkpoints")
"""Folder, below the working directory, whose finished checkpoints are offered too."""
EMBEDDED_DATA = "rapid 2014-2022, 2026-11-24"
"""Games and date of the embedded network (datasets/README.md), which its card does not hold."""
EMBEDDED_SCALE = "Lichess rapid"
"""Scale of the embedded network's ratings."""
MAX_LABEL_CHARS = 80


class Networks:
    """Networks by name. Requests hold the lock `turns` while they compute, one at a time."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        self.named, self.turns, self._loading = named, Lock(), Lock()
        self._players: dict[Path, Player] = {}

    def list_folders(self) -> Mapping[str, Path]:
        """Return each network's folder: the named ones, the embedded one, those in CHECKPOINTS.

        Unfinished runs are left out unless they are named.
        """
        finished = [folder for folder in sorted(CHECKPOINTS.glob("*")) if _read(folder)["finished"]]
        found: dict[str, Path] = {}
        for folder in (*self.named, EMBEDDED, *finished):
            known = [path.resolve() for path in found.values()]
            if (folder / CARD_FILE).is_file() and folder.resolve() not in known:
                name = folder.resolve().name
                found[name if name not in found else str(folder)] = folder
        return found

    def describe(self) -> list[dict[str, Any]]:
        """Return the page's description of each network."""
        return [_describe(name, folder) for name, folder in self.list_folders().items()]

    def find(self, name: str) -> Path:
        """Return a network's folder. Raises UserError for an unknown name."""
        folder = self.list_folders().get(name)
        if folder is None:
            raise UserError(f"there is no network {name!r}: choose another one")
        return folder

    def load(self, name: str) -> "Player":
        """Load a network. Raises UserError for an unknown name or an invalid checkpoint."""
        import model

        folder = self.find(name)
        with self._loading:
            player = self._players.pop(folder, None)
            player = player or model.load(folder, device="cpu", threads=count_cores())
            self._players = dict([*self._players.items(), (folder, player)][-MAX_LOADED:])
            return player


def _describe(name: str, folder: Path) -> dict[str, Any]:
    """Return what the page shows of a network: what it was trained on, and how well it predicts."""
    card, imitated = _read(folder), read_player(folder)
    date = datetime.fromtimestamp((folder / CARD_FILE).stat().st_mtime, UTC).date().isoformat()
    parts = [name] if card["top1"] is None else [name, f"{card['top1']:.0%}".replace("%", " %")]
    if imitated is not None:
        parts = [f"imitation of {imitated.names[0]}"]
        parts += [f"{imitated.rating:,}"] if imitated.rating else []
    parts += [] if card["finished"] else ["unfinished"]
    parts += [EMBEDDED_DATA] if folder == EMBEDDED else [*card["datasets"][:2], date]
    rating = imitated.rating if imitated is not None else 0
    return {
        "name": name,
        "label": "".join(filter(str.isprintable, ", ".join(parts)))[:MAX_LABEL_CHARS],
        "rating": rating or ASSUMED_RATING,
        "reads_ratings": card["condition"] != "none",
        "reads_speed": card["condition"] in ("ratings_speed", "ratings_clock"),
        "scale": EMBEDDED_SCALE if folder == EMBEDDED else "",
    }


def _read(folder: Path) -> dict[str, Any]:
    """Return the fields of a card that the page needs; cards are not trusted."""
    found: dict[str, Any] = {"finished": False, "top1": None, "datasets": [], "condition": ""}
    try:
        card = parse_json((folder / CARD_FILE).read_bytes())
        found["finished"] = card["finished"] is True
        found["condition"] = card["preset"].get("condition", "none")
        found["top1"] = float(card["metrics"]["validation_top1"])
        found["datasets"] = [str(one["name"]) for one in card["data"]["datasets"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return found  # the fields read so far: an imitation has no metrics
    return found
