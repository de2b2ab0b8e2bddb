"""The values of the tags of a chunk's games.

Axes: G games, F tags, S starting positions.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import FenError, from_fen, parse_fen, playable
from pipeline.pgn import replay, tags
from pipeline.pgn.foreign import DASHES
from pipeline.pgn.san import UNKNOWN_RESULT

TIME_CONTROL = re.compile(r" *(\d{1,9})(?:\+(\d{1,9}))? *", re.ASCII)
"""`B` or `B+I`, which the PGN standard (9.6.1) counts in seconds, as Lichess writes it.

The standard's other forms are no base and increment of a whole game: `40/7200:3600` gives a new
period after 40 moves, `1/86400` a day for each move, `*180` is a sandclock. Minutes, days, hours
and fractions are other programs' spellings, whose unit is a guess.
"""
MAX_BASE, MAX_INCREMENT = 65_534, 254
"""Seconds that the columns of a row can hold; a control with more is unknown."""
NO_LABELS = 255
"""Parity of a game whose moves are all labels."""


_SCORES = {"1": 2, "0": 0, "1/2": 1, "½": 1, "0.5": 1, "0,5": 1, ".5": 1}
"""Points of a player in a Result, doubled."""
_SCORE = "|".join(map(re.escape, sorted(_SCORES, key=len, reverse=True)))
_RESULT = re.compile(rf"({_SCORE})\s*[-:]\s*({_SCORE})(?![\d/.,])")
_NO_SCORE = -2

NO_SETUP = frozenset({"", "0", "?", "-"})
"""Values of SetUp of a game from the usual position."""


class Tagged(NamedTuple):
    """The games of a chunk with the values of their tags."""

    # of the chunk, its movetext in ASCII where that is certain (pipeline.pgn.foreign)
    text: NDArray[np.uint8]
    games: replay.Games
    spans: NDArray[np.int64]  # [G, F, 2]
    white_elo: NDArray[np.int32]  # 0: unknown
    black_elo: NDArray[np.int32]
    increment: NDArray[np.int32]  # seconds, -1: unknown
    # 0 or 1: only even or odd plies are labels; NO_LABELS: a game, all plies are
    parity: NDArray[np.uint8]
    setups: NDArray[np.uint64]  # [S, 16] starting positions; the first is the usual one
    # [G, 2] whether White and Black are among the players whose moves are wanted
    is_player: NDArray[np.bool_]
    # evaluated positions: depth of the analysis, 0: unknown; None: games
    depth: NDArray[np.int32] | None = None


def numbers(text: NDArray[np.uint8], spans: NDArray[np.int64], missing: int) -> NDArray[np.int32]:
    """Return the numbers that tag values begin with, `missing` if there is none, int32[G]."""
    out = np.empty(len(spans), dtype=np.int32)
    tags.read_integers(text, spans, missing, out)
    return out


def tag_value(text: NDArray[np.uint8], span: NDArray[np.int64]) -> str:
    """Return the text of a span: UTF-8, or else Latin-1, which the PGN standard prescribes."""
    data = text[span[0] : span[1]].tobytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def map_values(
    text: NDArray[np.uint8], spans: NDArray[np.int64], read: Callable[[str], Any], dtype: Any
) -> NDArray[Any]:
    """Return what `read` makes of each span's text, [G, ...]; each spelling is read once."""
    hashes = np.zeros(len(spans), dtype=np.uint64)
    tags.hash_spans(text, spans, hashes)
    _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
    return np.array([read(tag_value(text, spans[index])) for index in first], dtype=dtype)[back]


def matches(
    text: NDArray[np.uint8], spans: NDArray[np.int64], wanted: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Return whether each span's text is `wanted`, bool[G]."""
    return map_values(text, spans, wanted, np.bool_)


def read_time_control(value: str) -> tuple[int, int]:
    """Return base and increment in seconds, (-1, -1) unless the text certainly states both."""
    found = TIME_CONTROL.fullmatch(value)
    base, increment = (int(part or 0) for part in found.groups()) if found else (0, 0)
    is_certain = (base or increment) and base <= MAX_BASE and increment <= MAX_INCREMENT
    return (base, increment) if is_certain else (-1, -1)


def parse_result(value: str) -> int:
    """Return White's result: 1, 0, -1, UNKNOWN_RESULT, or -2 for an outcome without a score.

    `1-0 forfeit` is a result, `0-0` and `+/-` are none.
    """
    value = value.strip().translate(DASHES)
    if found := _RESULT.match(value):
        points = _SCORES[found[1]], _SCORES[found[2]]
        one_score = sum(points) == 2 and not _RESULT.search(value, found.end())
        return points[0] - 1 if one_score else _NO_SCORE
    if value in ("1/2", "½", "0.5", "0,5", "=-="):
        return 0
    return (
        _NO_SCORE
        if re.fullmatch(r"[-+=/:\d.,½\s]*[+\d½][-+=/:\d.,½\s]*", value)
        else UNKNOWN_RESULT
    )


def read_results(text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games) -> None:
    """Set results by Result tags (int64[G, 2]); without a score a game is unfinished."""
    result = map_values(text, spans, parse_result, np.int64)
    games.status[result == _NO_SCORE] = replay.UNFINISHED
    games.result[:] = np.where(result == _NO_SCORE, UNKNOWN_RESULT, result)


def read_fens(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint64]:
    """Return the starting positions, the usual one first, and set each game's index.

    `spans` int64[G, F, 2]: a game whose SetUp announces a position has a bad FEN if it has none.
    """
    setups = [from_fen(chess.STARTING_FEN)]
    announced = np.flatnonzero((spans[:, tags.SETUP, 1] > 0) & (spans[:, tags.FEN, 1] == 0))
    setup = spans[announced][:, tags.SETUP]
    is_position = matches(text, setup, lambda value: value.strip() not in NO_SETUP)
    games.status[announced[is_position]] = replay.BAD_FEN
    spans = spans[:, tags.FEN]
    for game in np.flatnonzero(spans[:, 1]):
        fen = tag_value(text, spans[game])
        try:
            board = parse_fen(fen)
            if board.has_chess960_castling_rights():
                games.status[game] = replay.VARIANT
                continue
            setups.append(playable(board, fen))
            games.setup[game] = len(setups) - 1
        except FenError:
            games.status[game] = replay.BAD_FEN
    return np.array(setups, dtype=np.uint64)


def unescape(value: str) -> str:
    """Return a tag's text without the backslashes that PGN puts before quotes and backslashes."""
    return re.sub(r"\\(.)", r"\1", value)


def find_players(
    text: NDArray[np.uint8], spans: NDArray[np.int64], names: Collection[str]
) -> NDArray[np.bool_]:
    """Return whether White and Black are among `names`, bool[G, 2]; all without names."""
    if not names:
        return np.ones((len(spans), 2), dtype=np.bool_)
    sides = (tags.WHITE, tags.BLACK)
    return np.stack(
        [matches(text, spans[:, side], lambda name: unescape(name) in names) for side in sides],
        axis=1,
    )


def count_names(text: NDArray[np.uint8], spans: NDArray[np.int64], most: int) -> dict[str, int]:
    """Return the names that occur most often as White or Black, with their numbers of games."""
    names = (
        unescape(tag_value(text, span))
        for side in (tags.WHITE, tags.BLACK)
        for span in spans[:, side]
    )
    return dict(Counter(names).most_common(most))
