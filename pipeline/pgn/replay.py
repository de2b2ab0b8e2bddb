"""Replay PGN games into rows, in compiled code with no Python per game or per move.

Two passes read a chunk of whole games (uint8 text and the games' starts):
  `scan_tags`  finds the values of the wanted tags and the start of the movetext
  `replay`     turns movetext into rows, until the rows are full; every game gets a status

Moves are read as in python-chess (chess.pgn), and the tests compare the two. Comments, variations
and NAGs are skipped. Move numbers are optional. `e2-e4` and `e8Q` are moves, and `0-0` castles. A
promotion without a piece and an ambiguous SAN are errors. A game with an unknown token is dropped,
but python-chess skips such bytes; the README lists the differences.

Axes: G games, F tags, R rows, H earlier moves.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, U
from engine.board.movegen import count_moves, legal_planes
from engine.board.movers import can_capture_en_passant
from engine.board.piece_codes import CODE_BITS, piece_codes
from engine.board.position import (
    COUNTERS,
    HALFMOVE_MASK,
    MAX_MOVES,
    TURN,
    castling_bits,
    en_passant_file,
    hash_position,
    push,
)
from engine.board.rng import GOLDEN_GAMMA
from engine.encoding.planes import PLANES
from engine.encoding.views import LAST_MOVE_MIRROR, NO_LAST_MOVE
from engine.kernels import BORROWING
from pipeline.pgn.san import (
    NO_MOVE,
    UNCLOSED_TOKEN,
    UNKNOWN_RESULT,
    next_token,
    read_move,
    read_result,
    word_length,
)
from pipeline.pgn.text import NO_CLOCK, NO_EVAL, holds_board, read_comment

MAX_PLIES = 4096
"""Maximum length of a game; longer ones are dropped. The rules of chess end every game within 5,898
plies, and the longest on record has 538."""

STATUS = (
    "used", "variant", "bad FEN", "illegal move", "ambiguous move", "null move", "no moves",
    "unfinished", "result contradicts board", "unclosed comment", "too long", "bad row",
    "unreadable move",
)  # fmt: skip
"""Status of a game, as in the manifest: used, or why it was dropped. Filters add more reasons."""
(
    USED, VARIANT, BAD_FEN, ILLEGAL_MOVE, AMBIGUOUS_MOVE, NULL_MOVE, NO_MOVES, UNFINISHED,
    CONTRADICTION, UNCLOSED, TOO_LONG, BAD_ROW, UNREADABLE,
) = range(len(STATUS))  # fmt: skip

_REFUSED = np.array([NO_MOVES, NULL_MOVE, AMBIGUOUS_MOVE, ILLEGAL_MOVE])
"""Status for each negative kind that `read_move` returns, -4 to -1."""

NO_RESULT = 3
"""Result of an entry that is no game but a position with its best moves. Its rows have result 0 and
length 0; no game has length 0."""

ROW = np.dtype(
    [
        *((f"codes_{bit}", np.uint64) for bit in range(CODE_BITS)),  # engine.board.piece_codes
        ("key", np.uint64),  # engine.board.position.hash_position: finds repetitions, not stored
        ("game", np.uint32),  # index of the game in the chunk
        ("label", np.uint16),
        ("last_move", np.uint16),  # NO_LAST_MOVE: first position of a game
        ("eval", np.int16),  # NO_EVAL: none
        ("clock", np.uint16),  # NO_CLOCK: none
        ("ply", np.uint16),
        ("plies", np.uint16),
        ("promotion", np.uint8),
        ("castling", np.uint8),
        ("ep_file", np.uint8),
        ("halfmove", np.uint8),
        ("repetition", np.uint8),
        ("result", np.int8),
        ("black", np.uint8),  # 1 if Black is to move
        ("unused", np.uint8),
    ]
)
"""A row in memory: 64 bytes, wider columns first (pipeline.dataset.files.kernels). A sentinel value
stands for null."""
assert ROW.itemsize == 64

Rows = np.recarray
"""Array of ROW records, [R]."""


class Games(NamedTuple):
    """The inputs and outputs of replay for each game."""

    start: NDArray[np.int64]  # [G + 1] first byte of each game; the last entry is the end
    movetext: NDArray[np.int64]  # [G]
    # White's +1 / 0 / -1; UNKNOWN_RESULT: none in the tags; NO_RESULT: not a game
    result: NDArray[np.int8]
    base: NDArray[np.int32]  # seconds, -1: unknown
    setup: NDArray[np.int32]  # index into the starting positions; 0: the standard one
    status: NDArray[np.uint8]  # index into STATUS; input and output
    plies: NDArray[np.uint16]
    stop: NDArray[np.int64]  # [G] output: first byte of the last token replayed
    identity: NDArray[np.uint64]  # hash of the starting position and the moves


def allocate_rows(capacity: int) -> Rows:
    """Return uninitialised rows for `capacity` positions."""
    return np.empty(capacity, dtype=ROW).view(np.recarray)


REPLAYED = (
    *("label", "promotion", "castling", "ep_file", "last_move", "halfmove"),
    *("repetition", "result", "eval", "clock", "ply", "plies"),
)
"""Columns of a shard that are copied from the rows; the others come from the tags."""


def earlier_moves(rows: Rows, filled: int, history: int) -> NDArray[np.uint16]:
    """Return the `history - 1` moves before the last move of the first `filled` rows, [R, H]."""
    earlier_RH = np.empty((filled, history - 1), dtype=np.uint16)
    _earlier_moves(rows.view(ROW, np.ndarray), earlier_RH)
    return earlier_RH


@njit(**BORROWING)
def _earlier_moves(rows: Any, out_RH: Any) -> None:
    """Write column H: the `last_move` H + 1 plies earlier, seen by the mover of the row."""
    for row in range(len(out_RH)):
        for column in range(out_RH.shape[1]):
            back, move = column + 1, U(NO_LAST_MOVE)
            if rows.ply[row] >= back:
                move = U(rows.last_move[row - back])
                if back % 2 and move != U(NO_LAST_MOVE):
                    move ^= U(LAST_MOVE_MIRROR)
            out_RH[row, column] = move


@njit(**BORROWING)
def _count_repetitions(rows: Any, row: Any, ply: Any, halfmove: Any) -> Any:
    """Count the earlier occurrences of a row's position in its game, whose rows are adjacent."""
    count, keys = 0, rows.key
    back = 4
    while back <= halfmove and back <= ply:
        count += keys[row - back] == keys[row]
        back += 2
    return count


@njit(**BORROWING)
def write_position(rows: Any, row: Any, position: Any) -> None:
    """Write the columns of a row that depend on its position alone, except for the key."""
    codes = piece_codes(position)
    rows.codes_0[row], rows.codes_1[row], rows.codes_2[row], rows.codes_3[row] = codes
    rows.black[row] = position[TURN] & U(1)
    rows.castling[row] = castling_bits(position)
    rows.ep_file[row] = en_passant_file(position)
    rows.halfmove[row] = min(int(position[COUNTERS] & HALFMOVE_MASK), 255)


@njit(**BORROWING)
def _write_row(
    rows: Any, row: Any, position: Any, planes: Any, ply: Any, move: Any, last_move: Any
) -> None:
    """Write a row except for its result; `move` is (kind, source, promotion)."""
    kind, source, promotion = move
    halfmove = position[COUNTERS] & HALFMOVE_MASK
    write_position(rows, row, position)
    rows.last_move[row] = last_move
    rows.label[row] = kind * 64 + int(source)
    rows.promotion[row] = promotion
    rows.key[row] = hash_position(position, U(can_capture_en_passant(position, planes)))
    rows.repetition[row] = min(_count_repetitions(rows, row, ply, int(halfmove)), 255)
    rows.eval[row + 1] = NO_EVAL  # a comment after the move evaluates the next position
    rows.clock[row + 2] = NO_CLOCK  # and gives the clock before this player's next move
    rows.ply[row] = ply


@njit(**BORROWING, forceinline=True)  # inlined: it runs for every comment
def _read_comment(
    text: Any, at: Any, end: Any, position: Any, rows: Any, first: Any, ply: Any
) -> Any:
    """Store a comment's eval and clock in the rows of the following moves.

    Returns (byte after the comment or -1, whether it has a clock). If a move has several comments,
    the first value counts.
    """
    at, value, clock = read_comment(text, at, end)
    row = first + ply - 1  # the move before the comment
    if value != NO_EVAL and ply > 0 and rows.eval[row + 1] == NO_EVAL:
        rows.eval[row + 1] = value if position[TURN] == EMPTY else -value
    clocked = clock != NO_CLOCK and ply > 0 and rows.clock[row + 2] == NO_CLOCK
    if clocked:
        rows.clock[row + 2] = clock
    return at, clocked


@njit(**BORROWING)
def _replay_game(
    text: Any, games: Any, game: Any, position: Any, planes: Any, rows: Any, first: Any
) -> Any:
    """Replay one game into rows from `first` on.

    Returns (status, plies, result in the movetext, whether it has clocks). `planes` is scratch,
    uint64[77].
    """
    start, end = games.movetext[game], games.start[game + 1]
    last_move, numbered = U(NO_LAST_MOVE), games.setup[game] == 0
    # not a literal 0: Numba would compile every callee again for that constant
    at, ply, result, clocks = start, np.int64(0), UNKNOWN_RESULT, False
    ended, contradicted = False, False
    identity = hash_position(position, U(1))
    rows.eval[first] = NO_EVAL
    rows.clock[first] = rows.clock[first + 1] = NO_CLOCK
    status, token = USED, start
    while True:
        token = at
        at = next_token(text, at, end, start, ply, numbered)
        if at < 0:
            status = UNCLOSED if at == UNCLOSED_TOKEN else UNREADABLE
            break
        if at >= end:
            break
        char = text[at]
        if char == 123:  # {
            at, clocked = _read_comment(text, at, end, position, rows, first, ply)
            clocks = clocks or clocked
            if at < 0:
                status = UNCLOSED
                break
            continue
        if char == 42:  # *
            at, ended = at + 1, True
            continue
        if char == 48 or char == 49:
            found, length = read_result(text, at, end)
            if length > 0:
                if result == UNKNOWN_RESULT and not contradicted:
                    result = found
                elif found != result:
                    result, contradicted = UNKNOWN_RESULT, True
                at, ended = at + length, True
                continue
        row = first + ply
        kind, source, target, promotion, after = read_move(text, at, end, position, planes)
        if kind == NO_MOVE:
            at += word_length(text, at, end)
            if at < after:
                status = UNREADABLE
                break
            continue
        if ply == 0 and numbered and holds_board(text, start, at):
            status = BAD_FEN  # the comment sets up a position, but there is no FEN tag
            break
        at = after
        if ended:
            status = UNREADABLE  # a move after the result, of this game or the next
            break
        if kind < 0:
            status = _REFUSED[kind]
            break
        if ply == MAX_PLIES:
            status = TOO_LONG
            break
        if games.setup[game] > 0:  # only a custom FEN can have more than MAX_MOVES legal moves
            legal_planes(position, planes)
            if count_moves(position, planes) > MAX_MOVES:
                status = BAD_FEN
                break
        _write_row(rows, row, position, planes, ply, (kind, source, promotion), last_move)
        last_move = (U(source) ^ U(56)) * U(64) + (U(target) ^ U(56))  # the board is turned
        identity = (identity ^ U(rows.label[row]) ^ (U(promotion) << U(16))) * GOLDEN_GAMMA
        identity ^= identity >> U(32)
        push(position, source, target, promotion)
        ply += 1
    games.identity[game] = identity
    games.stop[game] = token
    return status, ply, result, clocks


@njit(**BORROWING)
def _check_result(position: Any, planes: Any, result: Any) -> Any:
    """Return CONTRADICTION if the result contradicts mate or stalemate on the board, else USED."""
    checkers = legal_planes(position, planes)
    if count_moves(position, planes) > 0:
        return USED
    ended = 0 if checkers == 0 else (-1 if position[TURN] == EMPTY else 1)
    return USED if ended == result else CONTRADICTION


def replay(
    text: NDArray[np.uint8], games: Games, setups: NDArray[np.uint64], first_game: int, rows: Rows
) -> tuple[int, int]:
    """Replay games from `first_game` on until the rows cannot hold another.

    Returns (next game, rows filled). `setups` uint64[S, 16] are the starting positions. Games with
    a status other than USED are skipped. Replay stops when fewer than MAX_PLIES + 2 rows are free.
    """
    game, filled = _replay(text, games, setups, first_game, rows.view(ROW, np.ndarray))
    return int(game), int(filled)


@njit(cache=True, nogil=True)
def _replay(text: Any, games: Any, setups: Any, first_game: Any, rows: Any) -> Any:
    """Replay games into an array of ROW records."""
    position = np.empty(setups.shape[1], dtype=np.uint64)
    planes = np.empty(PLANES, dtype=np.uint64)
    filled, game = np.int64(0), first_game  # not a literal 0, as in _replay_game
    while game < len(games.status) and filled + MAX_PLIES + 2 <= len(rows):
        games.plies[game] = 0
        if games.status[game] == USED:
            position[:] = setups[games.setup[game]]
            status, plies, result, clocks = _replay_game(
                text, games, game, position, planes, rows, filled
            )
            if games.result[game] != UNKNOWN_RESULT:
                result = games.result[game]
            games.result[game] = result
            games.plies[game] = length = plies
            if status == USED:
                if plies == 0:
                    status = NO_MOVES
                elif result == NO_RESULT:
                    result, length = 0, 0
                elif result == UNKNOWN_RESULT:
                    status = UNFINISHED
                else:
                    status = _check_result(position, planes, result)
            games.status[game] = status
            if status == USED:
                base = games.base[game]
                if clocks and 0 <= base < NO_CLOCK:
                    rows.clock[filled] = rows.clock[filled + 1] = base
                mover = -result if rows.black[filled] else result
                for row in range(filled, filled + plies):
                    rows.game[row] = game
                    rows.plies[row] = length
                    rows.result[row] = mover
                    mover = -mover
                filled += plies
        game += 1
    return game, filled
