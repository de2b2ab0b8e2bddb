"""The filters of games and positions, one table.

    tags -> filters of games -> replay -> filters of positions

To add a filter:
1. Add its setting to Filters; the default keeps everything.
2. Add a row to FILTERS. If it needs a column that no filter reads yet, add a method to GameColumns
  or RowColumns.

Filters are applied in the order of the table, and what is dropped is counted under the first
reason. A game's own text and the configuration decide, so the number of workers and the cut into
chunks change nothing.

Axes: G games, R rows of the games that were replayed.
"""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.board.piece_codes import CODE_BITS
from model.settings import Count, settings
from pipeline.dataset.hashing import splitmix64, unit_interval
from pipeline.dataset.strata import CLASSES, speed_class
from pipeline.errors import ConfigError
from pipeline.ingest.tag_values import NO_LABELS, Tagged, map_values, matches
from pipeline.pgn import replay, tags
from pipeline.pgn.comments import NO_EVAL

SPEEDS = (*(name.lower() for name in CLASSES[:-1]), "correspondence")
"""Classes of time control; the last is the TimeControl `-`, which Lichess writes for games without
a clock."""


TERMINATIONS = (
    *("normal", "time forfeit", "abandoned", "adjudication"),
    *("death", "emergency", "rules infraction", "unterminated"),
)
"""Values of the tag Termination: PGN standard, 9.8.1. Lichess writes them with a capital letter."""

NAMES_HOLD_COMMAS = {"commas": False}
"""Metadata of a setting with names, as "Carlsen, Magnus": the command line does not split it at
commas."""


@settings(ConfigError)
class Filters:
    """Settings of the filters; the defaults keep all, and the manifest counts dropped games."""

    player: tuple[str, ...] = field(default=(), metadata=NAMES_HOLD_COMMAS)
    """Keep only moves of this player, named exactly as in the tags. Several names keep several
    players, none keeps all."""
    min_elo: Count = 0
    """Lowest rating of either player; 0 also keeps games without ratings."""
    max_elo: Count = 0
    """Highest rating of either player; 0 for any."""
    rated_only: bool = False
    """Keep only games whose Event begins with "Rated". Casual games are often not played to win."""
    exclude_bots: bool = False
    """Drop games in which a player has the title BOT or is called lichess AI."""
    speeds: tuple[str, ...] = ()
    """Keep these time controls by base + 40 x increment, as `blitz,rapid`. There are ultrabullet
    (below 30 s), bullet (180), blitz (480), rapid (1500), classical and correspondence; none for
    all."""
    since: str = ""
    """First day to keep, as 2024-01-31. Games without a complete date are then dropped."""
    until: str = ""
    """Last day to keep, as 2024-01-31. Games without a complete date are then dropped."""
    evals_only: bool = False
    """Keep only positions with an engine's evaluation ([%eval]); games without any are dropped
    before replay."""
    terminations: tuple[str, ...] = ()
    """Keep games that ended so, as `normal,time forfeit`. Other endings are abandoned,
    adjudication, death, emergency, rules infraction and unterminated. Games with another text or
    none are dropped."""
    skip_plies: Count = 0
    """Half-moves at the beginning of a game that do not become rows: openings are mostly duplicates
    of each other."""
    min_clock: Count = 0
    """Minimum number of seconds on the mover's clock, if it is known; moves in time trouble teach
    little. 0 for all."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of games to keep, by a hash of their movetext and the seed. A smaller share is a subset
    of a larger one. Of evaluated positions, share of the row groups to read."""
    positions_per_game: Count = 0
    """Maximum number of rows of a game, drawn by a hash, since neighbours are nearly duplicates; 0
    for all."""
    min_pieces: Count = 0
    """Minimum number of pieces on the board, kings and pawns included."""
    max_pieces: Annotated[int, Field(ge=2, le=32)] = 32
    """Maximum number of pieces on the board, kings and pawns included."""
    min_depth: Count = 0
    """Minimum depth of an engine's analysis, which only Lichess's position evaluations state; 0 for
    all."""
    max_score: Count = 0
    """Greatest evaluation in centipawns of either side, mates being 32000; rows without one are
    kept. 0 for all."""

    def __post_init__(self) -> None:
        """Validate the settings."""
        if self.max_elo and self.max_elo < self.min_elo:
            raise ConfigError(f"max_elo {self.max_elo} is below min_elo {self.min_elo}")
        if wrong := [word for word in self.speeds if word not in SPEEDS]:
            raise ConfigError(f"speeds: {wrong[0]!r} is none of {', '.join(SPEEDS)}")
        if wrong := [word for word in self.terminations if word not in TERMINATIONS]:
            raise ConfigError(f"terminations: {wrong[0]!r} is none of {', '.join(TERMINATIONS)}")
        if self.min_pieces > self.max_pieces:
            raise ConfigError(f"min_pieces {self.min_pieces} is above max_pieces {self.max_pieces}")
        first, last = day(self.since, "since"), day(self.until, "until")
        if first and last and last < first:
            raise ConfigError(f"until {self.until} is before since {self.since}")


def day(text: str, name: str) -> int:
    """Return YYYY-MM-DD as the number YYYYMMDD, 0 for ""; raises ConfigError."""
    if not text:
        return 0
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            raise ValueError
        return int(datetime.date.fromisoformat(text).strftime("%Y%m%d"))
    except ValueError:
        raise ConfigError(f"{name} must be a day like 2024-01-31, not {text!r}") from None


# ---------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class GameColumns:
    """Columns [G] of a chunk's games, each computed where a filter reads it."""

    text: NDArray[np.uint8]
    tagged: Tagged
    seed: int

    def has_player(self) -> NDArray[np.bool_]:
        """Return whether one of the wanted players plays."""
        return self.tagged.is_player[:, 0] | self.tagged.is_player[:, 1]

    def lower_elo(self) -> NDArray[np.int32]:
        """Return the lower of both ratings, 0 for unknown."""
        return np.minimum(self.tagged.white_elo, self.tagged.black_elo)

    def higher_elo(self) -> NDArray[np.int32]:
        """Return the higher of both ratings."""
        return np.maximum(self.tagged.white_elo, self.tagged.black_elo)

    def is_rated(self) -> NDArray[np.bool_]:
        """Return whether the Event begins with "Rated"."""
        return self._matches(tags.EVENT, lambda event: event.lower().startswith("rated"))

    def has_bot(self) -> NDArray[np.bool_]:
        """Return whether a player is a bot."""
        titled = [
            self._matches(tag, lambda title: title == "BOT")
            for tag in (tags.WHITE_TITLE, tags.BLACK_TITLE)
        ]
        named = [
            self._matches(tag, lambda name: name.lower().startswith("lichess ai"))
            for tag in (tags.WHITE, tags.BLACK)
        ]
        found: NDArray[np.bool_] = np.logical_or.reduce([*titled, *named])
        return found

    def speed(self) -> NDArray[np.int64]:
        """Return the index of the time control in SPEEDS, -1 for unknown."""
        base = self.tagged.games.base
        unclocked = self._matches(tags.TIME_CONTROL, lambda control: control.strip() == "-")
        return np.where(
            base >= 0,
            speed_class(base, self.tagged.increment),
            np.where(unclocked, len(SPEEDS) - 1, -1),
        )

    def termination(self) -> NDArray[np.int64]:
        """Return the index of the Termination in TERMINATIONS, -1 for another text or none."""

        def number(text: str) -> int:
            word = text.strip().lower()
            return TERMINATIONS.index(word) if word in TERMINATIONS else -1

        return map_values(self.text, self.tagged.spans[:, tags.TERMINATION], number, np.int64)

    def date(self) -> NDArray[np.int64]:
        """Return the date as YYYYMMDD, 0 if a part of it is unknown."""
        spans = self.tagged.spans
        spans = np.where(
            spans[:, [tags.UTC_DATE], 1] > 0, spans[:, tags.UTC_DATE], spans[:, tags.DATE]
        )
        parts = []
        for first, last in ((0, 4), (5, 7), (8, 10)):  # YYYY.MM.DD
            part = np.stack([spans[:, 0] + first, spans[:, 0] + last], axis=1)
            part[spans[:, 1] - spans[:, 0] != 10] = 0
            number = np.empty(len(spans), dtype=np.int32)
            tags.read_integers(self.text, part, 0, number)
            parts.append(number.astype(np.int64))
        year, month, date = parts
        return np.where(
            (year > 0) & (month > 0) & (date > 0), year * 10_000 + month * 100 + date, 0
        )

    def draw(self) -> NDArray[np.float64]:
        """Return a number in [0, 1) by a hash of the stripped movetext and the seed.

        0 for evaluated positions, of which a sample was read.
        """
        games = self.tagged.games
        if self.tagged.depth is not None:
            return np.zeros(len(games.status))
        spans, whole = np.stack([games.movetext, games.start[1:]], axis=1), self.text.tobytes()
        for span in spans:
            span[1] = span[0] + len(whole[span[0] : span[1]].rstrip())
        hashes = np.zeros(len(spans), dtype=np.uint64)
        tags.hash_spans(self.text, spans, hashes)
        return unit_interval(splitmix64(hashes, self.seed))

    def has_eval(self) -> NDArray[np.bool_]:
        """Return whether the movetext of a kept game may have an evaluation."""
        games, whole = self.tagged.games, self.text.tobytes()
        found = np.full(len(games.status), self.tagged.depth is not None)
        if self.tagged.depth is not None:
            return found
        for game in np.flatnonzero(games.status == replay.USED):
            found[game] = whole.find(b"[%eval", games.movetext[game], games.start[game + 1]) >= 0
        return found

    def _matches(self, tag: int, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        return matches(self.text, self.tagged.spans[:, tag], wanted)


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Columns [R] of replayed positions, each computed where a filter reads it."""

    rows: replay.Rows
    tagged: Tagged
    seed: int
    reason: NDArray[np.uint8]
    """Index into ROW_STATUS: what earlier filters decided."""

    def is_players(self) -> NDArray[np.bool_]:
        """Return whether the mover is one of the wanted players."""
        own: NDArray[np.bool_] = self.tagged.is_player[
            self.rows.game, self.rows["black"].astype(np.int64)
        ]
        return own

    def game_ply(self) -> NDArray[np.int64]:
        """Return the half-moves before this one, the largest number outside games."""
        no_game = self.tagged.parity[self.rows.game] != NO_LABELS
        return np.where(no_game, np.iinfo(np.int64).max, self.rows.ply)

    def clock(self) -> NDArray[Any]:
        """Return the seconds on the mover's clock, the largest number for unknown."""
        return self.rows["clock"]

    def eval(self) -> NDArray[Any]:
        """Return the evaluation, NO_EVAL for none."""
        return self.rows["eval"]

    def pieces(self) -> NDArray[np.int64]:
        """Return the number of pieces on the board."""
        occupied: NDArray[Any] = np.bitwise_or.reduce(
            [self.rows[f"codes_{bit}"] for bit in range(CODE_BITS)]
        )
        count: NDArray[np.int64] = np.bitwise_count(occupied).astype(np.int64)
        return count

    def depth(self) -> NDArray[np.int64]:
        """Return the depth of the analysis, 0 for unknown."""
        depth = self.tagged.depth
        return (
            np.zeros(len(self.rows), dtype=np.int64)
            if depth is None
            else depth[self.rows.game].astype(np.int64)
        )

    def score(self) -> NDArray[np.int64]:
        """Return the evaluation without its sign, 0 for none."""
        value = self.rows["eval"].astype(np.int64)
        return np.where(value == NO_EVAL, 0, np.abs(value))

    def rank_in_game(self) -> NDArray[np.int64]:
        """Return each kept row's rank, from 0, in a random order of its game's rows."""
        game, ply = self.rows.game, self.rows.ply.astype(np.uint64)
        drawn = splitmix64(self.tagged.games.identity[game] ^ (ply << np.uint64(48)), self.seed)
        rank, kept = np.full(len(game), -1), np.flatnonzero(self.reason == KEPT)
        order = kept[np.lexsort((drawn[kept], game[kept]))]
        _, begins, counts = np.unique(game[order], return_index=True, return_counts=True)
        rank[order] = np.arange(len(order)) - np.repeat(begins, counts)
        return rank


# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of games or positions."""

    setting: str
    """Field of Filters; the filter applies unless it has its default."""
    columns: tuple[str, ...]
    """Methods of GameColumns, or of RowColumns for a filter of positions."""
    refuses: Callable[..., NDArray[np.bool_]]
    """Takes the settings and the columns, and returns whether each game or row is dropped."""
    reason: str
    """Name in the manifest and the games' table."""


GAME_FILTERS = (
    Filter("player", ("has_player",), lambda its, there: ~there, "filter: player"),
    Filter("min_elo", ("lower_elo",), lambda its, lower: lower < its.min_elo, "filter: elo"),
    Filter("max_elo", ("higher_elo",), lambda its, higher: higher > its.max_elo, "filter: elo"),
    Filter("rated_only", ("is_rated",), lambda its, rated: ~rated, "filter: casual"),
    Filter("exclude_bots", ("has_bot",), lambda its, bot: bot, "filter: bot"),
    Filter(
        "speeds",
        ("speed",),
        lambda its, speed: ~np.isin(speed, list(map(SPEEDS.index, its.speeds))),
        "filter: speed",
    ),
    Filter(
        "terminations",
        ("termination",),
        lambda its, end: ~np.isin(end, list(map(TERMINATIONS.index, its.terminations))),
        "filter: termination",
    ),
    Filter("since", ("date",), lambda its, date: date < day(its.since, "since"), "filter: date"),
    Filter(
        "until",
        ("date",),
        lambda its, date: (date == 0) | (date > day(its.until, "until")),
        "filter: date",
    ),
    Filter("sample", ("draw",), lambda its, draw: draw >= its.sample, "filter: sample"),
    Filter("evals_only", ("has_eval",), lambda its, found: ~found, "filter: no evals"),
)
ROW_FILTERS = (
    Filter("player", ("is_players",), lambda its, own: ~own, "filter: another player's move"),
    Filter("skip_plies", ("game_ply",), lambda its, ply: ply < its.skip_plies, "filter: opening"),
    Filter("min_clock", ("clock",), lambda its, clock: clock < its.min_clock, "filter: clock"),
    Filter("evals_only", ("eval",), lambda its, value: value == NO_EVAL, "filter: no eval"),
    Filter(
        "min_pieces", ("pieces",), lambda its, pieces: pieces < its.min_pieces, "filter: pieces"
    ),
    Filter(
        "max_pieces", ("pieces",), lambda its, pieces: pieces > its.max_pieces, "filter: pieces"
    ),
    Filter("min_depth", ("depth",), lambda its, depth: depth < its.min_depth, "filter: depth"),
    Filter("max_score", ("score",), lambda its, score: score > its.max_score, "filter: score"),
    Filter(
        "positions_per_game",
        ("rank_in_game",),
        lambda its, rank: rank >= its.positions_per_game,
        "filter: positions per game",
    ),
)
GAME_STATUS = tuple(dict.fromkeys((*replay.STATUS, *(row.reason for row in GAME_FILTERS))))
"""Outcome of a game by number: used, or the reason it is dropped."""
ROW_STATUS = ("kept", "not a labelled move", *dict.fromkeys(row.reason for row in ROW_FILTERS))
"""Outcome of a row by number: kept, or the reason it is dropped."""
KEPT, NOT_LABELLED = 0, 1


def active(table: tuple[Filter, ...], settings: Filters) -> list[Filter]:
    """Return the filters whose settings differ from the defaults."""
    defaults: dict[str, Any] = {one.name: one.default for one in fields(Filters)}
    # an empty list, as JSON has it, is no filter either
    return [
        row
        for row in table
        if (getattr(settings, row.setting) or None) != (defaults[row.setting] or None)
    ]


def apply_filters(
    table: tuple[Filter, ...],
    columns: GameColumns | RowColumns,
    settings: Filters,
    status: NDArray[np.uint8],
    names: tuple[str, ...],
) -> None:
    """Mark the games or rows that filters drop in `status`; the first reason stays."""
    for row in active(table, settings):
        refused = row.refuses(settings, *(getattr(columns, name)() for name in row.columns))
        status[(status == KEPT) & refused] = names.index(row.reason)
