"""The filters of games and positions, and those of games that need no replay.

    tags -> `filter_games` -> replay -> `row_filters.filter_rows`

A dropped game keeps its row in `games.parquet` with the first filter that refused it, and only its tags are read.
The game's own text and the configuration decide, so the number of workers and the cut into chunks change nothing.

Axes: G games, F tags.
"""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset.hashing import splitmix64, unit_interval
from pipeline.dataset.strata import CLASSES, speed_class
from pipeline.errors import ConfigError
from pipeline.pgn import replay, tags

SPEEDS = tuple(name.lower() for name in CLASSES[:-1])
CORRESPONDENCE = "correspondence"
"""Class of the TimeControl `-`, which Lichess writes for games without a clock."""
TITLES = ("GM", "WGM", "IM", "WIM", "FM", "WFM", "NM", "CM", "WCM", "WNM", "LM")
BOTS = ("any", "exclude", "only")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What is kept of a dump; every default keeps all. The manifest counts what each filter dropped."""

    min_elo: int = 0
    """Lowest rating of either player; 0 also keeps games without ratings."""
    max_elo: int = 0
    """Highest rating of either player; 0 for no limit."""
    max_elo_gap: int = 0
    """Largest difference between the players' ratings; 0 for no limit. Otherwise games without both ratings are dropped."""
    rated_only: bool = False
    """Keep only games whose Event begins with "Rated", as Lichess writes it; casual games are often not played to win."""
    titles: tuple[str, ...] = ()
    """Keep games in which a player holds one of these titles, such as GM,IM; none for all games."""
    bots: str = "any"
    """Games with a bot (the title BOT, or a player called lichess AI): any, exclude or only."""
    speeds: tuple[str, ...] = ()
    """Keep these time controls by base + 40 x increment, as `blitz,rapid`: ultrabullet (below 30 s), bullet (180), blitz
    (480), rapid (1500), classical, correspondence; none for all."""
    terminations: tuple[str, ...] = ()
    """Keep games with these Termination tags, such as "Normal,Time forfeit"; none for all."""
    since: str = ""
    """First day to keep, as 2024-01-31; games without a complete date are then dropped. Empty for no limit."""
    until: str = ""
    """Last day to keep, in the same form."""
    min_plies: int = 1
    """Least number of half-moves of a game."""
    evals_only: bool = False
    """Keep only positions with an engine's evaluation ([%eval]); games without any are dropped before replay."""
    skip_plies: int = 0
    """Half-moves at the beginning of a game that do not become rows: openings are mostly duplicates of each other."""
    min_clock: int = 0
    """Least number of seconds on the mover's clock, if it is known; moves in time trouble teach little."""
    sample: float = 1.0
    """Share of games to keep, by a hash of their movetext and the seed: a smaller share is a subset of a larger one."""
    keep_by_elo: tuple[str, ...] = ()
    """Share of games to keep by band of the mean rating, as LOW:SHARE up to the next LOW, such as 0:1,1400:0.5,1800:1;
    `--estimate` prints the shares that make bands equal. Games without ratings count as 0."""
    positions_per_game: int = 0
    """Most rows of a game, drawn by a hash, since neighbours are nearly duplicates; 0 for all."""
    max_copies: int = 0
    """Most rows of one position in a chunk, drawn by a hash, so that the moves keep their shares; 0 for all."""

    def __post_init__(self) -> None:
        """Validate the settings."""
        counts = ("min_elo", "max_elo", "max_elo_gap", "skip_plies", "min_clock", "positions_per_game", "max_copies")
        if negative := [name for name in counts if getattr(self, name) < 0]:
            raise ConfigError(f"{negative[0]} must be at least 0, got {getattr(self, negative[0])}")
        if self.max_elo and self.max_elo < self.min_elo:
            raise ConfigError(f"max_elo {self.max_elo} is below min_elo {self.min_elo}")
        if self.min_plies < 1:
            raise ConfigError(f"min_plies is at least 1, not {self.min_plies}")
        if self.bots not in BOTS:
            raise ConfigError(f"bots is one of {', '.join(BOTS)}, not {self.bots!r}")
        for name, known in (("speeds", (*SPEEDS, CORRESPONDENCE)), ("titles", TITLES)):
            if wrong := [word for word in getattr(self, name) if word not in known]:
                raise ConfigError(f"{name}: {wrong[0]!r} is none of {', '.join(known)}")
        if not 0 < self.sample <= 1:
            raise ConfigError(f"sample is a share of games above 0 and up to 1, not {self.sample}")
        first, last = day(self.since, "since"), day(self.until, "until")
        if first and last and last < first:
            raise ConfigError(f"until {self.until} is before since {self.since}")
        elo_shares(self.keep_by_elo)


def day(text: str, name: str) -> int:
    """Return YYYY-MM-DD as the number YYYYMMDD, 0 for ""; raises ConfigError that names the option."""
    if not text:
        return 0
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            raise ValueError
        return int(datetime.date.fromisoformat(text).strftime("%Y%m%d"))
    except ValueError:
        raise ConfigError(f"{name} is a day as 2024-01-31, not {text!r}") from None


def elo_shares(words: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ascending lows and the shares of bands LOW:SHARE; ratings below the first band belong to it."""
    lows, shares = [], []
    for word in words:
        found = re.fullmatch(r"(\d{1,5}):(\d*\.?\d+)", word)
        if not found or not 0 <= float(found[2]) <= 1:
            raise ConfigError(
                f"keep_by_elo is made of LOW:SHARE with shares from 0 to 1, such as 1400:0.5, not {word!r}"
            )
        lows.append(int(found[1]))
        shares.append(float(found[2]))
    if lows != sorted(set(lows)):
        raise ConfigError("the bands of keep_by_elo must ascend")
    return np.array(lows, dtype=np.int64), np.array(shares, dtype=np.float64)


def tag_value(text: NDArray[np.uint8], span: NDArray[np.int64]) -> str:
    """Return the text of a span; invalid UTF-8 is replaced."""
    return text[span[0] : span[1]].tobytes().decode("utf-8", "replace")


def matches(text: NDArray[np.uint8], spans: NDArray[np.int64], wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return whether each span's text is `wanted`, bool[G]; each spelling is checked once."""
    hashes = np.zeros(len(spans), dtype=np.uint64)
    tags.hash_spans(text, spans, hashes)
    _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
    return np.array([wanted(tag_value(text, spans[index])) for index in first], dtype=np.bool_)[back]


def _dates(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return dates YYYY.MM.DD as numbers YYYYMMDD, 0 if a part is unknown."""
    parts = []
    for first, last in ((0, 4), (5, 7), (8, 10)):
        part = np.stack([spans[:, 0] + first, spans[:, 0] + last], axis=1)
        part[spans[:, 1] - spans[:, 0] != 10] = 0
        number = np.empty(len(spans), dtype=np.int32)
        tags.read_integers(text, part, 0, number)
        parts.append(number.astype(np.int64))
    year, month, date = parts
    return np.where((year > 0) & (month > 0) & (date > 0), year * 10_000 + month * 100 + date, 0)


def movetext_shares(text: NDArray[np.uint8], games: replay.Games, seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each game, a hash of its movetext without trailing white space."""
    spans = np.stack([games.movetext, games.start[1:]], axis=1)
    for turn in range(5):
        last = text[np.maximum(spans[:, 1] - 1, 0)]
        space = (spans[:, 1] > spans[:, 0]) & ((last == 32) | ((last >= 9) & (last <= 13)))
        if turn < 4:
            spans[space, 1] -= 1
    for game in np.flatnonzero(space):  # few games have more
        spans[game, 1] = spans[game, 0] + len(text[spans[game, 0] : spans[game, 1]].tobytes().rstrip())
    hashes = np.zeros(len(spans), dtype=np.uint64)
    tags.hash_spans(text, spans, hashes)
    return unit_interval(splitmix64(hashes, seed))


def filter_games(
    text: NDArray[np.uint8],
    spans: NDArray[np.int64],
    games: replay.Games,
    elos: tuple[NDArray[np.int32], NDArray[np.int32]],
    increment: NDArray[np.int32],
    filters: Filters,
    seed: int,
) -> None:
    """Mark games in `games.status` that filters refuse by their tags; spans int64[G, F, 2], ratings with 0 for unknown.

    Only games that are still USED are marked, so each is counted once.
    """

    def refuse(reason: int, refused: NDArray[np.bool_]) -> None:
        games.status[(games.status == replay.USED) & refused] = reason

    low, high = np.minimum(*elos), np.maximum(*elos)
    if filters.min_elo:
        refuse(replay.FILTER_ELO, low < filters.min_elo)
    if filters.max_elo:
        refuse(replay.FILTER_ELO, high > filters.max_elo)
    if filters.max_elo_gap:
        refuse(replay.FILTER_GAP, (low == 0) | (high - low > filters.max_elo_gap))
    if filters.rated_only:
        refuse(
            replay.FILTER_CASUAL, ~matches(text, spans[:, tags.EVENT], lambda event: event.lower().startswith("rated"))
        )
    _refuse_players(text, spans, filters, refuse)
    if filters.speeds:
        kept = [SPEEDS.index(speed) for speed in filters.speeds if speed != CORRESPONDENCE]
        wanted = (games.base >= 0) & np.isin(speed_class(games.base, increment), kept)
        if CORRESPONDENCE in filters.speeds:
            wanted |= matches(text, spans[:, tags.TIME_CONTROL], lambda control: control.strip() == "-")
        refuse(replay.FILTER_SPEED, ~wanted)
    if filters.terminations:
        words = {word.lower() for word in filters.terminations}
        refuse(
            replay.FILTER_TERMINATION, ~matches(text, spans[:, tags.TERMINATION], lambda word: word.lower() in words)
        )
    first, last = day(filters.since, "since"), day(filters.until, "until")
    if first or last:
        known = spans[:, [tags.UTC_DATE], 1] > 0
        dates = _dates(text, np.where(known, spans[:, tags.UTC_DATE], spans[:, tags.DATE]))
        refuse(replay.FILTER_DATE, (dates < max(first, 1)) | (dates > (last or 99_999_999)))
    if filters.sample < 1 or filters.keep_by_elo:
        drawn = movetext_shares(text, games, seed)
        refuse(replay.FILTER_SAMPLE, drawn >= filters.sample)
        if filters.keep_by_elo:
            lows, shares = elo_shares(filters.keep_by_elo)
            band = np.searchsorted(lows, (low.astype(np.int64) + high) // 2, side="right") - 1
            refuse(replay.FILTER_BALANCE, drawn >= filters.sample * shares[np.maximum(band, 0)])
    if filters.evals_only:
        whole = text.tobytes()
        for game in np.flatnonzero(games.status == replay.USED):
            if whole.find(b"[%eval ", games.movetext[game], games.start[game + 1]) < 0:
                games.status[game] = replay.FILTER_NO_EVALS


def _refuse_players(
    text: NDArray[np.uint8],
    spans: NDArray[np.int64],
    filters: Filters,
    refuse: Callable[[int, NDArray[np.bool_]], None],
) -> None:
    """Refuse games by the players' titles, and games with or without bots."""
    if filters.titles:
        white, black = (
            matches(text, spans[:, tag], lambda title: title in filters.titles)
            for tag in (tags.WHITE_TITLE, tags.BLACK_TITLE)
        )
        refuse(replay.FILTER_TITLE, ~(white | black))
    if filters.bots != "any":
        bot = np.zeros(len(spans), dtype=np.bool_)
        for tag in (tags.WHITE_TITLE, tags.BLACK_TITLE):
            bot |= matches(text, spans[:, tag], lambda title: title == "BOT")
        for tag in (tags.WHITE, tags.BLACK):
            bot |= matches(text, spans[:, tag], lambda name: name.lower().startswith("lichess ai"))
        refuse(*((replay.FILTER_BOT, bot) if filters.bots == "exclude" else (replay.FILTER_NO_BOT, ~bot)))
