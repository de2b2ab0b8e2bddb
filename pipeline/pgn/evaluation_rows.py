"""Parse lines of evaluated positions into rows, in compiled code: FEN, score and move.

pipeline/dumps/formats/evaluations.py writes one line per position:

    FEN, tab, score, tab, move, tab

The score is from White's point of view: centipawns, or a mate such as `#3` or `#-3`. The move is in
UCI notation and may be empty. Castling is written as king takes rook or as a king's move of two
squares.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, U, bit
from engine.board.movegen import MOVE_PLANES, count_moves, is_en_passant_legal, legal_planes
from engine.board.position import (
    CASTLING,
    COUNTERS,
    KING,
    MAX_MOVES,
    PAWN,
    TURN,
    WORDS,
    hash_position,
)
from engine.board.read_fen import CHESS960, MALFORMED, VALID, read_fen
from engine.encoding.planes import NO_MOVE_TYPE, PLANES, type_table
from engine.encoding.views import NO_LABEL, NO_LAST_MOVE
from engine.kernels import NO_REFCOUNT
from pipeline.pgn import replay
from pipeline.pgn.replay import (
    BAD_FEN,
    BAD_ROW,
    ILLEGAL_MOVE,
    NO_MOVES,
    USED,
    VARIANT,
    write_position,
)
from pipeline.pgn.san import PROMOTION_PIECES
from pipeline.pgn.text import MATE, NO_CLOCK, NO_EVAL

_MOVE_TYPES = type_table()
_TAB = 9


@njit(**NO_REFCOUNT)
def _find_field_end(text: Any, at: Any, end: Any) -> Any:
    while at < end and text[U(at)] != _TAB:
        at += 1
    return at


@njit(**NO_REFCOUNT)
def _read_number(text: Any, at: Any, end: Any) -> Any:
    """Parse `text[at:end]` as an integer; return (value up to ±10**9, whether it is valid)."""
    negative = at < end and text[at] == 45
    at += negative
    value, valid = 0, at < end
    while at < end:
        valid = valid and 48 <= text[at] <= 57
        value = min(value * 10 + int(text[at]) - 48, 1_000_000_000)
        at += 1
    return (-value if negative else value), valid


@njit(**NO_REFCOUNT)
def _read_score(text: Any, at: Any, end: Any) -> Any:
    """Return White's centipawns, clipped to ±MATE; NO_EVAL for `#0` and text without a score."""
    mate = at < end and text[at] == 35
    value, valid = _read_number(text, at + mate, end)
    if not valid or (mate and value == 0):
        return NO_EVAL
    if mate:
        return MATE if value > 0 else -MATE
    return max(-MATE, min(value, MATE))


@njit(**NO_REFCOUNT)
def _read_square(text: Any, at: Any, turned: Any) -> Any:
    """Return the index of the square at `at`, in Black's view if `turned`; -1 for other text."""
    file, rank = int(text[at]) - 97, int(text[at + 1]) - 49
    if not (0 <= file < 8 and 0 <= rank < 8):
        return -1
    return 8 * (rank if turned else 7 - rank) + file


@njit(**NO_REFCOUNT)
def _read_uci(text: Any, at: Any, end: Any, position: Any, planes: Any) -> Any:
    """Return (label, promotion) of a legal move, (-1, 0) for other text.

    `planes` hold the legal moves of `position`, from `legal_planes`.
    """
    if not 4 <= end - at <= 5:
        return -1, 0
    turned = position[TURN] != EMPTY
    source, target = _read_square(text, at, turned), _read_square(text, at + 2, turned)
    if source < 0 or target < 0:
        return -1, 0
    # castling as king takes rook: move the king by two squares instead
    if position[KING] & bit(source) != EMPTY and position[CASTLING] & bit(target) != EMPTY:
        target = source + 2 if target > source else source - 2
    kind = _MOVE_TYPES[source, target]
    if kind == NO_MOVE_TYPE or planes[MOVE_PLANES + int(kind)] & bit(source) == EMPTY:
        return -1, 0
    promotion = 0
    if end - at == 5:
        promotion = PROMOTION_PIECES[text[at + 4]]
        if promotion == 0 or promotion == 6:
            return -1, 0
    if (position[PAWN] & bit(source) != EMPTY and target < 8) != (promotion > 0):
        return -1, 0
    return int(kind) * 64 + source, promotion


@njit(**NO_REFCOUNT)
def _write_row(
    rows: Any, row: Any, position: Any, planes: Any, label: Any, promotion: Any, value: Any
) -> None:
    """Write all columns of a row except `game`; `value` is White's centipawns."""
    write_position(rows, row, position)
    rows.key[row] = hash_position(position, U(is_en_passant_legal(position, planes)))
    rows.label[row], rows.promotion[row] = label, promotion
    rows.ply[row] = position[COUNTERS] >> U(16)
    rows.eval[row] = -value if rows.black[row] else value
    rows.last_move[row], rows.clock[row] = NO_LAST_MOVE, NO_CLOCK
    rows.plies[row] = rows.repetition[row] = rows.result[row] = 0


@njit(**NO_REFCOUNT)
def _read_line(
    text: Any, at: Any, end: Any, position: Any, planes: Any, rows: Any, row: Any
) -> Any:
    """Write the row of a line; return its status. The row is valid only if the status is USED."""
    fen_end = _find_field_end(text, at, end)
    score_end = _find_field_end(text, fen_end + 1, end)
    move_end = _find_field_end(text, score_end + 1, end)
    found = read_fen(text, at, fen_end, position)
    value = _read_score(text, fen_end + 1, score_end)
    if found == MALFORMED or value == NO_EVAL:
        return BAD_ROW
    if found != VALID:
        return VARIANT if found == CHESS960 else BAD_FEN
    legal_planes(position, planes)
    moves = count_moves(position, planes)
    if moves > MAX_MOVES:
        return BAD_FEN
    if moves == 0:
        return NO_MOVES  # mate or stalemate: the game is over
    label, promotion = NO_LABEL, 0
    if move_end > score_end + 1:
        label, promotion = _read_uci(text, score_end + 1, move_end, position, planes)
        if label < 0:
            return ILLEGAL_MOVE
    _write_row(rows, row, position, planes, label, promotion, value)
    return USED


@njit(cache=True, nogil=True)
def _read_rows(text: Any, games: Any, first: Any, rows: Any) -> Any:
    position, planes = np.empty(WORDS, dtype=np.uint64), np.empty(PLANES, dtype=np.uint64)
    line, filled = first, 0
    while line < len(games.status) and filled < len(rows):
        if games.status[line] == USED:
            start, end = games.start[line], games.start[line + 1]
            status = _read_line(text, start, end, position, planes, rows, filled)
            games.status[line] = status
            if status == USED:
                rows.game[filled] = line
                games.identity[line] = rows.key[filled]
                filled += 1
        line += 1
    return line, filled


def read_rows(
    text: NDArray[np.uint8], games: replay.Games, first: int, rows: replay.Rows
) -> tuple[int, int]:
    """Read lines from `first` on until the rows are full; return (next line, rows filled).

    Each line counts as a game with one row. Its status is written to `games.status`; the key of its
    position to `games.identity`, if it is used. Lines with a status other than USED are skipped.
    """
    line, filled = _read_rows(text, games, first, rows.view(replay.ROW_DTYPE, np.ndarray))
    return int(line), int(filled)
