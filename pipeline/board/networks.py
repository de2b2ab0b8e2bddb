"""The networks that the page offers, by name; each is loaded on first use."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from engine.cores import count_cores
from engine.errors import UserError
from engine.json_files import parse_json
from engine.search.human import ASSUMED_RATING
from model.card import CARD_FILE, read_player
from pipeline.board.ask import PLAYERS, People
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.training.train import describe_trainings

if TYPE_CHECKING:
    from model.inference.player import Player

MAX_LOADED = 2
"""Maximum number of networks in memory; the least recently used is dropped."""
CHECKPOINTS, REPORTS = Path("datasets/checkpoints"), Path("datasets/reports")
"""Folders, below the working directory, of the user's checkpoints and of reports on them."""
EMBEDDED_GAMES, EMBEDDED_DATE = "rapid 2014-2022", "2026-11-24"
"""Games and date of the embedded network (datasets/README.md), which its card does not hold."""
EMBEDDED_SCALE = "Lichess rapid"
"""Scale of the embedded network's ratings."""
MAX_LABEL_CHARS, MAX_NAME_CHARS, MAX_TRAINING_CHARS = 80, 40, 300
MALFORMED = OSError, ValueError, KeyError, TypeError, AttributeError
"""Errors of reading a card or a report that another program wrote."""


class Networks:
    """Networks by name. Requests hold the lock `turns` while they compute, one at a time."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        self.named, self.turns, self._loading = named, Lock(), Lock()
        self._players: dict[Path, Player] = {}

    def list_folders(self) -> Mapping[str, Path]:
        """Return each network's folder: the named ones, the user's newest first, the embedded one.

        The user's networks are those in CHECKPOINTS. Unfinished runs are left out unless they are
        named.
        """
        finished = [folder for folder in CHECKPOINTS.glob("*") if _read_card(folder)["finished"]]
        newest_first = sorted(finished, key=_read_time, reverse=True)
        found: dict[str, Path] = {}
        for folder in (*self.named, *newest_first, EMBEDDED_CHECKPOINT):
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


def read_people(folder: Path) -> People:
    """Return the people whose moves a checkpoint predicts: one person if it is an imitation."""
    if (imitated := read_player(folder)) is not None:
        return People(_clean(imitated.names[0], MAX_NAME_CHARS), is_one_person=True)
    return (
        PLAYERS if folder.resolve() == EMBEDDED_CHECKPOINT else People("the players in its games")
    )


def _describe(name: str, folder: Path) -> dict[str, Any]:
    """Return what the page shows of a network: what it was trained on, and how well it predicts."""
    card, imitated, people = _read_card(folder), read_player(folder), read_people(folder)
    is_embedded, rating = folder.resolve() == EMBEDDED_CHECKPOINT, 0
    date = datetime.fromtimestamp(_read_time(folder), UTC).date().isoformat()
    if imitated is not None:
        rating = imitated.rating
        facts = [f"imitation of {imitated.names[0]}", f"{rating:,}" if rating else "", date]
        training = f"the moves of {imitated.names[0]} in {imitated.games:,} games"
    elif is_embedded:
        facts = [name, _describe_accuracy(folder, card), EMBEDDED_GAMES, EMBEDDED_DATE]
        training = f"games between people on Lichess, {EMBEDDED_GAMES}"
    else:
        facts = [name, _describe_accuracy(folder, card), *card["datasets"][:2], date]
        training = card["training"]
    if not card["finished"]:
        facts.insert(1, "unfinished")
    return {
        "name": name,
        "label": _clean(", ".join(filter(None, facts)), MAX_LABEL_CHARS),
        "training": _clean(training, MAX_TRAINING_CHARS),
        "people": people.name,
        "is_one_person": people.is_one_person,
        "embedded": is_embedded,
        "rating": rating or ASSUMED_RATING,
        "reads_ratings": card["condition"] != "none",
        "reads_speed": card["condition"] in ("ratings_speed", "ratings_clock"),
        "scale": EMBEDDED_SCALE if is_embedded else "",
    }


def _describe_accuracy(folder: Path, card: Mapping[str, Any]) -> str:
    """Describe the share of moves found in the newest report, or in validation; "" if unknown."""
    name, is_own = folder.resolve().name, folder.resolve().parent == CHECKPOINTS.resolve()
    found = (REPORTS / name).rglob("report.json") if is_own else ()
    reports = [path for path in found if path.is_file()]
    for path in sorted(reports, key=_read_time, reverse=True):
        with suppress(*MALFORMED):
            rows = parse_json(path.read_bytes())["reports"]
            (row,) = (row for row in rows if row["name"] == name)
            if _read_time(path) >= _read_time(folder):  # of this network, not of an earlier one
                return f"{100 * row['top1']:.1f} % in its report"
    top1 = card["validation_top1"]
    return "" if top1 is None else f"{100 * top1:.1f} % in validation"


def _read_time(path: Path) -> float:
    """Return when a report, or the card of a checkpoint's folder, was written."""
    return (path if path.is_file() else path / CARD_FILE).stat().st_mtime


def _read_card(folder: Path) -> dict[str, Any]:
    """Return the fields of a card that the page needs; cards are not trusted."""
    found: dict[str, Any] = {"finished": False, "condition": "", "training": "", "datasets": []}
    found["validation_top1"] = None
    with suppress(*MALFORMED):  # keeps the fields read so far
        card = parse_json((folder / CARD_FILE).read_bytes())
        found["finished"] = card["finished"] is True
        found["condition"] = card["preset"].get("condition", "none")
        found["datasets"] = [str(one["name"]) for one in card["data"].get("datasets", [])]
        top1 = card["metrics"].get("validation_top1")
        found["validation_top1"] = None if top1 is None else float(top1)
        found["training"] = describe_trainings(card)
    return found


def _clean(text: str, limit: int) -> str:
    """Return the printable characters of a text from a file, at most `limit`."""
    return "".join(filter(str.isprintable, text))[:limit]
