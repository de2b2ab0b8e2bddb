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

TIME_CONTROL = re.compile(r" *(\d{1,9})(?:\+(\d{1,9}))? *", re.ASCII)
"""`B` or `B+I` in seconds (PGN standard, 9.6.1), as Lichess writes it.

The standard's other forms have no base and increment for the whole game: `40/7200:3600` starts a
new period after 40 moves, `1/86400` is a day per move, `*180` is a sandclock. Other programs write
minutes, hours, days or fractions; they are not read, because their unit is uncertain.
"""
MAX_BASE, MAX_INCREMENT = 65_534, 254
"""Maximum seconds that a row can store; a longer time control counts as unknown."""
NO_LABELS = 255
"""Parity of a game in which every move is a label."""

# Lichess and python-chess both call standard chess from a set-up position "From Position".
STANDARD_VARIANTS = frozenset(
    {"", "standard", "chess", "classical", "normal", "illegal", "from position"}
)

_SCORES = {"1": 2, "0": 0, "1/2": 1, "½": 1, "0.5": 1, "0,5": 1, ".5": 1}
"""Points of one player in a Result, times 2."""
_SCORE = "|".join(map(re.escape, sorted(_SCORES, key=len, reverse=True)))
_RESULT = re.compile(rf"({_SCORE})\s*[-:]\s*({_SCORE})(?![\d/.,])")
_NO_SCORE = -2

NO_SETUP = frozenset({"", "0", "?", "-"})
"""Values of SetUp in a game from the standard position."""


class Tagged(NamedTuple):
    """The games of a chunk with the values of their tags."""

    # text of the chunk, after `translate_movetext` (pipeline.pgn.text)
    text: NDArray[np.uint8]
    games: replay.Games
    spans: NDArray[np.int64]  # [G, F, 2]
    white_elo: NDArray[np.int32]  # 0: unknown
    black_elo: NDArray[np.int32]
    increment: NDArray[np.int32]  # seconds, -1: unknown
    # 0 or 1: only even or odd plies are labels; NO_LABELS: all plies are labels
    parity: NDArray[np.uint8]
    setups: NDArray[np.uint64]  # [S, 16] starting positions; the first is the standard one
    # [G, 2] whether White and Black are wanted players
    is_player: NDArray[np.bool_]
    is_evaluations: bool = False
    """Whether they are lines of evaluated positions (pipeline/pgn/evaluation_rows.py)."""


def numbers(text: NDArray[np.uint8], spans: NDArray[np.int64], missing: int) -> NDArray[np.int32]:
    """Return the leading numbers of tag values, `missing` if there is none, int32[G]."""

    def read(value: str) -> int:
        found = re.match("[0-9]{1,9}", value)
        return int(found[0]) if found else missing

    return map_values(text, spans, read, np.int32)


def decode_value(data: bytes) -> str:
    """Decode a tag value as UTF-8, else as Latin-1 (the PGN standard)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def tag_value(text: NDArray[np.uint8], span: NDArray[np.int64]) -> str:
    """Decode the tag value at `span`, which is the first byte and the end."""
    return decode_value(text[span[0] : span[1]].tobytes())


def span_column(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.BinaryArray:
    """Return the bytes of each span as an Arrow column."""
    data = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), dtype=np.uint8)
    offsets = np.empty(len(spans) + 1, dtype=np.int32)
    tags.copy_spans(text, np.ascontiguousarray(spans), data, offsets)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(spans), buffers)


def map_values(
    text: NDArray[np.uint8], spans: NDArray[np.int64], read: Callable[[str], Any], dtype: Any
) -> NDArray[Any]:
    """Apply `read` to the text of each span, [G, ...]; equal texts are read once."""
    words = span_column(text, spans).dictionary_encode()
    values = [read(decode_value(word)) for word in words.dictionary.to_pylist()]
    mapped: NDArray[Any] = np.array(values, dtype=dtype)[to_numpy(words.indices)]
    return mapped


def match_texts(
    text: NDArray[np.uint8], spans: NDArray[np.int64], wanted: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Return whether each span's text is `wanted`, bool[G]."""
    return map_values(text, spans, wanted, np.bool_)


def read_time_control(value: str) -> tuple[int, int]:
    """Return the base and increment in seconds, (-1, -1) unless the text states both clearly."""
    found = TIME_CONTROL.fullmatch(value)
    base, increment = (int(part or 0) for part in found.groups()) if found else (0, 0)
    is_certain = (base or increment) and base <= MAX_BASE and increment <= MAX_INCREMENT
    return (base, increment) if is_certain else (-1, -1)


def parse_result(value: str) -> int:
    """Return White's result: 1, 0, -1, UNKNOWN_RESULT, or -2 for an outcome without a score.

    `1-0 forfeit` is a result; `0-0` and `+/-` are not.
    """
    value = value.strip().translate(DASHES)
    if found := _RESULT.match(value):
        points = _SCORES[found[1]], _SCORES[found[2]]
        one_score = sum(points) == 2 and not _RESULT.search(value, found.end())
        return points[0] - 1 if one_score else _NO_SCORE
    if value in ("1/2", "½", "0.5", "0,5", "=-="):
        return 0
    is_outcome = re.fullmatch(r"[-+=/:\d.,½\s]*[+\d½][-+=/:\d.,½\s]*", value)
    return _NO_SCORE if is_outcome else UNKNOWN_RESULT


def read_fens(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint64]:
    """Return the starting positions, the standard one first, and set the index of each game.

    `spans` is int64[G, F, 2]. A game with SetUp but no FEN gets the status BAD_FEN.
    """
    setups = [from_fen(chess.STARTING_FEN)]
    announced = np.flatnonzero((spans[:, tags.SETUP, 1] > 0) & (spans[:, tags.FEN, 1] == 0))
    setup = spans[announced][:, tags.SETUP]
    is_position = match_texts(text, setup, lambda value: value.strip() not in NO_SETUP)
    games.status[announced[is_position]] = replay.BAD_FEN
    spans = spans[:, tags.FEN]
    for game in np.flatnonzero(spans[:, 1]):
        fen = tag_value(text, spans[game])
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
    """Remove the backslashes that PGN puts before quotes and backslashes in a tag."""
    return re.sub(r"\\(.)", r"\1", value)


def find_players(
    text: NDArray[np.uint8], spans: NDArray[np.int64], names: Collection[str]
) -> NDArray[np.bool_]:
    """Return whether White and Black are among `names`, bool[G, 2]; True if `names` is empty."""
    if not names:
        return np.ones((len(spans), 2), dtype=np.bool_)
    sides = (spans[:, side] for side in (tags.WHITE, tags.BLACK))
    found = [match_texts(text, side, lambda name: unescape(name) in names) for side in sides]
    return np.stack(found, axis=1)


def count_names(text: NDArray[np.uint8], spans: NDArray[np.int64], most: int) -> dict[str, int]:
    """Return the `most` most frequent player names with their numbers of games."""
    sides = (spans[:, side] for side in (tags.WHITE, tags.BLACK))
    names = (unescape(tag_value(text, span)) for side in sides for span in side)
    return dict(Counter(names).most_common(most))


def _allocate_games(bounds: NDArray[np.int64]) -> replay.Games:
    """Return games with default values; `bounds` int64[G + 1] are their first bytes and the end."""
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


def read_evaluations(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> Tagged:
    """Return lines of evaluated positions as games without tags."""
    games, count = _allocate_games(np.append(starts, len(text))), len(starts)
    games.result[:] = replay.NO_RESULT
    unrated, unknown = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    # no tags: broadcast a single zero, since allocating 33 MB takes longer than reading the FENs
    spans = np.broadcast_to(np.int64(0), (count, len(tags.TAGS), 2))
    parity, setups = np.full(count, NO_LABELS, np.uint8), np.empty((0, WORDS), np.uint64)
    is_player = np.zeros((count, 2), dtype=np.bool_)
    return Tagged(text, games, spans, unrated, unrated, unknown, parity, setups, is_player, True)


def read_games(
    text: NDArray[np.uint8], starts: NDArray[np.int64], players: Collection[str] = ()
) -> Tagged:
    """Return the games at `starts` with the values of their tags.

    Games that are dropped because of a tag get a status other than USED: variants, bad positions,
    results without a score.
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
    white = numbers(text, spans[:, tags.WHITE_ELO], 0)
    black = numbers(text, spans[:, tags.BLACK_ELO], 0)
    setups = read_fens(text, spans, games)
    is_standard = match_texts(
        text, spans[:, tags.VARIANT], lambda variant: variant.strip().lower() in STANDARD_VARIANTS
    )
    games.status[~is_standard] = replay.VARIANT
    parity = _read_parity(text, spans[:, tags.LABELS], games)
    is_player = find_players(text, spans, players)
    return Tagged(text, games, spans, white, black, increment, parity, setups, is_player)


def _read_parity(
    text: NDArray[np.uint8], spans: NDArray[np.int64], games: replay.Games
) -> NDArray[np.uint8]:
    """Return the parity of each game's labels, uint8[G]; mark entries that were not converted."""
    present = spans[:, 1] > 0
    number = numbers(text, spans, NO_LABELS)
    games.result[present] = replay.NO_RESULT
    games.status[present & (number > 1)] = replay.BAD_ROW
    return np.where(present & (number <= 1), number, NO_LABELS).astype(np.uint8)
