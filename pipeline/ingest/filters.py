"""Filters of games and of positions, in two tables.

    tags -> game filters -> replay -> row filters

To add a filter:
1. Add its setting to Filters, with a default that keeps everything.
2. Add a row to GAME_FILTERS or ROW_FILTERS. If it needs a column that no filter reads yet, add a
   method to GameColumns or RowColumns.

Filters are applied in the order of their table, and a dropped game or row is counted under its
first reason. The outcome depends only on the game's text and the configuration, so the number of
workers and the chunk size do not matter.

Axes: G games, R rows of the replayed games.
"""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from model.settings import Count, settings
from pipeline.dataset.hashing import splitmix64, to_unit_interval
from pipeline.dataset.strata import TIME_CLASSES, classify_speeds
from pipeline.errors import ConfigError
from pipeline.ingest.games import (
    EVERY_PLY,
    TaggedGames,
    find_date_spans,
    map_values,
    match_texts,
)
from pipeline.pgn import replay, tags
from pipeline.pgn.text import NO_EVAL

SPEEDS = (*(name.lower() for name in TIME_CLASSES[:-1]), "correspondence")
"""Classes of time control. The last one is for the TimeControl `-`, which Lichess writes for games
without a clock."""
TERMINATIONS = (
    *("normal", "time forfeit", "abandoned", "adjudication"),
    *("death", "emergency", "rules infraction", "unterminated"),
)
"""Values of the tag Termination in the PGN standard (9.8.1), in lower case."""

NAMES_HOLD_COMMAS = {"commas": False}
"""Metadata of a field that tells the command line not to split names like "Carlsen, Magnus"."""


@settings(ConfigError)
class Filters:
    """Settings of the filters; the defaults keep everything."""

    player: tuple[str, ...] = field(default=(), metadata=NAMES_HOLD_COMMAS)
    """Keep only the moves of these players, named exactly as in the tags White and Black; by
    default, those of all players."""
    min_elo: Count = 0
    """Minimum rating of both players; 0 also keeps games without ratings."""
    max_elo: Count = 0
    """Maximum rating of both players; 0 for no limit. Games without ratings are kept."""
    rated_only: bool = False
    """Keep only games whose tag Event begins with "Rated". Casual games are often not played to
    win."""
    exclude_bots: bool = False
    """Drop games in which a player has the title BOT or a name that begins with "lichess AI"."""
    speeds: tuple[str, ...] = ()
    """Time controls to keep, such as `blitz,rapid`; default: all. By base + 40 x increment, a game
    is ultrabullet (below 30 s), bullet (below 180 s), blitz (below 480 s), rapid (below 1500 s) or
    classical. Games without a clock are correspondence; those with an unknown time control are
    dropped."""
    since: str = ""
    """Keep only games from this day on, such as 2024-01-31. Games without a complete date are
    dropped."""
    until: str = ""
    """Keep only games up to this day, such as 2024-01-31. Games without a complete date are
    dropped."""
    evals_only: bool = False
    """Keep only positions with an engine's evaluation ([%eval]), and their games."""
    terminations: tuple[str, ...] = ()
    """Values of the Termination tag to keep, such as `normal,time forfeit`; default: all. The other
    values are abandoned, adjudication, death, emergency, rules infraction and unterminated."""
    skip_plies: Count = 0
    """Number of half-moves to skip at the start of each game, since many games share an opening."""
    min_clock: Count = 0
    """Minimum seconds on the mover's clock, to drop moves in time trouble, which are poor examples;
    0 keeps all, and positions without a clock are always kept."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of games to keep, above 0 and at most 1. A hash of the movetext and the seed chooses
    them, so a smaller share keeps a subset of the games of a larger one. For evaluated positions,
    it is the share of row groups, or of blocks of JSON lines, to read."""
    positions_per_game: Count = 0
    """Maximum number of positions per game, chosen by a hash, since neighboring positions are
    nearly duplicates; 0 for all."""

    def __post_init__(self) -> None:
        if self.max_elo and self.max_elo < self.min_elo:
            raise ConfigError(f"max_elo {self.max_elo} is below min_elo {self.min_elo}")
        if wrong := [word for word in self.speeds if word not in SPEEDS]:
            raise ConfigError(f"speeds: {wrong[0]!r} is not one of {', '.join(SPEEDS)}")
        if wrong := [word for word in self.terminations if word not in TERMINATIONS]:
            raise ConfigError(f"terminations: {wrong[0]!r} is not one of {', '.join(TERMINATIONS)}")
        first, last = parse_day(self.since, "since"), parse_day(self.until, "until")
        if first and last and last < first:
            raise ConfigError(f"until {self.until} is before since {self.since}")


def parse_day(text: str, name: str) -> int:
    """Convert YYYY-MM-DD to the number YYYYMMDD, and "" to 0.

    Raises ConfigError, in which `name` is the setting.
    """
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
    """Columns of a chunk's games, [G] unless stated; each is computed when a filter needs it."""

    text: NDArray[np.uint8]
    tagged: TaggedGames
    seed: int

    def elo(self) -> NDArray[np.int32]:
        """Return the ratings of White and Black, [G, 2], 0 if unknown."""
        return np.stack([self.tagged.white_elo, self.tagged.black_elo], axis=1)

    def is_rated(self) -> NDArray[np.bool_]:
        """Return whether the tag Event begins with "Rated", in any case."""
        return self._matches(tags.EVENT, lambda event: event.lower().startswith("rated"))

    def has_bot(self) -> NDArray[np.bool_]:
        """Return whether a player is a bot."""
        has_bot = np.zeros(len(self.tagged.spans), dtype=np.bool_)
        for title, name in ((tags.WHITE_TITLE, tags.WHITE), (tags.BLACK_TITLE, tags.BLACK)):
            has_bot |= self._matches(title, lambda text: text == "BOT")
            has_bot |= self._matches(name, lambda text: text.lower().startswith("lichess ai"))
        return has_bot

    def speed(self) -> NDArray[np.str_]:
        """Return the class of the time control, one of SPEEDS, or "" if it is unknown."""
        base = self.tagged.games.base
        is_unclocked = self._matches(tags.TIME_CONTROL, lambda control: control.strip() == "-")
        classes = classify_speeds(base, self.tagged.increment)
        names = np.array((*SPEEDS, ""))  # -2 is correspondence, -1 is unknown
        return names[np.where(base >= 0, classes, np.where(is_unclocked, -2, -1))]

    def termination(self) -> NDArray[Any]:
        """Return the tag Termination in lower case, without surrounding blanks."""
        spans = self.tagged.spans[:, tags.TERMINATION]
        return map_values(self.text, spans, lambda text: text.strip().lower(), np.object_)

    def date(self, unknown: int = 0) -> NDArray[np.int64]:
        """Return the date as the number YYYYMMDD, or `unknown` if it is incomplete."""

        def parse_date(text: str) -> int:
            found = re.fullmatch(r"(\d{4}).(\d\d).(\d\d)", text, re.ASCII)
            year, month, day = (int(part) for part in found.groups()) if found else (0, 0, 0)
            return year * 10_000 + month * 100 + day if year and month and day else unknown

        return map_values(self.text, find_date_spans(self.tagged.spans), parse_date, np.int64)

    def sample_value(self) -> NDArray[np.float64]:
        """Return a pseudo-random number in [0, 1): a hash of the stripped movetext and the seed.

        It is 0 for evaluated positions, which are sampled when they are read.
        """
        games = self.tagged.games
        if self.tagged.is_evaluations:
            return np.zeros(len(games.status))
        spans, whole = np.stack([games.movetext, games.start[1:]], axis=1), self.text.tobytes()
        for span in spans:
            span[1] = span[0] + len(whole[span[0] : span[1]].rstrip())
        hashes = np.zeros(len(spans), dtype=np.uint64)
        tags.hash_spans(self.text, spans, hashes)
        return to_unit_interval(splitmix64(hashes, self.seed))

    def has_eval(self) -> NDArray[np.bool_]:
        """Return whether a game may have an evaluation; False for PGN games that are dropped."""
        games, whole = self.tagged.games, self.text.tobytes()
        found = np.full(len(games.status), self.tagged.is_evaluations)
        if self.tagged.is_evaluations:
            return found
        for game in np.flatnonzero(games.status == replay.USED):
            found[game] = whole.find(b"[%eval", games.movetext[game], games.start[game + 1]) >= 0
        return found

    def _matches(self, tag: int, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        return match_texts(self.text, self.tagged.spans[:, tag], wanted)


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Columns of replayed rows, [R]; each is computed when a filter needs it."""

    rows: replay.Rows
    tagged: TaggedGames
    seed: int
    status: NDArray[np.uint8]
    """Outcome of the earlier filters, an index into ROW_STATUS."""

    def is_move_of_player(self) -> NDArray[np.bool_]:
        """Return whether the mover is one of the wanted players."""
        is_wanted: NDArray[np.bool_] = self.tagged.is_player[
            self.rows.game, self.rows["black"].astype(np.int64)
        ]
        return is_wanted

    def game_ply(self) -> NDArray[np.int64]:
        """Return the number of earlier half-moves; the largest int64 for puzzles and EPD."""
        is_no_game = self.tagged.parity[self.rows.game] != EVERY_PLY
        return np.where(is_no_game, np.iinfo(np.int64).max, self.rows.ply)

    def rank_in_game(self) -> NDArray[np.int64]:
        """Return each kept row's rank in a random order of its game's kept rows; -1 for others."""
        game, ply = self.rows.game, self.rows.ply.astype(np.uint64)
        hashes = splitmix64(self.tagged.games.identity[game] ^ (ply << np.uint64(48)), self.seed)
        rank, kept = np.full(len(game), -1), np.flatnonzero(self.status == KEPT)
        order = kept[np.lexsort((hashes[kept], game[kept]))]
        _, first, counts = np.unique(game[order], return_index=True, return_counts=True)
        rank[order] = np.arange(len(order)) - np.repeat(first, counts)
        return rank


# ---------------------------------------------------------------- the table


class Filter(NamedTuple):
    """A filter of games or rows."""

    setting: str
    """Field of Filters that controls it; the filter is off if the field has its default."""
    reason: str
    """Name of the filter in the manifest and the games table, where `filter: ` precedes it."""
    select: Callable[[Filters, Any], NDArray[np.bool_]]
    """Return a mask of the games or rows to drop, from the settings and GameColumns or
    RowColumns."""


GAME_FILTERS = (
    Filter("player", "player", lambda config, games: ~games.tagged.is_player.any(axis=1)),
    Filter("min_elo", "elo", lambda config, games: games.elo().min(axis=1) < config.min_elo),
    Filter("max_elo", "elo", lambda config, games: games.elo().max(axis=1) > config.max_elo),
    Filter("rated_only", "casual", lambda config, games: ~games.is_rated()),
    Filter("exclude_bots", "bot", lambda config, games: games.has_bot()),
    Filter("speeds", "speed", lambda config, games: ~np.isin(games.speed(), config.speeds)),
    Filter(
        "terminations",
        "termination",
        lambda config, games: ~np.isin(games.termination(), config.terminations),
    ),
    Filter("since", "date", lambda config, games: games.date() < parse_day(config.since, "since")),
    Filter(
        "until", "date", lambda config, games: games.date(10**8) > parse_day(config.until, "until")
    ),
    Filter("sample", "sample", lambda config, games: games.sample_value() >= config.sample),
    Filter("evals_only", "no evals", lambda config, games: ~games.has_eval()),
)
ROW_FILTERS = (
    Filter("player", "another player's move", lambda config, rows: ~rows.is_move_of_player()),
    Filter("skip_plies", "opening", lambda config, rows: rows.game_ply() < config.skip_plies),
    Filter("min_clock", "clock", lambda config, rows: rows.rows["clock"] < config.min_clock),
    Filter("evals_only", "no eval", lambda config, rows: rows.rows["eval"] == NO_EVAL),
    Filter(
        "positions_per_game",
        "positions per game",
        lambda config, rows: rows.rank_in_game() >= config.positions_per_game,
    ),
)
GAME_STATUS = (*replay.STATUS, *dict.fromkeys(f"filter: {row.reason}" for row in GAME_FILTERS))
"""Outcomes of a game, indexed by status: used, or the reason it was dropped."""
ROW_STATUS = (
    *("kept", "not a labelled move"),
    *dict.fromkeys(f"filter: {row.reason}" for row in ROW_FILTERS),
)
"""Outcomes of a row, indexed by status: kept, or the reason it was dropped."""
KEPT, NOT_LABELLED = 0, 1
"""Indices of ROW_STATUS; KEPT is also the index of used games in GAME_STATUS."""


def list_active(table: tuple[Filter, ...], config: Filters) -> list[Filter]:
    """Return the filters of a table whose settings are not the defaults."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Filters)}
    # settings read from JSON may have an empty list for the default ()
    return [
        row
        for row in table
        if (getattr(config, row.setting) or None) != (defaults[row.setting] or None)
    ]


def apply_filters(
    table: tuple[Filter, ...],
    columns: GameColumns | RowColumns,
    config: Filters,
    status: NDArray[np.uint8],
    names: tuple[str, ...],
) -> None:
    """Set the status of dropped games or rows to its index in `names`; the first reason counts."""
    for row in list_active(table, config):
        is_dropped = row.select(config, columns)
        status[(status == KEPT) & is_dropped] = names.index(f"filter: {row.reason}")
