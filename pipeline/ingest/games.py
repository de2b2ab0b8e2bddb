"""Parse the tags of a chunk's games: ratings, time controls, starting positions, results.

Axes: G games, F tags, S starting positions.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import chess
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.board.position import WORDS, FenError, from_fen, parse_fen, position_from_board
from pipeline.dataset.files.stored_planes import to_numpy
from pipeline.pgn import replay, tags
from pipeline.pgn.san import UNKNOWN_RESULT
from pipeline.pgn.text import DASHES, translate_movetext

TIME_CONTROL_PATTERN = re.compile(r" *(\d{1,9})(?:\+(\d{1,9}))? *", re.ASCII)
"""A base time, or base+increment, in seconds (PGN standard, 9.6.1), as Lichess writes them.
README.md explains why other forms are not read."""
MAX_BASE, MAX_INCREMENT = 65_534, 254
"""Maximum seconds that a row can store; a longer time control counts as unknown."""
EVERY_PLY = 255
"""Value of `TaggedGames.parity` for a game in which every move is a label."""

STANDARD_VARIANTS = frozenset(
    {"", "standard", "chess", "classical", "normal", "illegal", "from position"}
)
"""Values of Variant, in lower case, for standard chess. Lichess and python-chess write "From
Position" if a game starts from a FEN."""

_POINTS_OF_SCORE = {"1": 2, "0": 0, "1/2": 1, "½": 1, "0.5": 1, "0,5": 1, ".5": 1}
"""Twice the points of a player, by their notation in a tag Result."""
_SCORE_PATTERN = "|".join(map(re.escape, sorted(_POINTS_OF_SCORE, key=len, reverse=True)))
_RESULT_PATTERN = re.compile(rf"({_SCORE_PATTERN})\s*[-:]\s*({_SCORE_PATTERN})(?![\d/.,])")
_NO_SCORE = -2
"""Result of a game that ended without a score, such as a double forfeit."""

NO_POSITION_VALUES = frozenset({"", "0", "?", "-"})
"""Values of SetUp in games from the standard position."""


class TaggedGames(NamedTuple):
    """The games of a chunk with the values of their tags."""

    text: NDArray[np.uint8]  # of the chunk, after pipeline.pgn.text.translate_movetext
    games: replay.Games
    spans: NDArray[np.int64]  # [G, F, 2] of the tags (pipeline.pgn.tags)
    white_elo: NDArray[np.int32]  # [G], 0 if unknown
    black_elo: NDArray[np.int32]  # [G], 0 if unknown
    increment: NDArray[np.int32]  # [G] seconds, -1 if unknown
    # [G]: 0 if only even plies are labels, 1 if only odd ones are, or EVERY_PLY
    parity: NDArray[np.uint8]
    setups: NDArray[np.uint64]  # [S, 16] starting positions; the first is the standard one
    is_player: NDArray[np.bool_]  # [G, 2]: whether White and Black are wanted players
    is_evaluations: bool = False
    """Whether the games are lines of evaluated positions (pipeline/pgn/evaluation_rows.py)."""


def read_numbers(
    text: NDArray[np.uint8], spans: NDArray[np.int64], missing: int
) -> NDArray[np.int32]:
    """Return the number at the start of each span, or `missing`, int32[G]."""

    def parse_number(value: str) -> int:
        found = re.match("[0-9]{1,9}", value)
        return int(found[0]) if found else missing

    return map_values(text, spans, parse_number, np.int32)


def decode_value(data: bytes) -> str:
    """Decode a tag value as UTF-8 if possible, else as Latin-1, the PGN standard's encoding."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def decode_span(text: NDArray[np.uint8], span: NDArray[np.int64]) -> str:
    """Decode the tag value at a span (first byte, end)."""
    return decode_value(text[span[0] : span[1]].tobytes())


def to_binary_column(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.BinaryArray:
    """Return the bytes of each span as an Arrow column."""
    data = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), dtype=np.uint8)
    offsets = np.empty(len(spans) + 1, dtype=np.int32)
    tags.copy_spans(text, np.ascontiguousarray(spans), data, offsets)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(spans), buffers)


def map_values(
    text: NDArray[np.uint8], spans: NDArray[np.int64], read: Callable[[str], Any], dtype: Any
) -> NDArray[Any]:
    """Apply `read` to the text of each span, once for equal texts; return the results, [G, ...]."""
    texts = to_binary_column(text, spans).dictionary_encode()
    values = [read(decode_value(value)) for value in texts.dictionary.to_pylist()]
    mapped: NDArray[Any] = np.array(values, dtype=dtype)[to_numpy(texts.indices)]
    return mapped


def match_texts(
    text: NDArray[np.uint8], spans: NDArray[np.int64], matches: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Return whether the text of each span `matches`, bool[G]."""
    return map_values(text, spans, matches, np.bool_)


def find_date_spans(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the span of each game's UTCDate or, without one, of its Date, int64[G, 2]."""
    utc_date, date = spans[:, tags.UTC_DATE], spans[:, tags.DATE]
    return np.where(utc_date[:, 1:] > 0, utc_date, date)


def read_time_control(value: str) -> tuple[int, int]:
    """Return the base and increment in seconds, (-1, -1) if they are unknown, 0 or too large."""
    found = TIME_CONTROL_PATTERN.fullmatch(value)
    base, increment = (int(part or 0) for part in found.groups()) if found else (0, 0)
    is_certain = (base or increment) and base <= MAX_BASE and increment <= MAX_INCREMENT
    return (base, increment) if is_certain else (-1, -1)


def parse_result(value: str) -> int:
    """Parse the value of a tag Result: White's 1, 0, -1, UNKNOWN_RESULT, or -2 for no score.

    A score may be followed by words (`1-0 forfeit`). `0-0` and `+/-` are no scores.
    """
    value = value.strip().translate(DASHES)
    if found := _RESULT_PATTERN.match(value):
        points = _POINTS_OF_SCORE[found[1]], _POINTS_OF_SCORE[found[2]]
        is_score = sum(points) == 2 and not _RESULT_PATTERN.search(value, found.end())
        return points[0] - 1 if is_score else _NO_SCORE
    if value in ("1/2", "½", "0.5", "0,5", "=-="):
        return 0
    is_outcome = re.fullmatch(r"[-+=/:\d.,½\s]*[+\d½][-+=/:\d.,½\s]*", value)
    return _NO_SCORE if is_outcome else UNKNOWN_RESULT


def read_start_positions(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint64]:
    """Return the starting positions, uint64[S, 16], and set `games.setup` to each game's index.

    The first one is the standard position. `spans` is int64[G, F, 2]. Invalid positions, and SetUp
    tags without a FEN tag, give a game the status BAD_FEN; Chess960 gives it VARIANT.
    """
    setups = [from_fen(chess.STARTING_FEN)]
    without_fen = np.flatnonzero((spans[:, tags.SETUP, 1] > 0) & (spans[:, tags.FEN, 1] == 0))
    setup = spans[without_fen][:, tags.SETUP]
    is_position = match_texts(text, setup, lambda value: value.strip() not in NO_POSITION_VALUES)
    games.status[without_fen[is_position]] = replay.BAD_FEN
    spans = spans[:, tags.FEN]
    for game in np.flatnonzero(spans[:, 1]):
        fen = decode_span(text, spans[game])
        try:
            board = parse_fen(fen)
            if board.has_chess960_castling_rights():
                games.status[game] = replay.VARIANT
                continue
            setups.append(position_from_board(board, fen))
            games.setup[game] = len(setups) - 1
        except FenError:
            games.status[game] = replay.BAD_FEN
    return np.array(setups, dtype=np.uint64)


def unescape(value: str) -> str:
    """Remove the backslash before each escaped character of a tag's value."""
    return re.sub(r"\\(.)", r"\1", value)


def match_players(
    text: NDArray[np.uint8], spans: NDArray[np.int64], names: Collection[str]
) -> NDArray[np.bool_]:
    """Return whether White and Black are among `names`, bool[G, 2]; all True without names."""
    if not names:
        return np.ones((len(spans), 2), dtype=np.bool_)
    sides = (spans[:, side] for side in (tags.WHITE, tags.BLACK))
    found = [match_texts(text, side, lambda name: unescape(name) in names) for side in sides]
    return np.stack(found, axis=1)


def count_names(text: NDArray[np.uint8], spans: NDArray[np.int64], limit: int) -> dict[str, int]:
    """Return the most frequent player names, at most `limit`, with their numbers of games."""
    sides = (spans[:, side] for side in (tags.WHITE, tags.BLACK))
    names = (unescape(decode_span(text, span)) for side in sides for span in side)
    return dict(Counter(names).most_common(limit))


def _allocate_games(bounds: NDArray[np.int64]) -> replay.Games:
    """Return games with default values; `bounds`, int64[G + 1], are their starts and the end."""
    count = len(bounds) - 1
    return replay.Games(
        start=bounds,
        movetext=np.zeros(count, dtype=np.int64),
        result=np.full(count, UNKNOWN_RESULT, dtype=np.int8),
        base=np.full(count, -1, dtype=np.int32),
        setup=np.zeros(count, dtype=np.int32),
        status=np.full(count, replay.USED, dtype=np.uint8),
        plies=np.zeros(count, dtype=np.uint16),
        stop=np.zeros(count, dtype=np.int64),
        identity=np.zeros(count, dtype=np.uint64),
    )


def read_evaluations(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> TaggedGames:
    """Return the lines of evaluated positions as games without tags."""
    games, count = _allocate_games(np.append(starts, len(text))), len(starts)
    games.result[:] = replay.NO_RESULT
    unrated, unknown = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    # no tags: broadcast a single zero, since allocating 33 MB takes longer than reading the FENs
    spans = np.broadcast_to(np.int64(0), (count, len(tags.TAGS), 2))
    parity, setups = np.full(count, EVERY_PLY, np.uint8), np.empty((0, WORDS), np.uint64)
    is_player = np.zeros((count, 2), dtype=np.bool_)
    return TaggedGames(
        text, games, spans, unrated, unrated, unknown, parity, setups, is_player, True
    )


def read_games(
    text: NDArray[np.uint8], starts: NDArray[np.int64], players: Collection[str] = ()
) -> TaggedGames:
    """Return the games at `starts` with the values of their tags.

    Games whose tags already show that they cannot be used get a status other than USED.
    """
    bounds = np.append(starts, len(text))
    spans = np.zeros((len(starts), len(tags.TAGS), 2), dtype=np.int64)
    games = _allocate_games(bounds)
    tags.scan_tags(text, bounds, spans, games.movetext)
    text = translate_movetext(text, games.movetext, bounds)
    result = map_values(text, spans[:, tags.RESULT], parse_result, np.int64)
    games.status[result == _NO_SCORE] = replay.UNFINISHED
    games.result[:] = np.where(result == _NO_SCORE, UNKNOWN_RESULT, result)
    control = map_values(text, spans[:, tags.TIME_CONTROL], read_time_control, np.int32)
    games.base[:], increment = control.reshape(-1, 2).T
    white = read_numbers(text, spans[:, tags.WHITE_ELO], 0)
    black = read_numbers(text, spans[:, tags.BLACK_ELO], 0)
    setups = read_start_positions(text, spans, games)
    is_standard = match_texts(
        text, spans[:, tags.VARIANT], lambda variant: variant.strip().lower() in STANDARD_VARIANTS
    )
    games.status[~is_standard] = replay.VARIANT
    parity = _read_parity(text, spans[:, tags.LABELS], games)
    is_player = match_players(text, spans, players)
    return TaggedGames(text, games, spans, white, black, increment, parity, setups, is_player)


def _read_parity(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint8]:
    """Return the parity of each game's labels, uint8[G], from the tag FianchettoLabels.

    Entries with the tag are not games, so they get NO_RESULT. Those whose row could not be
    converted get the status BAD_ROW.
    """
    has_tag = spans[:, 1] > 0
    number = read_numbers(text, spans, EVERY_PLY)
    games.result[has_tag] = replay.NO_RESULT
    games.status[has_tag & (number > 1)] = replay.BAD_ROW
    return np.where(has_tag & (number <= 1), number, EVERY_PLY).astype(np.uint8)
